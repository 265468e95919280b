"""Which lines and callbacks a local topic has. Not thread-safe, but for ``forgetter``: its owner holds a lock."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable

from s2pubsub.local.line import Line
from s2pubsub.local.subscription import LocalSubscription
from s2pubsub.transport import Callback

Key = tuple[str, str | None, Callback]
"""What makes two subscriptions the same: topic, group and callback."""


class Topics:
    """The lines of every topic, and the subscriptions with callbacks, which are kept alive here."""

    def __init__(self) -> None:
        self.callbacks: dict[Key, LocalSubscription] = {}
        self._plain: dict[str, list[Line]] = {}
        self._groups: dict[str, dict[str, Line]] = {}
        self._ended: deque[str] = deque()  # topics with something to forget

    def add(self, line: Line) -> None:
        """Know a line; a group's takes the place of an earlier one that has ended."""
        if line.group is None:
            self._plain.setdefault(line.topic, []).append(line)
        else:
            self._groups.setdefault(line.topic, {})[line.group] = line

    def group(self, topic: str, name: str) -> Line | None:
        """The line of a group; it may have ended."""
        return self._groups.get(topic, {}).get(name)

    def of(self, topic: str) -> list[Line]:
        """The lines of ``topic``."""
        return [*self._plain.get(topic, ()), *self._groups.get(topic, {}).values()]

    def all(self) -> list[Line]:
        """All lines."""
        return [line for topic in {*self._plain, *self._groups} for line in self.of(topic)]

    def held(self, topic: str) -> list[LocalSubscription]:
        """The subscriptions with callbacks of ``topic``."""
        return [subscription for key, subscription in self.callbacks.items() if key[0] == topic]

    def remove(self, topic: str) -> list[Line]:
        """Forget the lines of ``topic`` and return them."""
        lines = self.of(topic)
        self._plain.pop(topic, None)
        self._groups.pop(topic, None)
        return lines

    def forgetter(self, topic: str) -> Callable[[], None]:
        """What a subscription calls at its end. Takes no lock, since a finalizer may call it anywhere."""
        ref = weakref.ref(self)

        def forget() -> None:
            topics = ref()
            if topics is not None:
                topics._ended.append(topic)

        return forget

    def forget_ended(self) -> None:
        """Forget what has ended since the last call."""
        while self._ended:
            topic = self._ended.popleft()
            for line in self.remove(topic):
                if not line.ended:
                    self.add(line)
            for key in [key for key, held in self.callbacks.items() if key[0] == topic and held.closed]:
                del self.callbacks[key]
