"""Durable runs: writing, observing, ends, aborts and clean-up."""

from __future__ import annotations

import concurrent.futures
import signal
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import s2_sdk

from s2pubsub import (
    ClosedError,
    EncodeError,
    OperationTimeoutError,
    RunEndedError,
    RunExistsError,
    RunIdleError,
    RunNotFoundError,
    S2PubSub,
    StoreError,
    TopicGoneError,
)
from s2pubsub.agent import DurableAgent
from s2pubsub.chunks import join_text
from s2pubsub.runs import Runs
from s2pubsub.topic import control_topic, run_topic
from tests.faults import FaultProxy, Request
from tests.servers import CREATE_STREAMS, Server
from tests.waiting import LONG, eventually

MakePubSub = Callable[..., S2PubSub]


@pytest.fixture
def runs(pubsub: S2PubSub) -> Runs:
    return Runs(pubsub, cleanup_timeout=0)


def types(events: Any) -> list[str]:
    return [event.data["type"] if event.type == "chunk" else event.type for event in events]


def write(runs: Runs, words: int = 3, run_id: str | None = None) -> str:
    with runs.start(run_id) as run:
        for number in range(words):
            run.text(f"{number} ")
    return run.id


def raw(pubsub: S2PubSub, run_id: str, *events: tuple[str, Any]) -> None:
    """Write events of a foreign writer, unchecked."""
    pubsub.publish_many(run_topic(run_id), [{"type": t, "data": d, "run_id": run_id} for t, d in events])


def delta(text: str) -> tuple[str, Any]:
    return "chunk", {"type": "text-delta", "payload": {"id": "t", "text": text}}


# -- writing ---------------------------------------------------------------------------------------------------------


def test_a_run_has_the_events_that_typescript_readers_need(runs: Runs, pubsub: S2PubSub) -> None:
    """The order and the shapes are those of a run that Mastra writes."""
    with runs.start(message_id="m1") as run:
        run.step_start()
        run.text("Hel")
        run.text("lo")
        run.tool_call("c1", "add", {"a": 1})
        run.tool_result("c1", "add", {"a": 1}, 2)
        run.step_finish(usage={"inputTokens": 1, "outputTokens": 2, "totalTokens": 3})
    events = pubsub.get_history(run.topic)
    assert types(events) == [
        "start", "step-start", "text-start", "text-delta", "text-delta", "text-end", "tool-call", "tool-result",
        "step-finish", "iteration-complete", "finish",
    ]  # fmt: skip
    assert events[0].data["payload"] == {"id": "s2pubsub", "messageId": "m1"}
    step = events[8].data["payload"]
    assert all(isinstance(step[name], dict) for name in ("stepResult", "output", "metadata"))
    end = events[-1].data
    assert end["output"]["text"] == "Hello"
    assert end["output"]["usage"] == {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}
    assert end["output"]["steps"][0]["toolResults"][0]["result"] == 2
    assert end["stepResult"]["reason"] == "stop"
    assert {event.run_id for event in events} == {run.id}
    assert [event.index for event in events] == list(range(11))


def test_starting_stores_the_first_event_and_claims_the_id(
    runs: Runs, pubsub: S2PubSub, caplog: pytest.LogCaptureFixture
) -> None:
    """When start returns the run exists for everybody; a second start of the id is refused, writes nothing, and is no
    outage to log.
    """
    run = runs.start("run-7")
    assert pubsub.tail(run_topic("run-7")) == 1
    with pytest.raises(RunExistsError) as info:
        runs.start("run-7")
    assert info.value.run_id == "run-7"
    run.finish()
    with pytest.raises(RunExistsError):
        runs.start("run-7")
    assert types(pubsub.get_history(run_topic("run-7"))) == ["start", "finish"]
    assert caplog.records == []


def test_many_starts_of_one_id_have_one_winner(runs: Runs) -> None:
    """Of eight threads that start the same run at once exactly one gets it."""
    barrier = threading.Barrier(8)

    def start() -> Any:
        barrier.wait(LONG)
        try:
            return runs.start("contended")
        except RunExistsError:
            return None

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        winners = [run for run in pool.map(lambda _: start(), range(8)) if run is not None]
    assert len(winners) == 1
    winners[0].finish()


@pytest.mark.parametrize(
    ("type", "data", "place"),
    [
        ("chunk", {"type": "text-delta"}, "data.payload"),
        ("chunk", {"type": "step-finish", "payload": {"stepResult": {}, "output": {}}}, "data.payload.metadata"),
        ("chunk", [1], "data"),
        ("chunk", {"type": 5, "payload": {}}, "data"),
        ("suspended", {"resumeSchema": {}}, "data.resumeSchema"),
        ("finish", {"output": {}}, "data.stepResult"),
        ("finish", {"output": {}, "stepResult": {}}, "type"),
        ("error", {"error": "x"}, "data.error"),
        ("abort", {}, "type"),
    ],
)
def test_a_malformed_event_is_refused(runs: Runs, type: str, data: Any, place: str) -> None:
    """What would make a TypeScript reader hang is refused with its place; unchecked=True lets data through."""
    with runs.start() as run:
        with pytest.raises(EncodeError) as info:
            run.event(type, data)
        assert info.value.path == place
        if type == "chunk":
            assert run.event(type, data, unchecked=True).result(LONG).data == data


def test_an_exception_ends_the_run_as_failed(runs: Runs, pubsub: S2PubSub) -> None:
    """The text so far survives; the error's class and message are written, no traceback."""
    with pytest.raises(ValueError, match="secret"), runs.start() as run:
        run.text("so far")
        raise ValueError("secret")
    events = pubsub.get_history(run.topic)
    assert types(events)[-3:] == ["text-end", "error", "finish"]
    assert events[-2].data["payload"]["error"] == {"name": "ValueError", "message": "secret"}
    assert events[-1].data["stepResult"]["reason"] == "error"
    assert events[-1].data["output"]["text"] == "so far"
    assert runs.status(run.id) == "failed"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_whatever_ends_the_block_ends_the_run(runs: Runs, kind: type[BaseException]) -> None:
    """C23: An interruption is a failure too: the run has exactly one end."""
    with pytest.raises(kind), runs.start() as run:
        raise kind
    assert runs.observe(run.id).result().finish_reason == "error"


def test_an_end_too_large_for_a_record_is_cut_down(runs: Runs) -> None:
    """First the steps go, then the text is cut, and the end says so: it is never lost."""
    with runs.start() as run:
        for _ in range(2):
            run.step_start()
            run.tool_call("c", "read", {})
            run.tool_result("c", "read", {}, "x" * 600_000)
            run.step_finish("tool-calls")
    end = list(runs.observe(run.id))[-1]
    assert end.data["output"]["steps"] == []
    assert end.data["output"]["truncated"] == ["steps"]
    with runs.start() as run:
        for _ in range(12):
            run.text("€" * 40_000)
    end = list(runs.observe(run.id))[-1]
    assert end.data["output"]["truncated"] == ["steps", "text"]
    assert runs.observe(run.id).result().text == "€" * 480_000


def test_steps_that_do_not_fit_one_event(runs: Runs) -> None:
    """What was stored in parts may be too much for one event by its size, its values or its depth: the ends of a step
    and of the run leave it out and say so.
    """
    deep: list[Any] = []
    for _ in range(97):
        deep = [deep]
    for results in (["x" * 600_000] * 2, [[0] * 300_000] * 2, [deep]):
        with runs.start() as run:
            run.step_start()
            for result in results:
                run.tool_result("c", "read", {}, result)
            run.step_finish()
        events = list(runs.observe(run.id))
        assert types(events)[-3:] == ["step-finish", "iteration-complete", "finish"]
        assert events[-2].data["toolResults"] == []
        assert events[-2].data["truncated"] == ["toolCalls", "toolResults"]
        assert events[-1].data["output"]["truncated"] == ["steps"]
    with runs.start() as run:
        run.step_start()
        for _ in range(12):
            run.text("€" * 40_000)
        run.step_finish()
    last = list(runs.observe(run.id))[-2]
    assert last.data["truncated"] == ["toolCalls", "toolResults", "text"]


def test_token_counts_that_are_none(runs: Runs) -> None:
    """Counts that a model leaves out or nests are kept with their step and add nothing to the run's."""
    odd = {"inputTokens": None, "outputTokens": {"total": 5}, "totalTokens": None}
    with runs.start() as run:
        for used in (odd, {"inputTokens": 3, "outputTokens": 2}):
            run.step_start()
            run.step_finish(usage=used)
    result = runs.observe(run.id).result()
    assert result.usage == {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5}
    assert result.steps[0]["usage"] == odd


def test_an_error_that_cannot_say_what_it_is(runs: Runs) -> None:
    """It ends the run as failed like any other."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise TypeError

    with pytest.raises(Mute), runs.start() as run:
        raise Mute
    result = runs.observe(run.id).result()
    assert result.error == {"name": "Mute", "message": "its text cannot be had"}


def test_a_run_is_continued_by_another_writer_and_two_are_found_out(runs: Runs) -> None:
    """Attach goes on where the first writer stopped; when both write, the second one's next event fails."""
    first = runs.start()
    first.text("one ")
    first.flush()
    second = runs.attach(first.id)
    second.text("two ")
    second.flush()
    with pytest.raises(StoreError) as info:
        first.text("lost")
        first.flush()
    assert info.value.code == "second_writer"
    second.finish()
    first.give_up()
    result = runs.observe(first.id).result()
    assert result.text == "one two "
    with pytest.raises(RunEndedError):
        runs.attach(first.id)
    with pytest.raises(RunNotFoundError):
        runs.attach("unknown")


def test_iterators_become_runs(runs: Runs) -> None:
    """Strings are text, mappings raw chunks, objects go through the adapter; anything else is a TypeError."""
    run = runs.run(["a", {"type": "source", "payload": {"id": "1"}}, None, "b"])
    assert run.ended
    result = runs.observe(run.id).result()
    assert result.text == "ab"
    assert runs.observe(runs.run([1, 2], adapter=str).id).result().text == "12"
    with pytest.raises(TypeError, match="adapter"):
        runs.run([object()], run_id="odd")
    assert runs.status("odd") == "failed"
    background = runs.run(iter("xyz"), background=True)
    assert runs.observe(background.id).result().text == "xyz"


def test_a_failing_iterator_ends_its_run(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    """On the caller's thread the error is raised as well, in the background it is logged."""

    def broken() -> Any:
        yield "a"
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        runs.run(broken(), run_id="here")
    runs.run(broken(), run_id="behind", background=True)
    for run_id in ("here", "behind"):
        result = runs.observe(run_id).result()
        assert (result.finish_reason, result.text, result.error["message"]) == ("error", "a", "disk")
    eventually(lambda: "behind" in caplog.text)


# -- observing -------------------------------------------------------------------------------------------------------

_KILLED = """
import os, sys, threading
from s2pubsub import S2PubSub
from s2pubsub.runs import Runs
run = Runs(S2PubSub()).start(sys.argv[1])
run.text("a"); run.text("b"); run.flush()
print("ready", flush=True)
threading.Event().wait()
"""


def start_process(server: Server, basin: str, script: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**server.endpoints_env(), "S2_BASIN": basin, "PATH": ""}
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], env=environment, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.limit(60)
def test_observers_bound_their_wait_for_a_killed_producer(runs: Runs, server: Server, basin: str) -> None:
    """C16: idle limit, liveness check asked again and again, and no limit at all."""
    with start_process(server, basin, _KILLED, "killed") as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        finally:
            child.send_signal(signal.SIGKILL)
    answers = [True, True, False]
    asked: list[float] = []

    def is_alive() -> bool:
        asked.append(time.monotonic())
        return answers[len(asked) - 1]

    with runs.observe("killed", idle_timeout=0.5) as first:
        assert [first.get(LONG).index for _ in range(4)] == [0, 1, 2, 3]
        with pytest.raises(RunIdleError, match="silent") as info:
            first.get(None)
        assert info.value.run_id == "killed"
        assert first.closed
    with runs.observe("killed", idle_timeout=0.5, is_alive=is_alive) as second:
        began = time.monotonic()
        with pytest.raises(RunIdleError):
            list(second)
        assert len(asked) == 3
        assert time.monotonic() - began >= 1.5
    third = runs.observe("killed")
    assert len([third.get(LONG) for _ in range(4)]) == 4
    waiting = threading.Thread(target=lambda: list(third))
    waiting.start()
    third.close()
    waiting.join(LONG)
    assert not waiting.is_alive()
    assert runs.status("killed") == "running"


def test_an_observer_may_stop_at_a_suspension(runs: Runs) -> None:
    """C17: one reader ends after the suspended event, the other one goes on to the end."""
    run = runs.start()
    run.text("a")
    run.suspend("c1", "pay", {"eur": 5})
    assert runs.status(run.id) == "suspended"
    stops = list(runs.observe(run.id, stop_on_suspend=True))
    assert types(stops) == ["start", "text-start", "text-delta", "text-end", "tool-call-approval", "suspended"]
    assert isinstance(stops[-1].data["resumeSchema"], str)
    goes_on = runs.observe(run.id)
    for _ in stops:
        goes_on.get(LONG)
    with pytest.raises(OperationTimeoutError):
        goes_on.get(0.2)
    run.close()  # suspended: no end is written
    resumed = runs.attach(run.id)
    resumed.text("b")
    resumed.finish()
    assert types(goes_on)[-1] == "finish"
    assert runs.observe(run.id).result().text == "ab"
    with runs.observe(run.id, stop_on_suspend=True) as third:
        assert third.result().end == "suspended"


@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize(
    ("type", "data", "reason", "status"),
    [
        ("finish", {"output": {"text": "ab"}, "stepResult": {"reason": "length"}}, "length", "finished"),
        ("error", {"error": {"name": "E", "message": "m"}}, None, "failed"),
        ("abort", {"steps": [], "text": "ab"}, None, "aborted"),
        ("finish", {"output": {}, "stepResult": {}}, None, "finished"),
        ("finish", "odd", None, "finished"),
    ],
)
def test_every_end_ends_every_observer(
    runs: Runs, pubsub: S2PubSub, type: str, data: Any, reason: str | None, status: str, offset: int
) -> None:
    """C18: attached before the end or after it, from the start or from an offset; events behind the end are ignored."""
    raw(pubsub, "r", delta("a"), delta("b"))
    with runs.observe("r", offset) as early:
        raw(pubsub, "r", (type, data), delta("behind the end"), ("finish", {"output": {}, "stepResult": {}}))
        late = runs.observe("r", offset)
        for observer in (early, late):
            assert [event.index for event in observer] == [0, 1, 2][offset:]
            assert observer.end == type
            assert observer.closed
            assert list(observer) == []
            with pytest.raises(ClosedError):
                observer.get(0)
    assert late.result().finish_reason == reason
    assert late.result().text == ("ab" if offset == 0 or reason else "")
    pubsub.clear_topic(run_topic("r"), strict=True)
    eventually(lambda: not pubsub.exists(run_topic("r")))
    raw(pubsub, "r", (type, data))
    assert runs.status("r") == status


def test_an_offset_behind_the_end_is_over_at_once(runs: Runs) -> None:
    """C18: A browser that has seen the end and asks for more gets none, and does not wait."""
    run_id = write(runs)
    end = list(runs.observe(run_id))[-1].index
    over = runs.observe(run_id, end + 1)
    assert over.end == "finish"
    assert list(over) == []
    assert over.result().finish_reason == "stop"
    assert over.result().text == "0 1 2 "
    assert [event.type for event in runs.observe(run_id, end)] == ["finish"]


_STARTER = """
import sys, threading
from s2pubsub import S2PubSub
from s2pubsub.runs import Runs
pause = threading.Event()
with S2PubSub() as pubsub:
    runs = Runs(pubsub, cleanup_timeout=0)
    for line in sys.stdin:
        run = runs.start()
        print(run.id, flush=True)
        pause.wait(0.03)
        run.text("late")
        run.finish()
"""


@pytest.mark.limit(120)
def test_a_reader_that_attaches_right_after_the_start_gets_it_all(runs: Runs, server: Server, basin: str) -> None:
    """C19: no 'not found', no hang, everything from index 0, a hundred times from another process."""
    child = subprocess.Popen(
        [sys.executable, "-c", _STARTER],
        env={**server.endpoints_env(), "S2_BASIN": basin, "PATH": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        for _ in range(100):
            child.stdin.write("\n")
            child.stdin.flush()
            run_id = child.stdout.readline().strip()
            assert types(runs.observe(run_id)) == ["start", "text-start", "text-delta", "text-end", "finish"]
        child.stdin.close()


def test_an_unknown_run_is_told_promptly_and_nothing_is_made(runs: Runs, pubsub: S2PubSub) -> None:
    """C20: observe, status, exists, attach, abort and active_run of an unknown id; the list of streams stays empty."""
    for ask in (runs.observe, runs.attach, runs.request_abort):
        with pytest.raises(RunNotFoundError) as info:
            ask("unknown")
        assert info.value.run_id == "unknown"
    assert runs.status("unknown") == "gone"
    assert not runs.exists("unknown")
    with pytest.raises(RunNotFoundError):
        runs.observe("unknown", wait_for_start=0.2)
    assert pubsub.topics() == []
    pubsub.subscribe(run_topic("empty")).close()  # on this basin a reader makes an empty stream
    assert not runs.exists("empty")
    with pytest.raises(RunNotFoundError):
        runs.observe("empty")


def test_observe_waits_for_a_run_that_is_about_to_start(runs: Runs) -> None:
    """C19: wait_for_start: the id was minted, its writer is on its way."""
    seen: list[str] = []
    reader = threading.Thread(target=lambda: seen.extend(types(runs.observe("soon", wait_for_start=LONG))))
    reader.start()
    write(runs, 1, "soon")
    reader.join(LONG)
    assert seen == ["start", "text-start", "text-delta", "text-end", "finish"]


def test_halves_of_a_character_are_joined(runs: Runs, pubsub: S2PubSub) -> None:
    """TypeScript splits an emoji over two deltas; the result has the emoji, a half alone becomes U+FFFD."""
    assert join_text(["a\ud83d", "\ude00b"]) == "a😀b"
    assert join_text(["\ud83d", "x"]) == "\ufffdx"
    bodies = [
        b'{"type":"chunk","runId":"e","data":{"type":"text-delta","payload":{"id":"t","text":"\\ud83d"}},'
        b'"id":"1","createdAt":"2026-03-01T12:00:00.123Z"}',
        b'{"type":"chunk","runId":"e","data":{"type":"text-delta","payload":{"id":"t","text":"\\ude00"}},'
        b'"id":"2","createdAt":"2026-03-01T12:00:00.123Z"}',
    ]
    from s2pubsub.runtime.deadline import Deadline

    pubsub._engine.store.append(f"mastra/durable/{run_topic('e')}", bodies, Deadline.after(LONG))
    raw(pubsub, "e", ("finish", {"output": {}, "stepResult": {"reason": "stop"}}))
    assert runs.observe("e").result().text == "😀"


def test_what_is_stored_does_not_depend_on_the_readers(runs: Runs, pubsub: S2PubSub) -> None:
    """C22: no reader, one that leaves early, three of them: eleven events and the producer goes on."""
    for readers in (0, 1, 3):
        run = runs.start()
        observers = [runs.observe(run.id) for _ in range(readers)]
        for number in range(10):
            run.data("n", number)
            if number == 3 and readers == 1:
                observers[0].get(LONG)
                observers[0].close()
        run.finish()
        assert types(pubsub.get_history(run.topic)) == ["start", *["data-n"] * 10, "finish"]
        if readers == 3:
            assert all(len(list(observer)) == 12 for observer in observers)


# -- ends and clean-up -----------------------------------------------------------------------------------------------


@pytest.mark.limit(60)
def test_a_run_has_one_end_and_nothing_after_it(pubsub: S2PubSub) -> None:
    """C23: two threads finish at the same moment; later writes raise; after the clean-up the stream stays gone."""
    runs = Runs(pubsub, cleanup_timeout=0.05)
    for _ in range(20):
        run = runs.start()
        barrier = threading.Barrier(2)

        def finish(run: Any = run, barrier: Any = barrier) -> bool:
            barrier.wait(LONG)
            try:
                run.finish()
            except RunEndedError:
                return False
            return True

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(lambda _, finish=finish: finish(), range(2))) == [False, True]
        for late in (lambda run=run: run.text("x"), lambda run=run: run.chunk("source", {}), run.abort):
            with pytest.raises(RunEndedError):
                late()
        eventually(lambda run=run: not pubsub.exists(run.topic))
        with pytest.raises(RunEndedError):
            run.text("x")
        assert not pubsub.exists(run.topic)


@pytest.mark.slow
@pytest.mark.limit(120)
def test_nothing_is_left_of_ended_runs(pubsub: S2PubSub) -> None:
    """C21: 200 runs with a reader each; then no subscription, timer, worker thread or stream of them is left."""
    runs = Runs(pubsub, cleanup_timeout=5)
    write(runs)
    before = {thread.name for thread in threading.enumerate()}
    for _ in range(200):
        run_id = write(runs, 2)
        assert runs.observe(run_id).result().text == "0 1 "
    eventually(lambda: runs.pending_cleanups == 0, 20)
    eventually(lambda: pubsub.topics() == [], 20)
    assert pubsub.stats().subscriptions == 0
    eventually(lambda: {t.name for t in threading.enumerate()} <= before | {"s2pubsub-timer"})
    eventually(lambda: "s2pubsub-timer" not in {t.name for t in threading.enumerate()})


def test_a_deleted_run_tells_its_readers(runs: Runs, pubsub: S2PubSub) -> None:
    """Observers never delete; when somebody does, a reader gets TopicGoneError and not silence."""
    run = runs.start()
    observer = runs.observe(run.id)
    observer.get(LONG)
    runs.delete(run.id)
    with pytest.raises(TopicGoneError):
        observer.get(LONG)
    assert runs.status(run.id) == "gone"
    run.give_up()


@pytest.mark.parametrize("offset", [0, 2])
def test_a_run_deleted_while_an_observer_comes(
    runs: Runs, pubsub: S2PubSub, through: S2PubSub, proxy: FaultProxy, offset: int
) -> None:
    """An observer that has just found the run, which is then deleted, is told so and does not wait for ever."""
    run_id = write(runs)
    late = Runs(through, cleanup_timeout=0)
    assert late.exists(run_id)
    tail = Request(kind="tail", stream=f"mastra/durable/{run_topic(run_id)}")
    held = proxy.hold_response(tail, skip=1 if offset else 0)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        observing = pool.submit(late.observe, run_id, offset)
        eventually(lambda: held.hits == 1)
        runs.delete(run_id)
        eventually(lambda: run_topic(run_id) not in pubsub.topics(), LONG)
        proxy.remove(held)
        with pytest.raises((RunNotFoundError, TopicGoneError)):
            observing.result(LONG).get(LONG)
    assert through.stats().subscriptions == 0


@pytest.mark.slow
@pytest.mark.limit(90)
@pytest.mark.parametrize("server", ["embedded"], indirect=True)
def test_an_orphan_goes_by_its_retention(make_basin: Any, make_pubsub: MakePubSub) -> None:
    """A run whose process was killed is deleted by the server: run_config expires its events and then the stream."""
    config = s2_sdk.StreamConfig(retention_policy=1, delete_on_empty_min_age=1)
    pubsub = make_pubsub(basin=make_basin(**CREATE_STREAMS), run_config=config)
    orphan = Runs(pubsub).start("orphan")
    orphan.give_up()
    eventually(lambda: pubsub.topics() == [], 80)


# -- aborts ----------------------------------------------------------------------------------------------------------


def test_an_abort_request_stops_the_run(runs: Runs, pubsub: S2PubSub) -> None:
    """The partial text survives, the reason is abort, and the control topic is gone afterwards."""

    def endless() -> Any:
        number = 0
        while True:
            yield f"{number} "
            number += 1

    run = runs.run(endless(), background=True)
    with runs.observe(run.id) as observer:
        observer.get(LONG)
        runs.request_abort(run.id)
        result = observer.result()
    assert result.finish_reason == "abort"
    assert result.text.startswith("0 1 2 ")
    assert runs.status(run.id) == "aborted"
    eventually(lambda: not pubsub.exists(control_topic(run.id)))


def test_an_early_abort_request_counts(runs: Runs) -> None:
    """Asked before anybody listened: the first look sees it, and on_abort calls back at once."""
    with runs.start() as run:
        runs.request_abort(run.id)
        assert run.aborted
        called = threading.Event()
        run.on_abort(called.set)
        assert called.wait(LONG)
    assert runs.observe(run.id).result().finish_reason == "abort"


@pytest.mark.parametrize("let_go", ["suspend", "hand_over"])
def test_an_abort_request_reaches_the_next_writer(runs: Runs, let_go: str) -> None:
    """Asked while the first writer listened, which then let go of the run: the writer that goes on sees it."""
    first = runs.start()
    assert not first.aborted
    runs.request_abort(first.id)
    if let_go == "suspend":
        first.suspend("c", "pay", {})
        first.close()
    else:
        first.hand_over()
    with runs.attach(first.id) as second:
        assert second.aborted
    assert runs.observe(first.id).result().finish_reason == "abort"


def test_raw_chunks_end_the_open_text_and_count(runs: Runs, pubsub: S2PubSub) -> None:
    """A raw chunk between two texts ends the first part; a raw delta's text is in the end's text; data- is neither."""
    run = runs.run(["a", {"type": "data-x", "data": 1}, "b", {"type": "source", "payload": {}}, {
        "type": "text-delta", "payload": {"id": "mine", "text": "c"}}])  # fmt: skip
    assert types(pubsub.get_history(run.topic)) == [
        "start", "text-start", "text-delta", "data-x", "text-delta", "text-end", "source", "text-delta", "finish",
    ]  # fmt: skip
    assert runs.observe(run.id).result().text == "abc"
    assert pubsub.get_history(run.topic)[-1].data["output"]["text"] == "abc"


def test_on_abort_calls_back(runs: Runs) -> None:
    """Callbacks run once each, on a thread of the library; one that raises does not stop the others."""
    with runs.start() as run:
        calls: list[str] = []
        done = threading.Event()
        run.on_abort(lambda: 1 / 0)
        run.on_abort(lambda: calls.append(threading.current_thread().name))
        run.on_abort(done.set)
        runs.request_abort(run.id)
        assert done.wait(LONG)
        assert len(calls) == 1
        assert calls[0].startswith("s2pubsub-")


def test_an_agent_streams_and_is_aborted_from_elsewhere(runs: Runs, make_pubsub: MakePubSub) -> None:
    """Stream answers at once; another client joins by the id, and stops it."""
    go = threading.Event()

    def generate(prompt: str) -> Any:
        yield prompt
        while not go.wait(0.01):
            yield "."

    with DurableAgent(generate, runs) as agent:
        observation = agent.stream("hello ")
        elsewhere = Runs(make_pubsub(), cleanup_timeout=0)
        with elsewhere.observe(observation.run_id) as joined:
            assert types([joined.get(LONG)]) == ["start"]
        elsewhere.request_abort(observation.run_id)
        result = observation.result()
        assert result.finish_reason == "abort"
        assert result.text.startswith("hello .")
        go.set()
        assert agent.stream("again", run_id="mine").result().text == "again"
        with pytest.raises(RunExistsError):
            agent.stream("x", run_id="mine")
    with pytest.raises(ClosedError):
        agent.stream("closed")


def test_an_agent_runs_no_more_than_its_workers(runs: Runs) -> None:
    """With one worker the second run waits, its start stored already, and then gets its turn."""
    go = threading.Event()

    def generate(name: str) -> Any:
        assert go.wait(LONG)
        yield name

    with DurableAgent(generate, runs, workers=1) as agent:
        first, second = agent.stream("a"), agent.stream("b")
        assert second.get(LONG).data["type"] == "start"
        go.set()
        assert first.result().text == "a"
        assert second.result().text == "b"


@pytest.mark.parametrize("closing", ["agent", "client"])
def test_a_closing_agent_ends_its_runs(make_pubsub: MakePubSub, runs: Runs, closing: str) -> None:
    """Runs that go on, and those that wait for a worker, end as failed when the process ends in an orderly way."""
    stay = threading.Event()

    def generate() -> Any:
        yield "a"
        stay.wait(LONG)
        yield "b"

    mine = make_pubsub()
    agent = DurableAgent(generate, Runs(mine, cleanup_timeout=0), workers=1)
    going, waiting = agent.stream(), agent.stream()
    for _ in range(3):
        going.get(LONG)
    going.close()
    waiting.close()
    closer = threading.Thread(target=lambda: (agent if closing == "agent" else mine).close(1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the generator cannot be interrupted
        closer.start()
        closer.join(LONG)
    for run_id in (going.run_id, waiting.run_id):
        result = runs.observe(run_id).result()
        assert (result.finish_reason, result.error) == (
            "error", {"name": "Error", "message": "the process that wrote this run is ending"},
        )  # fmt: skip
    stay.set()


def test_text_must_be_text(runs: Runs) -> None:
    """A piece that is no text is refused at once, and the run has its end all the same."""
    with pytest.raises(EncodeError, match="must be a str, not int"), runs.start("odd") as run:
        run.text(3)
    assert runs.status("odd") == "failed"


def test_a_failing_agent_ends_its_run(runs: Runs) -> None:
    """An error of the call itself, before the first chunk, ends the run as one of the iteration does."""

    def generate() -> Any:
        raise OSError("no model")

    with DurableAgent(generate, runs) as agent:
        result = agent.stream().result()
    assert (result.finish_reason, result.error["message"]) == ("error", "no model")


def test_the_active_run_of_a_conversation_holds_its_lease(runs: Runs, pubsub: S2PubSub) -> None:
    """active_run is the owner of the thread's lease, None where there is none."""
    run_id = str(uuid.uuid4())
    assert runs.active_run("user\0thread") is None
    with pubsub.leases.hold("user\0thread", run_id, 10):
        assert runs.active_run("user\0thread") == run_id
    assert runs.active_run("user\0thread") is None
