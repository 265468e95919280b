"""Every event that runs and conversations have, with the payloads that TypeScript writes; and odd values of data."""

from __future__ import annotations

from typing import Any

RUN = "run-7"
_TOOL = {"toolCallId": "c1", "toolName": "pay", "args": {"eur": 5}}
_SCHEMA = '{"type":"object","properties":{"approved":{"type":"boolean"}},"required":["approved"]}'
_USAGE = {"inputTokens": 9, "outputTokens": 4, "totalTokens": 13, "cachedInputTokens": 0, "reasoningTokens": 1}
_STEP = {"text": "It is 3.", "toolCalls": [_TOOL], "toolResults": [], "usage": _USAGE, "finishReason": "stop"}
_SIGNAL = {
    "id": "s1",
    "type": "user-message",
    "tagName": "user",
    "contents": [{"type": "text", "text": "go on"}],
    "createdAt": "2026-03-01T12:00:00.123Z",
    "acceptedAt": "2026-03-01T12:00:00.456Z",
    "attributes": {},
    "metadata": {"from": "web"},
    "__isCreatedSignal": True,
}
_STREAM = "9f1c1b1a-0000-4000-8000-000000000001"
_SOURCE = "9f1c1b1a-0000-4000-8000-0000000000aa"

PAYLOADS: list[tuple[str, dict[str, Any]]] = [
    ("start", {"id": "agent", "messageId": "m1"}),
    ("response-metadata", {"id": "r", "modelId": "m", "timestamp": "2026-01-01T00:00:00.000Z"}),
    ("text-start", {"id": "t1", "providerMetadata": {"x": {"y": None}}}),
    ("text-delta", {"id": "t1", "text": "Hel"}),
    ("text-delta", {"id": "t1", "text": ""}),
    ("text-end", {"type": "text-end", "id": "t1"}),
    ("reasoning-start", {"id": "r1"}),
    ("reasoning-delta", {"id": "r1", "text": "hm"}),
    ("reasoning-end", {"id": "r1"}),
    ("tool-call-input-streaming-start", {"toolCallId": "c1", "toolName": "pay", "dynamic": True}),
    ("tool-call-delta", {"toolCallId": "c1", "toolName": "pay", "argsTextDelta": '{"eur":'}),
    ("tool-call-input-streaming-end", {"toolCallId": "c1"}),
    ("tool-call", {**_TOOL, "providerExecuted": False}),
    ("tool-result", {**_TOOL, "result": {"paid": True}}),
    ("tool-result", {**_TOOL, "result": None}),
    ("tool-error", {**_TOOL, "error": {"name": "Error", "message": "no money", "stack": "Error: no money\n    at f"}}),
    ("tool-call-approval", {**_TOOL, "resumeSchema": _SCHEMA}),
    ("tool-call-suspended", {**_TOOL, "resumeSchema": _SCHEMA, "suspendPayload": {"choices": ["a", "b"]}}),
    ("tool-output", {"toolCallId": "c1", "output": {"type": "text-delta", "payload": {"id": "n", "text": "nested"}}}),
    ("tool-output-denied", {"toolCallId": "c1", "toolName": "pay"}),
    ("source", {"id": "s1", "sourceType": "url", "title": "Example", "url": "https://example.com/"}),
    ("source", {"id": "s2", "sourceType": "document", "title": "D", "mimeType": "text/plain", "filename": "d.txt"}),
    ("file", {"data": "aGk=", "mimeType": "text/plain"}),
    (
        "step-finish",
        {
            "stepResult": {"reason": "stop", "isContinued": False},
            "output": {"usage": _USAGE},
            "metadata": {},
            "messages": {"all": [], "user": [], "nonUser": []},
            "type": "finish",
            "_durableStepContent": [{"type": "text", "text": "It is 3."}],
        },
    ),
    ("error", {"error": {"name": "Error", "message": "the model broke"}}),
    ("error", {"error": {}}),
    ("tripwire", {"reason": "blocked", "retry": False, "metadata": None, "processorId": "p"}),
    ("abort", {}),
    ("raw", {"any": ["thing", 1]}),
    ("object", {"partial": {"a": 1}}),
    ("background-task-started", {"taskId": "b1", "toolCallId": "c1"}),
    ("is-task-complete", {"complete": True}),
    ("goal", {"reached": False}),
    ("a-chunk-of-tomorrow", {"what": "ever"}),
]

CHUNKS: list[dict[str, Any]] = [
    {"type": kind, "runId": RUN, "from": "AGENT", "payload": payload} for kind, payload in PAYLOADS
] + [
    {"type": "data-progress", "data": {"pct": 40}},
    {"type": "data-progress", "id": "p", "data": None, "transient": True},
    {"type": "data-signal", "data": {"a": 1}, "metadata": {"kept": True}},
    {"type": "data-user-message", "data": "hi"},
]

RUN_EVENTS: list[tuple[str, Any]] = [("chunk", chunk) for chunk in CHUNKS] + [
    (
        "step-start",
        {
            "type": "step-start",
            "runId": RUN,
            "from": "AGENT",
            "payload": {"stepId": "s", "messageId": "m1", "startedAt": 1767225600000, "request": {}, "warnings": []},
        },
    ),
    ("step-start", {"type": "step-start", "stepId": "s", "request": {}, "warnings": []}),
    (
        "iteration-complete",
        {
            "iteration": 1,
            "maxIterations": 5,
            "text": "",
            "toolCalls": [{**_TOOL, "activeTools": None}],
            "toolResults": [{**_TOOL, "result": 3, "approval": {"approved": True}}],
            "isFinal": False,
            "finishReason": "tool-calls",
            "runId": RUN,
            "agentId": "a",
            "agentName": "A",
            "threadId": "th",
            "resourceId": "user 1",
        },
    ),
    ("suspended", {**_TOOL, "type": "approval", "resumeSchema": _SCHEMA}),
    ("suspended", {**_TOOL, "type": "suspension", "suspendPayload": {"q": [1]}, "resumeSchema": _SCHEMA}),
    ("error", {"error": {"name": "TypeError", "message": "x is not a function", "stack": "TypeError: x"}}),
    ("abort", {"steps": [], "text": "so far"}),
    ("step-finish", {"stepResult": {"reason": "stop"}}),
    ("ownership-claimed", {"generation": 2}),
    (
        "finish",
        {
            "output": {"text": "It is 3.", "usage": _USAGE, "steps": [_STEP]},
            "stepResult": {"reason": "stop", "warnings": [], "isContinued": False, "totalUsage": _USAGE},
        },
    ),
    ("abort-request", {}),
]

_SEGMENT = {"runId": RUN, "streamId": _STREAM}
_ASKED = {"requestId": "q1", "sourceId": _SOURCE}
THREAD_DATA: list[dict[str, Any]] = [
    {"type": "run-registered", **_SEGMENT, "streamSeq": 1, "sourceId": _SOURCE},
    {"type": "stream-part", **_SEGMENT, "part": CHUNKS[3], "sourceId": _SOURCE},
    {"type": "stream-part", **_SEGMENT, "part": {"type": "finish", "payload": {}}, "sourceId": _SOURCE},
    {"type": "run-completed", **_SEGMENT, "persisted": True},
    {"type": "run-completed", "runId": RUN},
    {"type": "run-suspended", **_SEGMENT},
    {"type": "run-aborted", **_SEGMENT},
    {"type": "run-discarded", "runId": RUN},
    {"type": "run-abort-requested", **_SEGMENT, "clearPendingSignals": True},
    {"type": "run-failed", **_SEGMENT, "error": "it broke"},
    {"type": "signal-enqueued", "runId": RUN, "signal": _SIGNAL, "sourceId": _SOURCE, "preRun": False},
    {"type": "signals-cancelled", "signalIds": ["s1", "s2"]},
    {
        "type": "idle-signal-enqueued",
        "runId": RUN,
        "signal": _SIGNAL,
        **_ASKED,
        "replyTopic": f"agent.thread-stream.u%00t.idle-acceptance.{_STREAM}",
        "targetSourceId": _STREAM,
        "expiresAt": 1767225605000,
    },
    {"type": "idle-signal-accepted", "runId": RUN, **_ASKED},
    {"type": "idle-signal-rejected", "runId": RUN, **_ASKED, "error": "busy"},
    {"type": "thread-owner-request", "key": "u\0t", **_ASKED, "replyTopic": f"agent.thread-owner-discovery.{_STREAM}"},
    {"type": "thread-owner-response", "key": "u\0t", **_ASKED},
    {"type": "thread-peer-response", "peer": {"name": "p"}, **_ASKED},
]
THREAD_EVENTS: list[tuple[str, Any]] = [(str(data["type"]), data) for data in THREAD_DATA]


def deep(levels: int) -> Any:
    """Lists within lists."""
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


ODD_VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    "",
    {},
    [],
    -0.0,
    0.1,
    1e-7,
    5e-324,
    1.7976931348623157e308,
    2**53 - 1,
    -(2**53 - 1),
    [None, [None], {"": None}],
    {"__proto__": 1, "constructor": 2, "10": 3, "9": 4, "ключ": 5, "a b": 6},
    '\0\x1f\x7f\u2028\u2029\ufeff\\"/',
    "Grüße 👋🏽 \U0010ffff",
    deep(90),
    [[i] for i in range(1000)],
]
