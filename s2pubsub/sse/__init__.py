"""Runs and topics as server-sent events, for any web framework that blocks or not.

::

    from s2pubsub import sse

    body = sse.stream(runs.observe("run-7"))          # an iterator of bytes; close it
    answer = sse.answer_run(runs, "run-7", ...)       # status, headers and body of a whole response

``s2pubsub.contrib`` has the bindings for Flask and Django. ``docs/sse.md`` in the package tells what browsers see.
"""

from __future__ import annotations

from s2pubsub.sse.answer import Answer, answer_run, answer_stop
from s2pubsub.sse.bridge import AsyncEventStream
from s2pubsub.sse.formats import FormatName
from s2pubsub.sse.framing import format_event, parse_last_event_id, read_offset
from s2pubsub.sse.limiter import Limiter
from s2pubsub.sse.masking import mask_errors
from s2pubsub.sse.stream import EventStream, Source, Transform, headers, stream

__all__ = [
    "Answer",
    "AsyncEventStream",
    "EventStream",
    "FormatName",
    "Limiter",
    "Source",
    "Transform",
    "answer_run",
    "answer_stop",
    "format_event",
    "headers",
    "mask_errors",
    "parse_last_event_id",
    "read_offset",
    "stream",
]
