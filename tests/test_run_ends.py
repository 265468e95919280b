"""Runs end once, for every reader, whoever reads; ended ones leave nothing. Variants of what ``test_runs`` proves."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from s2pubsub import ClosedError, RunEndedError, RunError, S2PubSub
from s2pubsub.agent import DurableAgent
from s2pubsub.observation import Observation
from s2pubsub.runs import Run, Runs
from tests.faults import READ_SESSION, After, FaultProxy
from tests.servers import ON_LITE
from tests.topics import MakePubSub, on_threads, our_threads
from tests.waiting import LONG, eventually


@pytest.fixture
def runs(pubsub: S2PubSub) -> Runs:
    return Runs(pubsub, cleanup_timeout=0)


@pytest.fixture
def elsewhere(make_pubsub: MakePubSub) -> Runs:
    """Another client, as in another process."""
    return Runs(make_pubsub(), cleanup_timeout=0)


def types(events: Any) -> list[str]:
    return [event.data["type"] if event.type == "chunk" else event.type for event in events]


def suspended(runs: Runs) -> Run:
    run = runs.start()
    run.text("a")
    run.suspend("c1", "pay", {"eur": 5})
    return run


# C17: suspensions.


def test_a_reader_behind_the_first_suspension_stops_at_the_next(runs: Runs, elsewhere: Runs) -> None:
    """C17: a run that suspends twice: from behind the first suspension a reader that asks to stop gets the second."""
    run = suspended(runs)
    first = list(elsewhere.observe(run.id, stop_on_suspend=True))
    run.close()
    with runs.attach(run.id) as again:
        again.text("b")
        again.suspend("c2", "pay", {"eur": 6}, kind="suspension", suspend_payload={"why": "again"})
    behind = elsewhere.observe(run.id, (first[-1].index or 0) + 1, stop_on_suspend=True)
    events = list(behind)
    assert types(events)[-1] == "suspended"
    assert [event.index for event in events] == list(range(len(first), len(first) + len(events)))
    assert behind.end == "suspended"


def test_a_live_reader_stops_while_another_client_goes_on(runs: Runs, elsewhere: Runs) -> None:
    """C17: attached before the suspension, one reader is ended by it while it waits, the other by the finish only."""
    run = runs.start()
    ended: dict[str, list[str]] = {}

    def read(name: str, observation: Observation) -> None:
        ended[name] = types(observation)

    stops, stays = elsewhere.observe(run.id, stop_on_suspend=True), elsewhere.observe(run.id)
    readers = [
        threading.Thread(target=read, args=("stops", stops)),
        threading.Thread(target=read, args=("stays", stays)),
    ]
    for reader in readers:
        reader.start()
    run.suspend("c1", "pay", {})
    readers[0].join(LONG)
    assert ended["stops"][-1] == "suspended"
    assert stops.closed
    with pytest.raises(ClosedError):
        stops.get(0)
    assert readers[1].is_alive()
    run.finish()
    readers[1].join(LONG)
    assert ended["stays"][-1] == "finish"


# C18: ends.


def _raise(run: Run) -> None:
    with pytest.raises(OSError, match="disk"), run:
        raise OSError("disk")


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (lambda run: run.finish(), "stop"),
        (_raise, "error"),
        (lambda run: run.abort(), "abort"),
        (lambda run: run.close(), "error"),
    ],
    ids=["finish", "exception", "abort", "close"],
)
def test_each_waiting_observer_is_ended(runs: Runs, elsewhere: Runs, end: Callable[[Run], object], reason: str) -> None:
    """C18: ten observers of two clients wait in iteration, ``get`` and ``result`` when the end comes; all are told."""
    run = runs.start()
    run.text("so far")
    run.flush(LONG)
    observers = [(runs, elsewhere)[number % 2].observe(run.id) for number in range(10)]
    reasons: list[str | None] = []

    def read(number: int) -> None:
        observer = observers[number]
        if number < 4:
            list(observer)
        while number < 7 and observer.end is None:
            observer.get(LONG)
        reasons.append(observer.result().finish_reason)

    readers = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(10)]
    for reader in readers:
        reader.start()
    end(run)
    for reader in readers:
        reader.join(LONG)
    assert reasons == [reason] * 10


# C21: nothing is left.


def test_agents_whose_runs_fail_stop_and_are_left_leave_nothing(pubsub: S2PubSub) -> None:
    """C21: an agent's runs that end well, fail, or are aborted, with observers that leave early: nothing is left."""
    Runs(pubsub, cleanup_timeout=0).delete(Runs(pubsub).run(["the client's own threads begin"]).id)
    before = set(our_threads())

    def generate(kind: str) -> Any:
        yield "a"
        if kind == "fails":
            raise OSError("disk")
        while kind == "endless":
            yield "b"

    runs = Runs(pubsub, cleanup_timeout=0.1)
    with DurableAgent(generate, runs) as agent:
        for number in range(15):
            observation = agent.stream(("good", "fails", "endless")[number % 3])
            observation.get(LONG)
            if number % 3 == 2:
                agent.abort(observation.run_id)
            if number % 2:
                observation.close()
            else:
                observation.result()
    eventually(lambda: runs.pending_cleanups == 0 and pubsub.topics() == [])
    assert pubsub.stats().subscriptions == 0
    assert pubsub.stats().publishers == 0
    eventually(lambda: set(our_threads()) <= before)


def test_dropped_clean_ups_leave_the_runs_and_no_timer(pubsub: S2PubSub) -> None:
    """C21: closed before the delay has passed, the timer's thread ends, and the runs stay, readable for everybody."""
    runs = Runs(pubsub, cleanup_timeout=60)
    ids = [runs.run(["a"]).id for _ in range(5)]
    assert runs.pending_cleanups == 5
    runs.close()
    assert runs.pending_cleanups == 0
    assert not [name for name in our_threads() if "timer" in name]
    assert [Runs(pubsub).observe(run_id).result().text for run_id in ids] == ["a"] * 5


# C22: the log does not depend on its readers.


def test_a_reader_that_takes_nothing_does_not_hold_up_the_writer(runs: Runs, make_pubsub: MakePubSub) -> None:
    """C22: observers with full queues, and one whose client is closed in the middle, change nothing that is stored."""
    slow = Runs(make_pubsub(queue_size=2), cleanup_timeout=0)
    leaving = make_pubsub()
    run = runs.start()
    stuck = [slow.observe(run.id) for _ in range(3)]
    gone = Runs(leaving).observe(run.id)
    for number in range(50):
        run.data("n", [number, "x" * 10_000])
        if number == 25:
            gone.get(LONG)
            leaving.close()
    run.finish()
    stored = runs.pubsub.get_history(run.topic)
    assert types(stored) == ["start", *["data-n"] * 50, "finish"]
    assert [list(observer) for observer in stuck] == [stored] * 3


@ON_LITE
def test_a_reader_that_is_cut_off_again_and_again(runs: Runs, through: S2PubSub, proxy: FaultProxy) -> None:
    """C22: a reader whose connection breaks five times sees, and leaves behind, exactly what the writer wrote."""
    proxy.cut_on(READ_SESSION, times=5, after=After(records=2))
    run = runs.start()
    with Runs(through, cleanup_timeout=0).observe(run.id) as observer:
        for number in range(12):
            run.data("n", number)
        run.finish()
        seen = list(observer)
    assert types(seen) == ["start", *["data-n"] * 12, "finish"]
    assert seen == runs.pubsub.get_history(run.topic)


# C23: one end.


def test_different_ends_at_the_same_moment(runs: Runs) -> None:
    """C23: finish, error and abort race, also with the chunks of other threads: one end, and nothing behind it."""
    for _ in range(15):
        run = runs.start()
        told = Counter[str]()

        def act(number: int, run: Run = run, told: Counter[str] = told) -> None:
            try:
                if number < 2:
                    for _ in range(20):
                        run.text("x")
                else:
                    (run.finish, lambda: run.error(OSError("e")), run.abort)[number - 2]()
                    told["ended"] += 1
            except RunEndedError:
                told["late"] += 1

        on_threads(5, act)
        assert told["ended"] == 1
        stored = types(runs.pubsub.get_history(run.topic))
        assert [kind for kind in stored if kind in ("finish", "error", "abort")][-1:] == stored[-1:]
        assert stored.count("finish") == 1
        with pytest.raises(RunError):
            runs.attach(run.id)


def test_an_ended_run_is_over_for_every_handle(runs: Runs, elsewhere: Runs) -> None:
    """C23: after the end of a run that two processes wrote neither handle writes any more, nor after its deletion."""
    first = runs.start()
    first.text("a")
    first.hand_over()
    second = elsewhere.attach(first.id)
    second.finish()
    for late in (first.finish, second.finish, lambda: first.text("x"), lambda: second.data("n", 1), second.abort):
        with pytest.raises(RunEndedError):
            late()
    runs.delete(first.id)
    eventually(lambda: not runs.exists(first.id))
    with pytest.raises(RunEndedError):
        second.text("x")
    assert not runs.exists(first.id)
