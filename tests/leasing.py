"""What the tests of leases share: the register seen from outside of the library, and clocks that tests move."""

from __future__ import annotations

import threading
import time
from typing import Any
from urllib.parse import quote

from s2pubsub import fence
from s2pubsub.lease_clock import Clock
from s2pubsub.topic import stream_name, thread_topic
from tests.servers import Server
from tests.waiting import eventually

KEY = "user 1\0th/1"
PREFIX = "mastra/durable/"
MEMBER = "0f8fad5b-d9cb-469f-a165-70867728950e"
"""An owner that is a UUID."""
SOON = 0.2
"""Seconds of a lifetime whose end a test waits for."""


class Register:
    """The fencing token of a lease's stream, written and read by plain HTTP."""

    def __init__(self, server: Server, basin: str, key: str = KEY) -> None:
        self.stream = stream_name(thread_topic(key), PREFIX)
        self._server = server
        self._path = f"/v1/streams/{quote(self.stream, safe='')}/records"
        self._fields = {"s2-basin": basin, "s2-format": "raw"}

    def write(self, token: str) -> None:
        """Set the token, whatever it is."""
        record = {"headers": [["", "fence"]], "body": token}
        self._server.request("POST", self._path, {"records": [record]}, self._fields)

    def records(self) -> list[dict[str, Any]]:
        """All records of the stream."""
        found = self._server.request("GET", f"{self._path}?seq_num=0", headers=self._fields)
        return list(found["records"])

    def token(self) -> str:
        """The token in force, from the last fence record."""
        return next(r.get("body", "") for r in reversed(self.records()) if r["headers"] == [["", "fence"]])

    def owner(self) -> str | None:
        """Who has the lease now."""
        token = fence.decode_token(self.token())
        return token.owner if token is not None and token.is_live(now_ms()) else None

    def expires_at_ms(self) -> int:
        """The expiry in the token in force."""
        token = fence.decode_token(self.token())
        assert token is not None
        return token.expires_at_ms


def lapse(register: Register) -> None:
    """Wait until nobody has the lease any more."""
    eventually(lambda: register.owner() is None)


def now_ms() -> int:
    return int(time.time() * 1000)


def token_of(owner: str, seconds: float) -> str:
    """A token as another process would write it."""
    return fence.encode_token(owner, now_ms() + int(seconds * 1000)).text


class MovedClock:
    """Clocks that run, and that a test moves forward by steps."""

    def __init__(self) -> None:
        self.wall_ahead = self.boot_ahead = 0.0
        self.clock = Clock(lambda: time.time() + self.wall_ahead, lambda: time.monotonic() + self.boot_ahead)


def lease_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("s2pubsub-lease-")]


class Hook:
    """An ``on_lost`` hook that keeps when and on which thread it was called."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.calls: list[tuple[float, str]] = []

    def __call__(self) -> None:
        self.calls.append((time.time(), threading.current_thread().name))
        self.called.set()
