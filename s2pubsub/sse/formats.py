"""What events look like to their readers: one class per format. Pure.

======================  ===================================================================================
``events``              ours, for ``EventSource``: ``id`` is the index, ``event`` the type, ``data`` the data
``mastra``              for Mastra's own client: bare ``data`` blocks of event envelopes
``ui-message-stream``   for the AI SDK's ``useChat``: its parts (``ui_message``)
======================  ===================================================================================
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

from s2pubsub.event import Event
from s2pubsub.sse.framing import clean_name, format_event, json_text
from s2pubsub.sse.ui_message import Parts

FormatName = Literal["events", "mastra", "ui-message-stream"]

HEARTBEAT = b": keep-alive\n\n"
"""A comment, which every client ignores: real bytes, since only writing tells a server that its client has gone."""

_OPENED = b": open\n\n"
_DONE = b"data: [DONE]\n\n"

_TAKEN = frozenset({"end", "failure", "error", "open"})
"""Names which ``EventSource`` (error, open) or this format (end, failure) gives a meaning of its own."""


class Format(Protocol):
    """Turns a stream's life into blocks. An object belongs to one stream."""

    resumable: bool
    """Whether a client that was cut off comes back with a position by itself."""

    def start(self, next_index: int | None) -> bytes:
        """The first bytes. ``next_index``: where a source that has no end of its own stands."""

    def event(self, event: Event) -> bytes:
        """The blocks of an event; empty if it is not for these readers."""

    def end(self, end: str) -> bytes:
        """The last bytes of a run that has ended by ``end``."""

    def failure(self, code: str, message: str) -> bytes:
        """The last bytes of a stream that failed."""


class EventsFormat:
    """Our own format. An event's name is its type; those with another meaning get ``event-`` before them."""

    resumable = True

    def __init__(self, retry: float) -> None:
        self._retry: int | None = round(retry * 1000)

    def start(self, next_index: int | None) -> bytes:
        if next_index is None:
            return _OPENED
        # A live stream: a browser that is cut off before the first event must come back to this very position.
        return _OPENED + format_event(id=next_index - 1, retry=self._take_retry())

    def event(self, event: Event) -> bytes:
        name = clean_name(event.type)
        if name in _TAKEN:
            name = f"event-{name}"
        return format_event(json_text(event.data), event=name, id=event.index, retry=self._take_retry())

    def end(self, end: str) -> bytes:
        return format_event(json_text({"end": end}), event="end")

    def failure(self, code: str, message: str) -> bytes:
        return format_event(json_text({"code": code, "message": message}), event="failure")

    def _take_retry(self) -> int | None:
        retry, self._retry = self._retry, None
        return retry


class MastraFormat:
    """Envelopes as Mastra's observe route sends them. Its client cannot read blocks with ``id`` or ``event``."""

    resumable = False

    def __init__(self) -> None:
        self._run_id = ""

    def start(self, next_index: int | None) -> bytes:
        return _OPENED

    def event(self, event: Event) -> bytes:
        self._run_id = event.run_id
        return format_event(json_text(envelope(event)))

    def end(self, end: str) -> bytes:
        return _DONE

    def failure(self, code: str, message: str) -> bytes:
        data = {"error": {"name": code, "message": message}}
        return format_event(json_text({"type": "error", "runId": self._run_id, "data": data})) + _DONE


class UIMessageFormat:
    """The AI SDK's parts."""

    resumable = False

    def __init__(self) -> None:
        self._parts = Parts()

    def start(self, next_index: int | None) -> bytes:
        return _OPENED

    def event(self, event: Event) -> bytes:
        return b"".join(format_event(json_text(part)) for part in self._parts.of(event))

    def end(self, end: str) -> bytes:
        return _DONE

    def failure(self, code: str, message: str) -> bytes:
        return format_event(json_text({"type": "error", "errorText": message})) + _DONE


def make_format(name: FormatName, retry: float) -> Format:
    """The format called ``name``. ValueError where there is none."""
    if name == "events":
        return EventsFormat(retry)
    if name == "mastra":
        return MastraFormat()
    if name == "ui-message-stream":
        return UIMessageFormat()
    raise ValueError(f"format must be 'events', 'mastra' or 'ui-message-stream', not {name!r}")


def envelope(event: Event) -> dict[str, Any]:
    """``event`` as it is stored, with its index."""
    moment = event.created_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    known = {
        "type": event.type,
        "runId": event.run_id,
        "data": event.data,
        "id": event.id,
        "createdAt": moment,
        "deliveryAttempt": event.delivery_attempt,
    }
    if event.index is not None:
        known["index"] = event.index
    return {**event.extra, **known}
