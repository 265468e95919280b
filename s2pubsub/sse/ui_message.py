"""A run's events as parts of the AI SDK's UI message stream. Pure.

The browser's side fails on a delta without its start and on a tool's output without its input, so a stream begins at
index 0 always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from s2pubsub.chunks import finish_reason
from s2pubsub.event import Event

Part = dict[str, Any]

_REASONS = frozenset({"stop", "length", "content-filter", "tool-calls", "error", "other"})
"""Finish reasons that the AI SDK knows; all others become ``other``."""

_EXTRAS = ("providerMetadata", "providerExecuted", "dynamic")
"""Payload keys that are copied as they are."""


class Parts:
    """Turns the events of one run into parts."""

    def __init__(self) -> None:
        self._aborted = False

    def of(self, event: Event) -> Iterator[Part]:
        """The parts of ``event``, in order; none for events that the AI SDK has no part for."""
        data = event.data if isinstance(event.data, dict) else {}
        if event.type == "chunk":
            yield from self._of_chunk(data, event.run_id)
        elif event.type == "step-start":
            yield {"type": "start-step"}
        elif event.type == "finish":
            reason = finish_reason(event)
            if reason == "abort" and not self._aborted:
                yield {"type": "abort"}
            yield {"type": "finish", "finishReason": reason if reason in _REASONS else "other"}
        elif event.type == "error":
            yield {"type": "error", "errorText": error_text(data.get("error"))}
        elif event.type == "abort":
            yield {"type": "abort"}

    def _of_chunk(self, data: Mapping[str, Any], run_id: str) -> Iterator[Part]:
        type = data.get("type")
        if not isinstance(type, str):
            return
        if type.startswith("data-"):
            yield _pick(data, "type", "data", "id", "transient")
            return
        payload = data.get("payload")
        if not isinstance(payload, dict):
            return
        if type == "abort":
            self._aborted = True
        if type in _TOOL_DATA:
            yield from _tool_data(type, payload, str(data.get("runId") or run_id))
        elif type.startswith("background-task-"):
            yield {"type": f"data-{type}", "data": payload}
        elif (build := _BUILDERS.get(type)) is not None:
            part = build(payload)
            yield {**part, **{key: payload[key] for key in _EXTRAS if key in payload and key not in part}}


def error_text(error: Any) -> str:
    """The text of an error as events carry it: text, or an object with ``message``."""
    if isinstance(error, dict):
        error = error.get("message")
    return error if isinstance(error, str) and error else "Unknown error"


def _pick(data: Mapping[str, Any], *keys: str) -> Part:
    return {key: data[key] for key in keys if key in data}


def _text(type: str) -> Callable[[Mapping[str, Any]], Part]:
    if type.endswith("-delta"):
        return lambda payload: {"type": type, "id": payload.get("id"), "delta": payload.get("text", "")}
    return lambda payload: {"type": type, "id": payload.get("id")}


def _source(payload: Mapping[str, Any]) -> Part:
    if payload.get("sourceType") == "document":
        part = {"type": "source-document", "sourceId": payload.get("id"), "mediaType": payload.get("mimeType")}
        return {**part, **_pick(payload, "title", "filename")}
    return {"type": "source-url", "sourceId": payload.get("id"), **_pick(payload, "url", "title")}


def _file(payload: Mapping[str, Any]) -> Part:
    kind = payload.get("mimeType")
    return {"type": "file", "mediaType": kind, "url": f"data:{kind};base64,{payload.get('data', '')}"}


def _tripwire(payload: Mapping[str, Any]) -> Part:
    return {"type": "data-tripwire", "data": _pick(payload, "reason", "retry", "metadata", "processorId")}


_BUILDERS: dict[str, Callable[[Mapping[str, Any]], Part]] = {
    "start": lambda payload: {"type": "start", **_pick(payload, "messageId")},
    "step-start": lambda payload: {"type": "start-step"},
    "step-finish": lambda payload: {"type": "finish-step"},
    **{
        f"{kind}-{stage}": _text(f"{kind}-{stage}")
        for kind in ("text", "reasoning")
        for stage in ("start", "delta", "end")
    },
    "tool-call-input-streaming-start": lambda payload: {
        "type": "tool-input-start",
        **_pick(payload, "toolCallId", "toolName"),
    },
    "tool-call-delta": lambda payload: {
        "type": "tool-input-delta",
        **_pick(payload, "toolCallId"),
        "inputTextDelta": payload.get("argsTextDelta", ""),
    },
    "tool-call": lambda payload: {
        "type": "tool-input-available",
        **_pick(payload, "toolCallId", "toolName"),
        "input": payload.get("args"),
    },
    "tool-result": lambda payload: {
        "type": "tool-output-available",
        **_pick(payload, "toolCallId"),
        "output": payload.get("result"),
    },
    "tool-error": lambda payload: {
        "type": "tool-output-error",
        **_pick(payload, "toolCallId"),
        "errorText": error_text(payload.get("error")),
    },
    "tool-output-denied": lambda payload: {"type": "tool-output-denied", **_pick(payload, "toolCallId")},
    "source": _source,
    "file": _file,
    "tripwire": _tripwire,
    "error": lambda payload: {"type": "error", "errorText": error_text(payload.get("error"))},
    "abort": lambda payload: {"type": "abort"},
}

_TOOL_DATA = {
    "tool-call-approval": ("data-tool-call-approval", "args"),
    "tool-call-suspended": ("data-tool-call-suspended", "suspendPayload"),
}


def _tool_data(type: str, payload: Mapping[str, Any], run_id: str) -> Iterator[Part]:
    part_type, shown = _TOOL_DATA[type]
    call_id = payload.get("toolCallId")
    if type == "tool-call-approval":
        yield {"type": "tool-approval-request", "approvalId": f"{run_id}::{call_id}", "toolCallId": call_id}
    data = {"state": part_type, "runId": run_id, **_pick(payload, "toolCallId", "toolName", shown, "resumeSchema")}
    yield {"type": part_type, "id": call_id, "data": data}
