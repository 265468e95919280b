"""Groups of competing consumers: turns, answers, attempts, and members that leave."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from s2pubsub import Event, LocalPubSub, OperationTimeoutError
from tests.local_parts import HERE, SOON, Handler, publish_numbers, quiet
from tests.waiting import LONG, eventually


@pytest.fixture
def local() -> Iterator[LocalPubSub]:
    with LocalPubSub(retry_pause=SOON) as pubsub:
        yield pubsub


# Sharing.


def test_members_take_turns(local):
    """Members that wait get events in the order in which they began to wait: round robin."""
    taken: list[int] = []
    members = [local.subscribe(HERE, group="g") for _ in range(3)]
    threads = []
    for n, member in enumerate(members):

        def work(n: int = n, member: Any = member) -> None:
            for event in member:
                taken.append(n)
                member.ack(event)

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        eventually(lambda count=n + 1: len(members[0]._line._waiting) == count)
    for n in range(9):
        publish_numbers(local, [n])
        eventually(lambda count=n + 1: len(taken) == count and len(members[0]._line._waiting) == 3)
    assert taken == [0, 1, 2] * 3
    for member in members:
        member.close()
    for thread in threads:
        thread.join(LONG)


def test_groups_and_plain_subscribers_are_independent(local):
    """C67: g1 shares 100, g2 refuses each first delivery and gets 100 twice, two plain subscribers get 100 each."""
    g1 = [Handler(), Handler()]
    g2 = Handler(lambda number, attempt: attempt == 1)
    plain = [Handler(), Handler()]
    for member in g1:
        local.subscribe(HERE, member, group="g1")
    local.subscribe(HERE, g2, group="g2", on_error=quiet)
    for reader in plain:
        local.subscribe(HERE, reader)
    publish_numbers(local, range(100))
    local.flush(LONG)
    assert sorted(g1[0].calls + g1[1].calls) == [(n, 1) for n in range(100)]
    assert Counter(attempt for _, attempt in g2.calls) == {1: 100, 2: 100}
    assert sorted(g2.calls) == sorted((n, attempt) for n in range(100) for attempt in (1, 2))
    for reader in plain:
        assert reader.calls == [(n, 1) for n in range(100)]


def test_one_name_on_two_topics_is_two_groups(local):
    """A group belongs to its topic."""
    here, there = Handler(), Handler()
    local.subscribe(HERE, here, group="g")
    local.subscribe("elsewhere", there, group="g")
    publish_numbers(local, [1])
    local.flush(LONG)
    assert (here.calls, there.calls) == ([(1, 1)], [])


def test_a_stuck_member_holds_up_only_what_it_has(local):
    """C35: while one member is stuck, the other handles all other events."""
    entered, release = threading.Event(), threading.Event()
    healthy = Handler()

    def stuck(event: Event) -> None:
        entered.set()
        release.wait(LONG)

    local.subscribe(HERE, stuck, group="g")
    publish_numbers(local, [0])
    assert entered.wait(LONG)
    local.subscribe(HERE, healthy, group="g")
    publish_numbers(local, range(1, 50))
    eventually(lambda: len(healthy.calls) == 49)
    assert healthy.calls == [(n, 1) for n in range(1, 50)]
    release.set()


# Attempts.


def test_refused_events_are_retried_and_given_up(caplog):
    """C68: attempts 1..4 of event 3, then a log line with its id; event 5 three times; the others once, unhindered."""
    errors: list[BaseException] = []
    handler = Handler(lambda number, attempt: number == 3 or (number == 5 and attempt < 3))
    with LocalPubSub(max_attempts=4, retry_pause=SOON) as local:
        local.subscribe(HERE, handler, group="g", on_error=errors.append)
        published = publish_numbers(local, range(1, 11))
        local.flush(5)
    assert [attempt for number, attempt in handler.calls if number == 3] == [1, 2, 3, 4]
    assert [attempt for number, attempt in handler.calls if number == 5] == [1, 2, 3]
    others = [call for call in handler.calls if call[0] not in (3, 5)]
    assert others == [(n, 1) for n in (1, 2, 4, 6, 7, 8, 9, 10)]
    assert len(errors) == 6
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert published[2].id in record.getMessage()
    assert "4 attempts" in record.getMessage()


def test_there_is_a_pause_between_attempts():
    """C68: a refused event comes again no sooner than after the pause, and the others are not held up by it."""
    times: list[float] = []

    def refuse(event: Event) -> None:
        times.append(time.monotonic())
        raise ValueError("no")

    with LocalPubSub(max_attempts=3, retry_pause=0.05) as local:
        local.subscribe(HERE, refuse, group="g", on_error=quiet)
        publish_numbers(local, [1])
        local.flush(LONG)
    assert len(times) == 3
    assert all(later - earlier >= 0.05 for earlier, later in pairwise(times))


def test_no_cap_no_pause():
    """Without a cap an event is delivered until it is handled; without a pause that is at once."""
    handler = Handler(lambda number, attempt: attempt < 50)
    with LocalPubSub(max_attempts=None, retry_pause=0) as local:
        local.subscribe(HERE, handler, group="g", on_error=quiet)
        publish_numbers(local, [1])
        local.flush(LONG)
    assert [attempt for _, attempt in handler.calls] == list(range(1, 51))


def test_a_refused_event_goes_to_a_free_member(local):
    """An event that one member refuses can be handled by another one, with the next attempt's number."""
    handler = Handler()
    with local.subscribe(HERE, group="g") as refusing:
        publish_numbers(local, [1])
        event = refusing.get(LONG)
        local.subscribe(HERE, handler, group="g")
        assert refusing.nack(event)
        eventually(lambda: handler.calls)
        assert handler.calls == [(1, 2)]


# Answers of iterating members.


def test_ack_and_nack(local):
    """An iterating member's event comes again after ``nack`` and not after ``ack``; a second answer changes nothing."""
    with local.subscribe(HERE, group="g") as member:
        assert member.group == "g"
        publish_numbers(local, [1])
        first = member.get(LONG)
        assert member.nack(first)
        assert not member.nack(first)
        second = member.get(LONG)
        assert (second.id, second.delivery_attempt) == (first.id, 2)
        assert member.ack(second)
        assert not member.ack(second)
        assert not member.nack(second)
        with pytest.raises(OperationTimeoutError):
            member.get(2 * SOON)


def test_answers_of_a_plain_reader_do_nothing(local):
    """Outside a group ``ack`` and ``nack`` change nothing: the same loop serves both."""
    with local.subscribe(HERE) as reader:
        publish_numbers(local, [1])
        event = reader.get(LONG)
        assert reader.nack(event)
        assert reader.ack(event)
        with pytest.raises(OperationTimeoutError):
            reader.get(2 * SOON)


def test_an_unanswered_event_is_not_delivered_twice(local):
    """C66: as long as nobody answers and no limit is set, an event stays with the member that has it."""
    with local.subscribe(HERE, group="g") as holder, local.subscribe(HERE, group="g") as other:
        publish_numbers(local, [1])
        event = holder.get(LONG)
        with pytest.raises(OperationTimeoutError):
            other.get(5 * SOON)
        assert holder.ack(event)


# Members that come and go.


def test_a_member_that_closes_gives_back_what_it_has(local):
    """What an iterating member has not answered goes to the others at its close, as the next attempt."""
    leaving, staying = local.subscribe(HERE, group="g"), local.subscribe(HERE, group="g")
    publish_numbers(local, range(3))
    taken = [leaving.get(LONG) for _ in range(2)]
    assert leaving.ack(taken[0])
    leaving.close()
    got = []
    for _ in range(2):
        event = staying.get(LONG)
        got.append((event.data, event.delivery_attempt))
        staying.ack(event)
    assert sorted(got) == [(1, 2), (2, 1)]
    with pytest.raises(OperationTimeoutError):
        staying.get(2 * SOON)
    assert not leaving.ack(taken[1])
    staying.close()


def test_a_closing_callback_still_counts(local):
    """A handler that runs while its subscription is closed keeps its event: done at its return, once."""
    entered, release = threading.Event(), threading.Event()
    other = Handler()

    def slow(event: Event) -> None:
        entered.set()
        release.wait(LONG)

    subscription = local.subscribe(HERE, slow, group="g")
    publish_numbers(local, [1])
    assert entered.wait(LONG)
    local.subscribe(HERE, other, group="g")
    closing = threading.Thread(target=subscription.close)
    closing.start()
    eventually(lambda: subscription.closed)
    publish_numbers(local, [2])
    eventually(lambda: other.calls)
    release.set()
    closing.join(LONG)
    local.flush(LONG)
    assert other.calls == [(2, 1)]


def test_a_handler_that_closes_its_member_and_raises_has_refused(local):
    """The event of a handler that closes its own subscription and then raises goes to the others."""
    other = Handler()

    def leave(event: Event) -> None:
        subscription.close()
        raise ValueError("not for me")

    subscription = local.subscribe(HERE, leave, group="g", on_error=quiet)
    publish_numbers(local, [1])
    local.subscribe(HERE, other, group="g")
    eventually(lambda: other.calls or subscription.closed)
    local.flush(LONG)
    assert other.calls in ([(1, 2)], [(1, 1)])  # the other may have been quicker


def test_the_last_member_says_what_it_leaves(local, caplog):
    """Events that no member is left to handle are not dropped silently: a log line counts them."""
    member = local.subscribe(HERE, group="g")
    publish_numbers(local, range(3))
    member.get(LONG)
    member.close()
    [record] = caplog.records
    assert "3 events" in record.getMessage()
    publish_numbers(local, [4])
    with local.subscribe(HERE, group="g") as later:
        with pytest.raises(OperationTimeoutError):
            later.get(0)
        publish_numbers(local, [5])
        assert later.ack(later.get(LONG))


def test_flush_skips_groups_that_are_only_iterated(local):
    """``flush`` waits for a group as soon as one member is a callback, and not for iterating consumers."""
    member = local.subscribe(HERE, group="g")
    publish_numbers(local, [1])
    local.flush(0)
    event = member.get(LONG)
    local.subscribe(HERE, Handler(), group="g")
    with pytest.raises(OperationTimeoutError):
        local.flush(0.01)
    member.ack(event)
    local.flush(LONG)
    member.close()


def test_ctrl_c_in_a_waiting_member_loses_nothing(local):
    """C47: an exception in the waiting thread, also together with an event, leaves that event to the next reader."""
    done = threading.Event()

    def handler(signum: int, frame: Any) -> None:
        if not done.is_set():
            done.set()
            publish_numbers(local, [1])
            raise InterruptedError

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for _ in range(20):
            with local.subscribe(HERE, group="g") as member:

                def interrupt(line: Any = member._line) -> None:
                    eventually(lambda: line._waiting)
                    while not done.is_set():  # CPython misses one that comes just before a wait, until the next
                        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                        done.wait(0.05)

                done.clear()
                thread = threading.Thread(target=interrupt)
                thread.start()
                with pytest.raises(InterruptedError):
                    member.get(LONG)
                thread.join(LONG)
                event = member.get(LONG)
                assert (event.data, event.delivery_attempt) == (1, 1)
                assert member.ack(event)
    finally:
        signal.signal(signal.SIGUSR1, before)
