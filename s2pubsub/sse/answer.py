"""A request for a run's events, answered: status, headers and body, for any web framework.

``contrib`` turns an ``Answer`` into a framework's response. What can be said by a status is said before the stream
begins: a browser gives up on 4xx and 204, and comes back after 503.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs

from s2pubsub.errors import ClosedError, OperationTimeoutError, RunNotFoundError, StoreError
from s2pubsub.observation import Observation
from s2pubsub.runs import Runs
from s2pubsub.sse.formats import FormatName
from s2pubsub.sse.framing import json_text, read_offset
from s2pubsub.sse.limiter import Limiter
from s2pubsub.sse.stream import EventStream, Transform, headers, stream
from s2pubsub.topic import run_topic, stream_name

Ended = Literal["replay", "no-content"]

_ENDED = frozenset({"finished", "failed", "aborted"})


@attrs.frozen(kw_only=True)
class Answer:
    """A response that has not been sent.

    Attributes:
        status: the HTTP status.
        headers: the response's headers.
        body: what to send; an ``EventStream`` must be closed, sent or not.
    """

    status: int
    headers: Mapping[str, str]
    body: EventStream | bytes


def answer_run(
    runs: Runs,
    run_id: str,
    *,
    format: FormatName = "events",
    last_event_id: str | None = None,
    query: Mapping[str, str] | None = None,
    authorize: Callable[[str], bool] | None = None,
    limiter: Limiter | None = None,
    ended: Ended = "replay",
    wait_for_start: float | None = 0,
    idle_timeout: float | None = None,
    is_alive: Callable[[], bool] | None = None,
    stop_on_suspend: bool = False,
    heartbeat: float = 15.0,
    lifetime: float | None = None,
    retry: float = 1.0,
    transform: Transform | None = None,
    show_errors: bool = False,
    timeout: float = 10.0,
) -> Answer:
    """Answer a request to see a run.

    ====  ===============================================================================================
    200   a stream
    204   ``events``: the run has ended and the client has seen all of it; ``ui-message-stream``: there is no such
          run, or it has ended and ``ended`` says "no-content"
    400   the position is malformed
    403   ``authorize`` said no; asked first, so that the answer does not tell whether the run exists
    404   there is no such run; asking created nothing
    503   the limiter is full, or the server of the events cannot be reached; with ``Retry-After``
    ====  ===============================================================================================

    Args:
        runs: where the run is.
        run_id: the run.
        format: see ``stream``. The AI SDK needs everything from the beginning, so for it the position is ignored.
        last_event_id: the request's header ``Last-Event-ID``.
        query: its query parameters; see ``read_offset``.
        authorize: says whether this request may see the run. None: everybody who knows the id may.
        limiter: limits how many streams are open.
        ended: what to do about a run that has ended already: replay it, or say that nothing is going on.
        wait_for_start: see ``Runs.observe``.
        idle_timeout: see ``Runs.observe``.
        is_alive: see ``Runs.observe``.
        stop_on_suspend: see ``Runs.observe``.
        heartbeat: see ``stream``.
        lifetime: see ``stream``; counts for ``events`` only.
        retry: see ``stream``.
        transform: see ``stream``.
        show_errors: see ``stream``.
        timeout: seconds for reaching the server of the events.
    """
    if authorize is not None and not authorize(run_id):
        return refusal(403, "forbidden")
    try:
        offset = read_offset(last_event_id, query) if format != "ui-message-stream" else 0
    except ValueError:
        return refusal(400, "malformed position")
    if not is_possible_run(run_id):
        return _absent(format)
    if limiter is not None and not limiter.take():
        return refusal(503, "too many streams", retry_after=limiter.retry_after)
    observation: Observation | None = None
    try:
        if ended == "no-content" and runs.status(run_id, timeout=timeout) in _ENDED:
            return _empty()
        observation = runs.observe(
            run_id,
            offset or 0,
            wait_for_start=wait_for_start,
            idle_timeout=idle_timeout,
            is_alive=is_alive,
            stop_on_suspend=stop_on_suspend,
            timeout=timeout,
        )
        if observation.end is not None and format == "events":
            return _empty()
        body = stream(
            observation,
            format=format,
            heartbeat=heartbeat,
            lifetime=lifetime if format == "events" else None,
            retry=retry,
            transform=transform,
            show_errors=show_errors,
            limiter=limiter,
        )
        limiter = observation = None  # they are the stream's now
        return Answer(status=200, headers=headers(format), body=body)
    except RunNotFoundError:
        return _absent(format)
    except ClosedError:
        return refusal(503, "shutting down", retry_after=1)
    except (StoreError, OperationTimeoutError) as error:
        runs.pubsub.logger.warning("run %r cannot be shown: %s", run_id, error)
        return refusal(503, "events are not available", retry_after=5)
    finally:
        if observation is not None:
            observation.close()
        if limiter is not None:
            limiter.give_back()


def answer_stop(runs: Runs, run_id: str, *, timeout: float = 10.0) -> Answer:
    """Answer a request to stop a run: 202 when its writer was asked to; 200 when it has ended already; 404; 503.

    The caller has checked that the request may do so, and that no other site's page has sent it.
    """
    if not is_possible_run(run_id):
        return refusal(404, "no such run")
    try:
        status = runs.status(run_id, timeout=timeout)
        if status == "gone":
            return refusal(404, "no such run")
        if status in _ENDED:
            return _json(200, {"runId": run_id, "status": status})
        runs.request_abort(run_id, timeout=timeout)
        return _json(202, {"runId": run_id, "status": "stopping"})
    except RunNotFoundError:
        return refusal(404, "no such run")
    except (ClosedError, StoreError, OperationTimeoutError) as error:
        runs.pubsub.logger.warning("run %r cannot be stopped: %s", run_id, error)
        return refusal(503, "the run cannot be reached", retry_after=5)


def is_possible_run(run_id: str) -> bool:
    """Whether a run could have this id at all: what comes from an address may be anything."""
    try:
        stream_name(run_topic(run_id), "")
    except (TypeError, ValueError):
        return False
    return True


def refusal(status: int, problem: str, *, retry_after: int | None = None) -> Answer:
    """An answer without a stream."""
    answer = _json(status, {"error": problem})
    if retry_after is None:
        return answer
    return attrs.evolve(answer, headers={**answer.headers, "Retry-After": str(retry_after)})


def _json(status: int, value: Any) -> Answer:
    fields = {"Content-Type": "application/json", "Cache-Control": "no-store"}
    return Answer(status=status, headers=fields, body=json_text(value).encode())


def _empty() -> Answer:
    return Answer(status=204, headers={"Cache-Control": "no-store"}, body=b"")


def _absent(format: FormatName) -> Answer:
    return _empty() if format == "ui-message-stream" else refusal(404, "no such run")
