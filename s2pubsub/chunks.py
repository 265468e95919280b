"""The shapes of a run's events, as Mastra writes and reads them: builders, and a check for raw ones.

A TypeScript reader hangs for good on a malformed event, even when the end follows it. What it needs (facts of
``@mastra/core`` 1.46 to 1.71): a chunk that is not ``data-*`` has an object ``payload``; a ``step-finish`` chunk's
payload has the objects ``stepResult``, ``output`` and ``metadata``; a ``finish`` event has the objects ``output`` and
``stepResult``; an ``error`` event has the object ``error``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from s2pubsub.errors import EncodeError
from s2pubsub.event import Event

FinishReason = Literal[
    "stop", "length", "content-filter", "tool-calls", "error", "other", "abort", "tripwire", "retry", "unknown"
]

END_TYPES = frozenset({"finish", "error", "abort"})
"""Event types that end a run for its readers. ``abort`` is read, but never written."""

_STEP_FINISH_OBJECTS = ("stepResult", "output", "metadata")


def chunk(run_id: str, type: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a ``chunk`` event with a payload."""
    return {"type": type, "runId": run_id, "from": "AGENT", "payload": dict(payload)}


def data_chunk(name: str, data: Any, *, id: str | None = None, transient: bool | None = None) -> dict[str, Any]:
    """The data of a ``chunk`` event that carries an application's own ``data-<name>`` part."""
    part: dict[str, Any] = {"type": f"data-{name}", "data": data}
    if id is not None:
        part["id"] = id
    if transient is not None:
        part["transient"] = transient
    return part


def usage(input_tokens: int = 0, output_tokens: int = 0, total_tokens: int | None = None) -> dict[str, int]:
    """Token counts as events carry them; the total is the sum where it is not given."""
    total = input_tokens + output_tokens if total_tokens is None else total_tokens
    return {"inputTokens": input_tokens, "outputTokens": output_tokens, "totalTokens": total}


def total_usage(steps: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The sum of the steps' token counts, as far as they are numbers: models leave counts out, or nest them."""
    used = [step["usage"] for step in steps]
    counts = ([one.get(key) for one in used] for key in ("inputTokens", "outputTokens"))
    return usage(*(sum(count for count in each if type(count) is int) for each in counts))


def error_text(error: BaseException) -> str:
    """What an error says; the run ends as well by one that cannot say it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # whatever a user's class raises here
        return "its text cannot be had"


def step_result(reason: str, *, is_continued: bool = False) -> dict[str, Any]:
    """How a step or a run ended."""
    return {"reason": reason, "warnings": [], "isContinued": is_continued}


def finish(
    text: str, reason: str, run_usage: Mapping[str, Any] | None, steps: Iterable[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """The data of a ``finish`` event."""
    output = {"text": text, "usage": dict(run_usage or usage()), "steps": [dict(step) for step in steps]}
    return {"output": output, "stepResult": step_result(reason)}


def suspended(
    tool_call_id: str,
    tool_name: str,
    args: Any,
    kind: Literal["approval", "suspension"],
    resume_schema: Mapping[str, Any],
    suspend_payload: Any = None,
) -> dict[str, Any]:
    """The data of a ``suspended`` event. The schema of what a resumption takes travels as text."""
    data = {
        "toolCallId": tool_call_id,
        "toolName": tool_name,
        "args": args,
        "type": kind,
        "resumeSchema": json.dumps(resume_schema, separators=(",", ":")),
    }
    return data if suspend_payload is None else {**data, "suspendPayload": suspend_payload}


def check(type: str, data: Any) -> None:
    """Raise EncodeError if TypeScript readers would hang on an event of ``type`` with ``data``, or lose its text."""
    if type == "chunk":
        _check_chunk(data)
    elif type == "finish":
        _need_objects(data, "data", ("output", "stepResult"))
    elif type == "error":
        _need_objects(data, "data", ("error",))
    elif type == "abort":
        raise EncodeError("type", "'abort' events lose the text for their readers; end with finish(reason='abort')")
    elif type == "suspended":
        _need_objects(data, "data", ())
        if not isinstance(data.get("resumeSchema"), str):
            raise EncodeError("data.resumeSchema", "must be a JSON schema as text")


def _check_chunk(data: Any) -> None:
    if data is None:
        return
    if not isinstance(data, dict) or not isinstance(data.get("type"), str):
        raise EncodeError("data", "a chunk must be an object with a text 'type'")
    if data["type"].startswith("data-"):
        return
    _need_objects(data, "data", ("payload",))
    if data["type"] == "step-finish":
        _need_objects(data["payload"], "data.payload", _STEP_FINISH_OBJECTS)


def _need_objects(value: Any, path: str, names: Iterable[str]) -> None:
    if not isinstance(value, dict):
        raise EncodeError(path, "must be an object")
    for name in names:
        if not isinstance(value.get(name), dict):
            raise EncodeError(f"{path}.{name}", "must be an object, or TypeScript readers wait for ever")


def is_end(event: Event) -> bool:
    """Whether ``event`` ends its run."""
    return event.type in END_TYPES


def finish_reason(event: Event) -> str | None:
    """The reason that a ``finish`` event gives."""
    result = event.data.get("stepResult") if isinstance(event.data, dict) else None
    reason = result.get("reason") if isinstance(result, dict) else None
    return reason if isinstance(reason, str) else None


def delta_text(event: Event) -> str | None:
    """The text that ``event`` adds to the answer, None for other events."""
    return text_of(event.data) if event.type == "chunk" else None


def text_of(data: Any) -> str | None:
    """The text of a ``text-delta`` chunk's data, None for other chunks."""
    if not isinstance(data, dict) or data.get("type") != "text-delta":
        return None
    payload = data.get("payload")
    text = payload.get("text") if isinstance(payload, dict) else None
    return text if isinstance(text, str) else None


def join_text(parts: Iterable[str]) -> str:
    """The parts as one text. TypeScript may split a character into two halves over two parts; they are joined.

    A half without its other half becomes U+FFFD, since it cannot be sent on.
    """
    return "".join(parts).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
