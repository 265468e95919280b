"""The local transport under load: random settings with a printed seed, threads that take turns all the time."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from typing import Any

import pytest

from s2pubsub import BatchOptions, Event, LocalPubSub
from tests.waiting import LONG, eventually

HERE = "jobs"
COUNT = 1500
"""Events of a round of the test of groups."""

pytestmark = pytest.mark.stress


def publish(pubsub: LocalPubSub, numbers: Any) -> None:
    for n in numbers:
        pubsub.publish(HERE, type="job", data=n)


def quiet(error: BaseException) -> None:
    """An error hook for callbacks that raise on purpose."""


@pytest.mark.slow
@pytest.mark.limit(120)
@pytest.mark.parametrize("round_", range(5))
def test_every_event_is_handled_once(round_):
    """C49: Under load, with refusals and members that come and go, each event is acknowledged exactly once."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    lock = threading.Lock()
    done: Counter[int] = Counter()
    plain: list[int] = []
    failing = {n: rng.randrange(4) for n in range(COUNT)}
    try:
        with LocalPubSub(max_attempts=None, retry_pause=0.001, queue_size=50) as local:

            def handle(event: Event) -> None:
                if event.delivery_attempt <= failing[event.data]:
                    raise ValueError("not yet")
                with lock:
                    done[event.data] += 1

            def iterate(member: Any) -> None:
                for event in member:
                    try:
                        handle(event)
                    except ValueError:
                        member.nack(event)
                    else:
                        assert member.ack(event)

            local.subscribe(HERE, lambda event: handle(event), group="g", on_error=quiet)
            local.subscribe(HERE, lambda event: plain.append(event.data))
            iterating = [local.subscribe(HERE, group="g") for _ in range(2)]
            readers = [threading.Thread(target=iterate, args=(member,)) for member in iterating]
            stop = threading.Event()

            def come_and_go() -> None:
                while not stop.is_set():
                    callback = local.subscribe(HERE, lambda event: handle(event), group="g", on_error=quiet)
                    stop.wait(0.002)
                    callback.close()

            comer = threading.Thread(target=come_and_go)
            publishers = [threading.Thread(target=publish, args=(local, range(start, COUNT, 3))) for start in range(3)]
            for thread in [*readers, comer, *publishers]:
                thread.start()
            for thread in publishers:
                thread.join(60)
            eventually(lambda: len(done) == COUNT, 30)
            local.flush(LONG)
            stop.set()
            comer.join(LONG)
            for member in iterating:
                member.close()
            for thread in readers:
                thread.join(LONG)
    finally:
        sys.setswitchinterval(before)
    assert done == Counter(range(COUNT))
    assert sorted(plain) == list(range(COUNT))
    for start in range(3):
        assert [n for n in plain if n % 3 == start] == list(range(start, COUNT, 3))


@pytest.mark.limit(120)
@pytest.mark.parametrize("group", [None, "g"])
def test_batches_under_load(group):
    """Whatever the options, without overflow each event is delivered once, in the order of each publisher."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(15):
            options = BatchOptions(
                max_size=rng.choice([None, 1, 2, 7, 50]),
                max_wait=rng.choice([0, 0.001, 0.01]),
                min_interval=rng.choice([0, 0.001]),
                is_immediate=rng.choice([None, lambda event: event.data[1] % 7 == 0]),
                max_buffer_size=10_000,
            )
            calls: list[tuple[int, int]] = []
            with LocalPubSub(queue_size=rng.choice([3, 1000])) as local:
                for _ in range(1 if group is None else 2):
                    local.subscribe(
                        HERE, lambda e, calls=calls: calls.append(tuple(e.data)), group=group, batch=options
                    )

                def work(thread: int, local: LocalPubSub = local) -> None:
                    publish(local, [[thread, n] for n in range(100)])

                threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
                for thread in threads:
                    thread.start()
                for _ in range(3):
                    local.flush(LONG)
                for thread in threads:
                    thread.join(LONG)
                local.flush(LONG)
            assert sorted(calls) == [(thread, n) for thread in range(3) for n in range(100)]
            if group is None:
                for thread in range(3):
                    assert [n for t, n in calls if t == thread] == list(range(100))
    finally:
        sys.setswitchinterval(before)
