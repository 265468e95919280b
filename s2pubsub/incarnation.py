"""Which stream of its name a topic's reader reads: one that was deleted and made anew is another one.

On a basin with create-on-read, reading a deleted stream makes it anew, and its indices begin at 0 again. So a reader
looks the stream up before it goes on reading it from an index that it has reached. Not for: reading (``following``,
``history``).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime

from s2pubsub.errors import TopicGoneError
from s2pubsub.store import Store, StreamInfo

LookUp = Future[StreamInfo | None]


class Incarnation:
    """The stream behind one reader's topic. Used by one thread."""

    def __init__(self, store: Store, topic: str, stream: str) -> None:
        self._store = store
        self._topic = topic
        self._stream = stream
        self._first: LookUp | None = None
        self._created_at: datetime | None = None

    @property
    def noted(self) -> bool:
        """Whether ``note`` was called: the stream has been there."""
        return self._first is not None

    def note(self) -> None:
        """The stream is there: ask, without waiting for the answer, which one it is. Later calls do nothing, unless the
        answer was lost.
        """
        if self._first is None or _lost(self._first):
            self._first = self._store.find_for_reader(self._stream)

    def check(self, wait: Callable[[LookUp], StreamInfo | None]) -> None:
        """Raise TopicGoneError unless the stream is still the one that was noted. ``wait`` waits for a look-up."""
        found = wait(self._store.find_for_reader(self._stream))
        if found is None or found.deleting:
            raise TopicGoneError(self._topic)
        if self._created_at is None:
            self._created_at = _created_at(self._first) or found.created_at
        if self._created_at != found.created_at:
            raise TopicGoneError(self._topic)


def _lost(look_up: LookUp) -> bool:
    return look_up.done() and (look_up.cancelled() or look_up.exception() is not None)


def _created_at(look_up: LookUp | None) -> datetime | None:
    """None where the answer did not come."""
    if look_up is None or not look_up.done() or _lost(look_up):
        return None
    found = look_up.result()
    return None if found is None else found.created_at
