"""Answers as Django's responses, for WSGI and ASGI.

Django reads a plain iterator to its end before it sends anything under ASGI, so there the body is an asynchronous one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse

from s2pubsub.contrib.django.configuration import Authorize
from s2pubsub.contrib.site import single_thread_warning
from s2pubsub.runs import Runs
from s2pubsub.sse.answer import Answer, answer_run, answer_stop, refusal
from s2pubsub.sse.bridge import AsyncEventStream
from s2pubsub.sse.formats import FormatName
from s2pubsub.sse.stream import EventStream, Source, headers, stream


def run_response(
    request: HttpRequest,
    runs: Runs,
    run_id: str,
    *,
    authorize: Authorize | None = None,
    format: FormatName = "events",
    **options: Any,
) -> HttpResponseBase:
    """The response that shows a run: its events from where the browser left off, then live.

    For plain (``def``) views; they work under WSGI and ASGI. Its status is one of ``sse.answer_run``'s, whose arguments
    ``options`` are. The request's database connections are closed before anything is sent, unless a transaction is
    open, as in tests.
    """
    answer = answer_run(
        runs,
        run_id,
        format=format,
        last_event_id=request.headers.get("Last-Event-ID"),
        query=request.GET,
        authorize=None if authorize is None else lambda run_id: authorize(request, run_id),
        **options,
    )
    return _response(request, answer)


def stop_response(
    request: HttpRequest, runs: Runs, run_id: str, *, authorize: Authorize | None = None
) -> HttpResponseBase:
    """The response that stops a run: 202, or 200 where it has ended already; 403, 404, 503. The view checks CSRF."""
    if authorize is not None and not authorize(request, run_id):
        return _response(request, refusal(403, "forbidden"))
    return _response(request, answer_stop(runs, run_id))


def stream_response(
    request: HttpRequest, source: Source, *, format: FormatName = "events", **options: Any
) -> HttpResponseBase:
    """A response that shows any subscription; ``options`` are the arguments of ``sse.stream``."""
    body = stream(source, format=format, **options)
    return _response(request, Answer(status=200, headers=headers(format), body=body))


def _response(request: HttpRequest, answer: Answer) -> HttpResponseBase:
    body = answer.body
    if isinstance(body, bytes):
        return HttpResponse(body, status=answer.status, headers=dict(answer.headers))
    content: Any
    if isinstance(request, ASGIRequest):
        release_connections()
        content = AsyncEventStream(body)
    else:
        single_thread_warning.look(request.META)
        content = _Body(body)
    return StreamingHttpResponse(content, status=answer.status, headers=dict(answer.headers))


class _Body(Iterator[bytes]):
    """A stream that gives back the database connections first: not before the view has returned, since ATOMIC_REQUESTS
    has a transaction open until then.
    """

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self._released = False
        self.close = stream.close

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        if not self._released:
            self._released = True
            release_connections()
        return next(self._stream)


def release_connections() -> None:
    """Close this thread's database connections: a stream may last for hours. Those in a transaction stay."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()
