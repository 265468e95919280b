"""How many streams may be open at once, so that they cannot take every thread of a server."""

from __future__ import annotations

import threading

from s2pubsub.runtime.fork import reset_in_child


class Limiter:
    """Counts open streams, per process. Thread-safe.

    Args:
        limit: how many may be open at once; None for any number.
        retry_after: seconds after which a refused client may come back.
    """

    def __init__(self, limit: int | None = None, *, retry_after: int = 5) -> None:
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise TypeError(f"limit must be an int or None, not {limit!r}")
        if limit is not None and limit < 0:
            raise ValueError(f"limit must not be negative, got {limit}")
        self.limit = limit
        self.retry_after = retry_after
        self._reset_in_child()
        reset_in_child(self)

    def _reset_in_child(self) -> None:
        self._lock = threading.Lock()
        self._active = 0

    @property
    def active(self) -> int:
        """How many are open."""
        return self._active

    def take(self) -> bool:
        """Count one more stream, if the limit allows it, and say whether it does. Follow it by one ``give_back``."""
        with self._lock:
            if self.limit is not None and self._active >= self.limit:
                return False
            self._active += 1
            return True

    def give_back(self) -> None:
        """Count one stream less."""
        with self._lock:
            self._active = max(0, self._active - 1)  # a forked child drops streams that only its parent has counted
