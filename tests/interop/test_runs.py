"""Durable runs that one language writes and the other observes: a real Mastra agent, and Python's own writer."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from s2pubsub import Event, RunNotFoundError, S2PubSub, TopicGoneError
from s2pubsub.observation import Observation
from s2pubsub.runs import Runs
from s2pubsub.topic import run_topic, thread_key
from tests.interop.node import Peer
from tests.waiting import LONG, eventually

pytestmark = pytest.mark.interop

AGENT_TO_PYTHON = "TypeScript's agent runs, Python observes"
PYTHON_TO_AGENT = "Python runs, TypeScript observes"
USAGE = {"inputTokens": 9, "outputTokens": 4, "totalTokens": 13}


@pytest.fixture
def runs(pubsub: S2PubSub) -> Runs:
    return Runs(pubsub, cleanup_timeout=0)


def new_id() -> str:
    return str(uuid.uuid4())


def kinds(events: list[Event]) -> list[str]:
    """Types of events; of chunks the chunk's type."""
    return [event.data["type"] if event.type == "chunk" else event.type.upper() for event in events]


def chunk(events: list[Event], kind: str) -> Any:
    """Payload of the first chunk of a type."""
    return next(e.data["payload"] for e in events if e.type == "chunk" and e.data["type"] == kind)


def until(observation: Observation, is_it: Callable[[Event], bool]) -> list[Event]:
    """Events up to the first that fits, each within the time that something immediate is given."""
    events = [observation.get(LONG)]
    while not is_it(events[-1]):
        events.append(observation.get(LONG))
    return events


def rest(observation: Observation) -> list[Event]:
    """Events up to the run's end."""
    return until(observation, lambda event: observation.end is not None)


def same_for_typescript(peer: Peer, run_id: str, events: list[Event]) -> None:
    """TypeScript has the same events in the run's history."""
    expected = [{"index": e.index, "type": e.type, "runId": e.run_id, "data": e.data} for e in events]
    outcome = peer.call("compare", topic=run_topic(run_id), expected=expected)
    assert outcome == {"count": len(events), "differing": []}


# TypeScript's agent runs.


@pytest.mark.shows("text", AGENT_TO_PYTHON)
def test_text_live_from_an_offset_and_after_the_end(peer: Peer, runs: Runs, core: tuple[int, ...]) -> None:
    """Python sees a piece while the model still writes, and the same run from an offset and after its end."""
    run_id = new_id()
    stream = peer.handle("stream", runId=run_id, say=f"text {run_id}")
    with runs.observe(run_id, wait_for_start=LONG) as live:
        seen = until(live, lambda event: kinds([event]) == ["text-delta"])
        assert runs.status(run_id) == "running"
        offset = live.next_index
        with runs.observe(run_id, offset=offset) as tail:
            peer.call("open", gate=run_id)
            seen += rest(live)
            assert rest(tail) == seen[offset:]
            assert tail.result().text == live.result().text
        result = live.result()
    theirs = peer.call("outcome", handle=stream)
    older = ("start", "ITERATION-COMPLETE") if core < (1, 51) else ()
    written = [
        *["start", "STEP-START", "response-metadata"],
        *["reasoning-start", "reasoning-delta", "reasoning-end"],
        *["text-start", "text-delta", "text-end"],
        *["text-start", "text-delta", "text-delta", "text-end"],
        *["source", "file", "step-finish", "ITERATION-COMPLETE", "FINISH"],
    ]
    assert kinds(seen) == [kind for kind in written if kind not in older]
    assert result.text == theirs["text"] == "Grüße, \U0001f44b"
    assert (result.end, result.finish_reason, result.error) == ("finish", "stop", None)
    assert {name: result.usage[name] for name in USAGE} == USAGE
    assert runs.status(run_id) == "finished"
    after = runs.observe(run_id)
    assert rest(after) == seen
    assert after.result() == result
    assert runs.observe(run_id, offset=after.next_index).result().text == result.text
    same_for_typescript(peer, run_id, seen)


@pytest.mark.shows("tools, and a tool's error", AGENT_TO_PYTHON)
def test_tools(peer: Peer, runs: Runs) -> None:
    """Calls, pieces of their arguments, a result and a tool's error arrive, and the steps in the end event."""
    run_id = new_id()
    stream = peer.handle("stream", runId=run_id, say="tools")
    with runs.observe(run_id, wait_for_start=LONG) as live:
        seen = rest(live)
        result = live.result()
    names = kinds(seen)
    assert "".join(e.data["payload"]["argsTextDelta"] for e in seen if kinds([e]) == ["tool-call-delta"]) == (
        '{"a":1,"b":2}'
    )
    assert names.count("tool-call") == names.count("STEP-START") == names.count("step-finish") == 2
    sum_of = chunk(seen, "tool-result")["result"]
    assert sum_of == {"sum": 3, "half": 0.5, "none": None, "\u043a\u043b\u044e\u0447": ["ü", "\u2028"]}
    assert chunk(seen, "tool-error")["toolName"] == "fail"
    assert chunk(seen, "step-finish")["stepResult"]["reason"] == "tool-calls"
    assert result.text == peer.call("outcome", handle=stream)["text"] == "It is 3."
    assert [step["finishReason"] for step in result.steps] == ["tool-calls", "stop"]
    assert result.usage["totalTokens"] == 26
    same_for_typescript(peer, run_id, seen)


@pytest.mark.shows("a model's error", AGENT_TO_PYTHON)
def test_error(peer: Peer, runs: Runs, core: tuple[int, ...]) -> None:
    """A model that breaks ends the run as failed, with what was written before."""
    run_id = new_id()
    peer.handle("stream", runId=run_id, say="error", options={"modelSettings": {"maxRetries": 0}})
    with runs.observe(run_id, wait_for_start=LONG) as live:
        seen = rest(live)
        result = live.result()
    assert (result.end, result.finish_reason) == (("finish", "error") if core >= (1, 51) else ("error", None))
    assert result.text == "So far"
    assert result.error is not None
    if core >= (1, 69):
        assert result.error["message"] == "the model broke"
    assert runs.status(run_id) == "failed"
    assert peer.call("compare", topic=run_topic(run_id), expected=[])["count"] == len(seen)


@pytest.mark.shows("approval", AGENT_TO_PYTHON)
@pytest.mark.parametrize("approved", [True, False])
def test_approval(peer: Peer, runs: Runs, approved: bool) -> None:
    """Python sees that a run waits for an approval, and, in the same observation, how it goes on with the answer."""
    run_id = new_id()
    peer.handle("stream", runId=run_id, say="approval")
    with runs.observe(run_id, wait_for_start=LONG) as live:
        seen = until(live, lambda event: event.type == "suspended")
        assert live.end is None
        assert runs.status(run_id) == "suspended"
        assert seen[-1].data["type"] == "approval"
        assert '"approved"' in seen[-1].data["resumeSchema"]
        assert chunk(seen, "tool-call-approval")["toolCallId"] == seen[-1].data["toolCallId"] == "call-pay"
        with runs.observe(run_id, stop_on_suspend=True) as short:
            assert rest(short) == seen
            assert short.end == "suspended"
        resumed = peer.handle("resume", runId=run_id, data={"approved": approved})
        seen += rest(live)
        result = live.result()
    assert result.text == peer.call("outcome", handle=resumed)["text"] == "Paid."
    assert runs.status(run_id) == "finished"
    if approved:
        assert chunk(seen, "tool-result")["result"] == {"paid": True}
    same_for_typescript(peer, run_id, seen)


@pytest.mark.shows("suspension by a tool", AGENT_TO_PYTHON)
def test_suspension(peer: Peer, runs: Runs, core: tuple[int, ...]) -> None:
    """Python sees what a tool waits for, and the result after the resumption."""
    run_id = new_id()
    peer.handle("stream", runId=run_id, say="suspension")
    with runs.observe(run_id, wait_for_start=LONG) as live:
        seen = until(live, lambda event: event.type == "suspended")
        assert (seen[-1].data["type"], seen[-1].data["suspendPayload"]) == ("suspension", {"choices": ["a", "b"]})
        assert chunk(seen, "tool-call-suspended")["suspendPayload"] == {"choices": ["a", "b"]}
        peer.handle("resume", runId=run_id, data={"choice": "b"})
        seen += rest(live)
        assert live.result().text == "Asked."
    if core >= (1, 51):  # older ones do not hand the answer to the tool
        assert chunk(seen, "tool-result")["result"] == {"chosen": "b"}
    same_for_typescript(peer, run_id, seen)


@pytest.mark.shows("abort", "Python asks, TypeScript's agent stops")
def test_python_aborts(peer: Peer, runs: Runs, core: tuple[int, ...]) -> None:
    """An abort that Python asks for stops the agent in Node, which writes the end with the partial text."""
    if core < (1, 58):
        pytest.skip("agents of cores before 1.58 take no abort requests")
    run_id = new_id()
    stream = peer.handle("stream", runId=run_id, say=f"abort {run_id}")
    with runs.observe(run_id, wait_for_start=LONG) as live:
        until(live, lambda event: kinds([event]) == ["text-delta"])
        runs.request_abort(run_id)
        rest(live)
        result = live.result()
    assert (result.finish_reason, result.text) == ("abort", "Before. ")
    assert runs.status(run_id) == "aborted"
    assert peer.call("outcome", handle=stream)["finishReason"] in ("abort", "aborted", None)


@pytest.mark.shows("clean-up by TypeScript", AGENT_TO_PYTHON)
def test_clean_up_by_typescript(peer: Peer, runs: Runs) -> None:
    """A run that TypeScript deletes after its end is gone for Python, which does not wait for it."""
    run_id = new_id()
    peer.handle("stream", runId=run_id, say="tools", cleanup=300)
    with runs.observe(run_id, wait_for_start=LONG) as live:
        assert live.result().text == "It is 3."
    eventually(lambda: runs.status(run_id) == "gone")
    with pytest.raises(RunNotFoundError):
        runs.observe(run_id)


@pytest.mark.shows("a run of a conversation, and its lease", AGENT_TO_PYTHON)
def test_run_of_a_conversation(peer: Peer, runs: Runs, pubsub: S2PubSub, core: tuple[int, ...]) -> None:
    """While an agent in Node answers in a conversation, Python finds the run by its lease and follows both topics."""
    if core < (1, 58):
        pytest.skip("runs of conversations hold no lease before core 1.58")
    run_id, key = new_id(), thread_key("user 1", "th/1")
    topic = pubsub.leases.thread_topic(key)
    with pubsub.subscribe(topic) as conversation:
        memory = {"memory": {"thread": "th/1", "resource": "user 1"}}
        stream = peer.start("stream", handle=run_id, runId=run_id, say=f"text {run_id}", options=memory)
        registered = conversation.get(LONG)
        assert (registered.type, registered.run_id) == ("run-registered", run_id)
        assert runs.active_run(key) == run_id
        stream.result(LONG)
        with runs.observe(run_id, wait_for_start=LONG) as live:
            until(live, lambda event: kinds([event]) == ["text-delta"])
            peer.call("open", gate=run_id)
            rest(live)
        parts = []
        while (event := conversation.get(LONG)).type != "run-completed":
            parts.append(event)
        assert {part.type for part in parts} == {"stream-part"}
        deltas = [p.data["part"]["payload"]["text"] for p in parts if p.data["part"]["type"] == "text-delta"]
        assert len(deltas) == 3
    eventually(lambda: runs.active_run(key) is None)


# Python runs.


def python_run(runs: Runs, run_id: str) -> None:
    """A whole run with a tool, odd text and a part of the application's own."""
    with runs.start(run_id) as run:
        run.step_start()
        run.tool_call("c1", "add", {"a": 1, "b": 2})
        run.tool_result("c1", "add", {"a": 1, "b": 2}, {"sum": 3})
        run.step_finish("tool-calls", usage=USAGE)
        run.step_start()
        run.chunk("reasoning-start", {"id": "r1"})
        run.chunk("reasoning-delta", {"id": "r1", "text": "hm"})
        run.chunk("reasoning-end", {"id": "r1"})
        for piece in ("Es ", "ist ", "3. ", "\U0001f44b"):
            run.text(piece)
        run.data("progress", {"pct": 100})
        run.chunk("source", {"id": "s1", "sourceType": "url", "title": "E", "url": "https://example.com/"})
        run.step_finish("stop", usage=USAGE)


@pytest.mark.shows("text, tools and data", PYTHON_TO_AGENT)
def test_mastra_observes_after_the_end(peer: Peer, runs: Runs) -> None:
    """The text, usage and finish promises of Mastra's own observe() resolve for a run that Python wrote."""
    run_id = new_id()
    python_run(runs, run_id)
    outcome = peer.call("outcome", handle=peer.handle("observe", runId=run_id))
    assert outcome["text"] == "Es ist 3. \U0001f44b"
    assert outcome["finishReason"] == "stop"
    assert {name: outcome["usage"][name] for name in USAGE} == {name: 2 * n for name, n in USAGE.items()}
    assert [part["type"] for part in outcome["chunks"]] == [
        *["start", "step-start", "tool-call", "tool-result", "step-finish"],
        *["step-start", "reasoning-start", "reasoning-delta", "reasoning-end"],
        *["text-start", "text-delta", "text-delta", "text-delta", "text-delta", "data-progress", "text-end", "source"],
        *["step-finish", "finish"],
    ]


@pytest.mark.shows("text, tools and data", PYTHON_TO_AGENT)
def test_mastra_observes_live_and_from_an_offset(peer: Peer, runs: Runs) -> None:
    """Mastra sees the pieces as Python writes them, and from an offset those behind it."""
    run_id = new_id()
    with runs.start(run_id) as run:
        run.text("one ")
        handle = peer.handle("observe", runId=run_id)
        peer.call("saw", handle=handle, type="text-delta")
        offset = run.text("two ").result(LONG).index
        tail = peer.handle("observe", runId=run_id, offset=offset)
        peer.call("saw", handle=tail, type="text-delta")
        run.text("three")
    outcome = peer.call("outcome", handle=handle)
    assert (outcome["text"], outcome["finishReason"]) == ("one two three", "stop")
    pieces = [c["payload"]["text"] for c in peer.call("outcome", handle=tail)["chunks"] if c["type"] == "text-delta"]
    assert pieces == ["two ", "three"]


@pytest.mark.shows("an error", PYTHON_TO_AGENT)
def test_mastra_observes_a_failure(peer: Peer, runs: Runs) -> None:
    """A run that fails in Python ends for Mastra with the error and the text so far; nothing hangs."""
    run_id = new_id()
    with pytest.raises(ValueError, match="bad input"), runs.start(run_id) as run:
        run.text("so far")
        raise ValueError("bad input")
    outcome = peer.call("outcome", handle=peer.handle("observe", runId=run_id))
    assert (outcome["text"], outcome["finishReason"]) == ("so far", "error")
    errors = [part["payload"]["error"] for part in outcome["chunks"] if part["type"] == "error"]
    assert errors == [{"name": "ValueError", "message": "bad input"}]


@pytest.mark.shows("approval and suspension", PYTHON_TO_AGENT)
@pytest.mark.parametrize("kind", ["approval", "suspension"])
def test_mastra_observes_a_suspension(peer: Peer, runs: Runs, kind: Any) -> None:
    """Mastra is told that a run of Python waits, and sees how another writer resumes it."""
    run_id = new_id()
    payload = {"choices": ["a"]} if kind == "suspension" else None
    with runs.start(run_id) as run:
        run.text("Shall I? ")
        run.tool_call("c1", "pay", {"eur": 5})
        handle = peer.handle("observe", runId=run_id)
        run.suspend("c1", "pay", {"eur": 5}, kind=kind, suspend_payload=payload)
    peer.call("saw", handle=handle, type="tool-call-approval" if kind == "approval" else "tool-call-suspended")
    told = peer.call("suspensions", handle=handle, count=1)
    assert [(told_of["toolCallId"], told_of["type"]) for told_of in told] == [("c1", kind)]
    with runs.attach(run_id) as run:
        run.tool_result("c1", "pay", {"eur": 5}, {"paid": True})
        run.text("Paid.")
    outcome = peer.call("outcome", handle=handle)
    assert (outcome["text"], outcome["finishReason"]) == ("Shall I? Paid.", "stop")


@pytest.mark.shows("abort", "TypeScript asks, Python stops")
@pytest.mark.parametrize(("by", "since"), [("observer", (1, 58)), ("id", (1, 63))])
def test_typescript_aborts(peer: Peer, runs: Runs, core: tuple[int, ...], by: str, since: tuple[int, ...]) -> None:
    """An abort that TypeScript asks for, as an observer or by the run's id, reaches Python's writer.

    Mastra's observer gets the partial text.
    """
    if core < since:
        pytest.skip("such cores ask no other process")
    run_id = new_id()
    asked = threading.Event()
    with runs.start(run_id) as run:
        run.on_abort(asked.set)
        run.text("Before. ")
        handle = peer.handle("observe", runId=run_id)
        peer.call("saw", handle=handle, type="text-delta")
        if by == "observer":
            peer.call("abort", handle=handle)
        else:
            peer.call("requestAbort", runId=run_id)
        assert asked.wait(LONG)
        assert run.aborted
    outcome = peer.call("outcome", handle=handle)
    assert (outcome["text"], outcome["finishReason"]) == ("Before. ", "abort")
    assert runs.status(run_id) == "aborted"


@pytest.mark.shows("a finish that was cut to fit a record", PYTHON_TO_AGENT)
def test_mastra_reads_an_end_that_was_cut(peer: Peer, runs: Runs) -> None:
    """A run whose end would not fit a record ends for Mastra, too, with the whole text."""
    run_id = new_id()
    text = "x" * 300_000
    with runs.start(run_id) as run:
        for _ in range(4):
            run.step_start()
            run.text(text)
            run.step_finish("stop", usage=USAGE)
    outcome = peer.call("outcome", handle=peer.handle("observe", runId=run_id))
    assert outcome["text"] == 4 * text


@pytest.mark.shows("clean-up by TypeScript", PYTHON_TO_AGENT)
def test_an_observer_of_typescript_deletes_a_run_of_python(peer: Peer, runs: Runs) -> None:
    """Mastra's observer deletes a run after its end, also one that Python wrote: Python's readers are told."""
    run_id = new_id()
    python_run(runs, run_id)
    peer.call("outcome", handle=peer.handle("observe", runId=run_id, cleanup=300))
    eventually(lambda: runs.status(run_id) == "gone")
    with pytest.raises(RunNotFoundError):
        runs.attach(run_id)


@pytest.mark.shows("clean-up by TypeScript", PYTHON_TO_AGENT)
def test_a_live_observer_is_told_of_a_deletion(peer: Peer, runs: Runs) -> None:
    """Python's observer of a run that TypeScript deletes meanwhile raises instead of waiting for ever."""
    run_id = new_id()
    with runs.start(run_id) as run, runs.observe(run_id) as live:
        run.text("so far")
        until(live, lambda event: kinds([event]) == ["text-delta"])
        peer.call("clear", topic=run_topic(run_id))
        with pytest.raises(TopicGoneError):
            rest(live)
        run.give_up()
