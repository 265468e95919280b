"""A store whose answers are given in advance, for what real servers answer too rarely to be waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

from s2pubsub.errors import ClosedError, ReplayGapError, StoreError
from s2pubsub.runtime.worker import Stop
from s2pubsub.store import Batch, StreamInfo
from tests.events import body_of

TOPIC = "agent.t"
STREAM = "p/agent.t"
BORN = datetime(2026, 3, 1, tzinfo=UTC)
SAME = StreamInfo(STREAM, BORN, False)
ANOTHER = StreamInfo(STREAM, BORN.replace(year=2027), False)
DELETING = StreamInfo(STREAM, BORN, True)

NEVER: Any = object()
"""An answer that does not come."""
CANCELLED: Any = object()
"""An answer that will not come, since the client is closed."""


COMMAND = None
"""In place of an event: a command record."""


def stored(start: int, *bodies: Any, tail: int | None = None) -> Batch:
    """What a session gives at once: these bodies, and numbers in place of events; with ``tail`` it has caught up."""
    made = [body_of(body) if isinstance(body, int) else body for body in bodies]
    return Batch(start, made, 10 * len(made), tail)


def batch(*indices: int, tail: int | None = None) -> Batch:
    """What a session gives at once: events with these indices, of which none is left out."""
    start = indices[0] if indices else tail or 0
    assert list(indices) == list(range(start, start + len(indices)))
    return stored(start, *indices, tail=tail)


def failure(kind: Any) -> StoreError:
    """An error of the server."""
    return StoreError("it says no", code=f"is_{kind}", status=None, kind=kind)


def gap(reader: Any) -> tuple[int, int]:
    """Where a reader that ended in a gap expected an event, and where it found one."""
    assert isinstance(reader.error, ReplayGapError)
    assert reader.error.topic == TOPIC
    return reader.error.expected, reader.error.actual


class Session:
    """A reader's end of a session. At the end of its script it tells the reader to stop. A function is an answer that
    is made when it is asked for.
    """

    def __init__(self, answers: Sequence[Any], stop: Stop) -> None:
        self._answers = list(answers)
        self._stop = stop
        self.closed = False

    def take(self) -> Any:
        if not self._answers:
            self._stop.set()
            return None
        answer = self._answers.pop(0)
        if callable(answer):
            answer = answer()
        if answer is CANCELLED:
            raise ClosedError("the client is closed")
        if isinstance(answer, Exception):
            raise answer
        return None if answer is NEVER else answer

    def close(self) -> None:
        self.closed = True


def settled(answer: Any) -> Future[Any]:
    """A future with ``answer``, which may be an error, or such a future."""
    if isinstance(answer, Future):
        return answer
    future: Future[Any] = Future()
    if answer is CANCELLED:
        future.cancel()
        future.set_running_or_notify_cancel()
    elif isinstance(answer, Exception):
        future.set_exception(answer)
    elif answer is not NEVER:
        future.set_result(answer)
    return future


class ScriptedStore:
    """Gives sessions, look-ups and pages one after the other, and remembers what it was asked.

    Args:
        sessions: the answers of each session; an error in place of a list is raised by ``open``.
        found: answers of look-ups; the last one stays.
        tail: what it says of the tail, or a list of answers, of which the last one stays.
        pages: for readers of history.
    """

    def __init__(
        self,
        sessions: Sequence[Any] = (),
        *,
        stop: Stop,
        found: Sequence[Any] = (SAME,),
        tail: Any = 0,
        pages: Sequence[Any] = (),
    ) -> None:
        self._sessions = list(sessions)
        self._stop = stop
        self._found = list(found)
        self._tail = tail
        self._pages = list(pages)
        self.opened: list[dict[str, Any]] = []
        self.sessions: list[Session] = []
        self.asked: list[tuple[int, int]] = []
        self.asked_of: list[tuple[str, Any]] = []
        self.looked_up: list[str] = []
        self.asked_for_tail: list[tuple[str, Any]] = []

    def open(self, stream: str, start: int, notify: Callable[[], object], **options: Any) -> Session:
        self.opened.append({"stream": stream, "start": start, "notify": notify, **options})
        answers = self._sessions.pop(0) if self._sessions else []
        if isinstance(answers, Exception):
            raise answers
        self.sessions.append(Session(answers, self._stop))
        return self.sessions[-1]

    def find_for_reader(self, stream: str) -> Future[Any]:
        self.looked_up.append(stream)
        return settled(self._found.pop(0) if len(self._found) > 1 else self._found[0])

    def tail(self, stream: str, deadline: Any) -> int:
        self.asked_for_tail.append((stream, deadline))
        answer = self._tail
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    def read(self, stream: str, start: int, count: int, deadline: Any) -> list[Batch]:
        self.asked.append((start, count))
        self.asked_of.append((stream, deadline))
        page = self._pages.pop(0)
        if isinstance(page, Exception):
            raise page
        found: list[Batch] = page
        return found
