"""What events look like in each format. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from s2pubsub import Event
from s2pubsub.sse import headers, mask_errors
from s2pubsub.sse.formats import EventsFormat, MastraFormat, UIMessageFormat, make_format
from s2pubsub.sse.masking import MASKED
from s2pubsub.sse.ui_message import Parts
from tests.web.event_source import parse


def event(type: str, data: Any, index: int | None = 3, **more: Any) -> Event:
    moment = datetime(2026, 3, 1, 12, 0, 0, 123000, tzinfo=UTC)
    return Event(topic="t", type=type, data=data, run_id="run-7", id="e", created_at=moment, index=index, **more)


def chunk(type: str, **payload: Any) -> Event:
    return event("chunk", {"type": type, "runId": "run-7", "from": "AGENT", "payload": payload})


def finish(reason: str, **output: Any) -> Event:
    return event("finish", {"output": output, "stepResult": {"reason": reason}})


CALL = {"toolCallId": "c1", "toolName": "pay"}
META = {"providerMetadata": {"x": {"y": 1}}, "providerExecuted": True, "dynamic": True}

PARTS = [
    (chunk("start", id="agent", messageId="m1"), [{"type": "start", "messageId": "m1"}]),
    (event("step-start", {"type": "step-start", "payload": {}}), [{"type": "start-step"}]),
    (chunk("step-finish", stepResult={}, output={}, metadata={}), [{"type": "finish-step"}]),
    (chunk("text-start", id="t"), [{"type": "text-start", "id": "t"}]),
    (chunk("text-delta", id="t", text="\ud83d"), [{"type": "text-delta", "id": "t", "delta": "\ud83d"}]),
    (chunk("text-end", id="t"), [{"type": "text-end", "id": "t"}]),
    (chunk("reasoning-start", id="r"), [{"type": "reasoning-start", "id": "r"}]),
    (chunk("reasoning-delta", id="r", text="a"), [{"type": "reasoning-delta", "id": "r", "delta": "a"}]),
    (
        chunk("reasoning-end", id="r", providerMetadata={"s": {}}),
        [{"type": "reasoning-end", "id": "r", "providerMetadata": {"s": {}}}],
    ),
    (chunk("tool-call-input-streaming-start", **CALL), [{"type": "tool-input-start", **CALL}]),
    (
        chunk("tool-call-delta", argsTextDelta='{"a', toolCallId="c1"),
        [{"type": "tool-input-delta", "toolCallId": "c1", "inputTextDelta": '{"a'}],
    ),
    (chunk("tool-call-input-streaming-end", toolCallId="c1"), []),
    (chunk("tool-call", **CALL, args={"n": 1}), [{"type": "tool-input-available", **CALL, "input": {"n": 1}}]),
    (
        chunk("tool-call", **CALL, args={}, **META),
        [{"type": "tool-input-available", **CALL, "input": {}, **META}],
    ),
    (
        chunk("tool-result", **CALL, args={}, result=[1]),
        [{"type": "tool-output-available", "toolCallId": "c1", "output": [1]}],
    ),
    (
        chunk("tool-error", **CALL, args={}, error={"message": "no money", "name": "E"}),
        [{"type": "tool-output-error", "toolCallId": "c1", "errorText": "no money"}],
    ),
    (chunk("tool-output-denied", **CALL), [{"type": "tool-output-denied", "toolCallId": "c1"}]),
    (
        chunk("tool-call-approval", **CALL, args={"n": 1}, resumeSchema="{}"),
        [
            {"type": "tool-approval-request", "approvalId": "run-7::c1", "toolCallId": "c1"},
            {
                "type": "data-tool-call-approval",
                "id": "c1",
                "data": {
                    "state": "data-tool-call-approval",
                    "runId": "run-7",
                    **CALL,
                    "args": {"n": 1},
                    "resumeSchema": "{}",
                },
            },
        ],
    ),
    (
        chunk("tool-call-suspended", **CALL, args={}, suspendPayload={"q": 1}, resumeSchema="{}"),
        [
            {
                "type": "data-tool-call-suspended",
                "id": "c1",
                "data": {
                    "state": "data-tool-call-suspended",
                    "runId": "run-7",
                    **CALL,
                    "suspendPayload": {"q": 1},
                    "resumeSchema": "{}",
                },
            }
        ],
    ),
    (
        chunk("source", id="s", sourceType="url", title="T", url="https://example.org"),
        [{"type": "source-url", "sourceId": "s", "url": "https://example.org", "title": "T"}],
    ),
    (
        chunk("source", id="s", sourceType="document", title="T", mimeType="text/plain", filename="f"),
        [{"type": "source-document", "sourceId": "s", "mediaType": "text/plain", "title": "T", "filename": "f"}],
    ),
    (
        chunk("file", data="QUJD", mimeType="image/png"),
        [{"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,QUJD"}],
    ),
    (
        event("chunk", {"type": "data-progress", "data": {"pct": 40}, "id": "p", "transient": True}),
        [{"type": "data-progress", "data": {"pct": 40}, "id": "p", "transient": True}],
    ),
    (
        chunk("tripwire", reason="r", retry=False, metadata={}, processorId="p"),
        [{"type": "data-tripwire", "data": {"reason": "r", "retry": False, "metadata": {}, "processorId": "p"}}],
    ),
    (chunk("background-task-started", id=1), [{"type": "data-background-task-started", "data": {"id": 1}}]),
    (chunk("error", error={"message": "bad"}), [{"type": "error", "errorText": "bad"}]),
    (chunk("error", error={}), [{"type": "error", "errorText": "Unknown error"}]),
    (event("error", {"error": {"message": "bad"}}), [{"type": "error", "errorText": "bad"}]),
    (finish("length"), [{"type": "finish", "finishReason": "length"}]),
    (finish("retry"), [{"type": "finish", "finishReason": "other"}]),
    (finish("abort"), [{"type": "abort"}, {"type": "finish", "finishReason": "other"}]),
    (event("error", {"error": "plain"}), [{"type": "error", "errorText": "plain"}]),
    (event("abort", {}), [{"type": "abort"}]),
    (chunk("abort"), [{"type": "abort"}]),
    (event("finish", None), [{"type": "finish", "finishReason": "other"}]),
    (chunk("response-metadata", id="x"), []),
    (chunk("raw", x=1), []),
    (event("iteration-complete", {}), []),
    (event("suspended", {}), []),
    (event("ownership-claimed", {}), []),
    (event("chunk", None), []),
    (event("chunk", {"type": 5}), []),
    (event("chunk", {"type": "text-delta", "payload": None}), []),
]


@pytest.mark.parametrize(("given", "parts"), PARTS, ids=lambda value: "" if isinstance(value, list) else None)
def test_each_event_has_its_parts(given: Event, parts: list[dict[str, Any]]):
    """The mapping from Mastra's chunks and events to the AI SDK's parts; what has none is dropped."""
    assert list(Parts().of(given)) == parts


def test_an_abort_is_told_once():
    """A writer's abort chunk before its end is the abort; the end does not repeat it."""
    parts = Parts()
    assert list(parts.of(chunk("abort"))) == [{"type": "abort"}]
    assert list(parts.of(finish("abort"))) == [{"type": "finish", "finishReason": "other"}]


def test_the_ui_stream_ends_with_done():
    """Frames are bare data lines, halves of characters survive, and the last frame is [DONE]."""
    format = UIMessageFormat()
    body = format.start(None) + format.event(chunk("text-delta", id="t", text="\ud83d")) + format.end("finish")
    first, last = parse(body)
    assert (first.type, first.json) == ("message", {"type": "text-delta", "id": "t", "delta": "\ud83d"})
    assert last.data == "[DONE]"
    assert b"id:" not in body


def test_mastras_format_is_bare_envelopes():
    """Every block begins with ``data: `` or is a comment; the envelope is the stored one, unknown keys and all."""
    format = MastraFormat()
    body = format.start(None) + format.event(event("chunk", {"n": 1}, extra={"producedAt": 5})) + format.end("finish")
    blocks = [block for block in body.decode().split("\n\n") if block]
    assert all(block.startswith(("data: ", ": ")) and "\n" not in block for block in blocks)
    envelope, done = parse(body)
    assert envelope.json == {
        "type": "chunk",
        "runId": "run-7",
        "data": {"n": 1},
        "id": "e",
        "createdAt": "2026-03-01T12:00:00.123Z",
        "deliveryAttempt": 1,
        "index": 3,
        "producedAt": 5,
    }
    assert done.data == "[DONE]"


@pytest.mark.parametrize("type", ["error", "end", "failure", "open"])
def test_names_with_another_meaning_are_marked(type: str):
    """An event called ``error`` must not look like a broken connection, nor ``end`` like our end."""
    (message,) = parse(EventsFormat(1.0).event(event(type, 1)))
    assert message.type == f"event-{type}"


@pytest.mark.parametrize("type", ["x\ndata: forged\n\n", "x\revent: y", "x\0", "x\r\n\r\ny", "\ud83d"])
@pytest.mark.parametrize("data", ["\r", "a\n\nb", "data: x", {"k": "\r\n\r\n"}, "\u2028"])
def test_one_event_is_one_message(type: str, data: Any):
    """C53: neither the type nor the data of an event can add a line, a field or a message; the data arrives equal."""
    (message,) = parse(EventsFormat(1.0).event(event(type, data)))
    assert message.json == data
    assert message.last_event_id == "3"


def test_the_retry_time_is_sent_once():
    """The first block tells the browser when to come back."""
    format = EventsFormat(1.5)
    assert b"retry: 1500\n" in format.event(event("a", 1))
    assert b"retry" not in format.event(event("a", 1))


def test_local_events_have_no_id():
    """An event without an index leaves the browser's position where it is."""
    assert b"id:" not in EventsFormat(1.0).event(event("a", 1, index=None))


SECRET = "connect to db-7.internal as root failed"


@pytest.mark.parametrize(
    "given",
    [
        chunk("error", error={"name": "E", "message": SECRET, "stack": SECRET}),
        chunk("error", error=SECRET),
        chunk("tool-error", **CALL, args={}, error=SECRET),
        chunk("tool-output", toolCallId="c1", output={"type": "error", "payload": {"error": {"message": SECRET}}}),
        event("error", {"error": {"message": SECRET}}),
        finish("error", error=SECRET, steps=[{"toolResults": [{"error": SECRET}]}]),
        event("iteration-complete", {"toolResults": [{"toolCallId": "c1", "error": {"message": SECRET}}]}),
        event("run-failed", {"error": SECRET}),
        event("stream-part", {"part": {"type": "error", "payload": {"error": {"message": SECRET}}}}),
    ],
)
def test_error_texts_are_masked(given: Event):
    """Texts of errors name hosts and files; none of them goes to a browser."""
    masked = mask_errors(given)
    assert SECRET not in repr(masked)
    assert MASKED in repr(masked)
    assert (masked.type, masked.index) == (given.type, given.index)


@pytest.mark.parametrize("given", [each for each, _ in PARTS if "error" not in repr(each)])
def test_what_has_no_error_is_left_alone(given: Event):
    """Masking returns the very same event where there is nothing to mask."""
    assert mask_errors(given) is given


def test_headers_belong_to_the_response_alone():
    """C55: no caching, no buffering, no compressing; nothing that belongs to the connection."""
    fields = headers("events")
    assert fields["Content-Type"] == "text/event-stream"
    assert fields["Cache-Control"] == "no-cache, no-transform"
    assert fields["X-Accel-Buffering"] == "no"
    assert fields["Content-Encoding"] == "identity"
    assert not {"connection", "keep-alive", "transfer-encoding"} & {name.lower() for name in fields}
    assert headers("ui-message-stream")["x-vercel-ai-ui-message-stream"] == "v1"


def test_an_unknown_format_is_refused():
    """A misspelt format is an error that names the known ones."""
    with pytest.raises(ValueError, match="ui-message-stream"):
        make_format("ui", 1.0)  # type: ignore[arg-type]
