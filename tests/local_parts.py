"""Parts that the tests of the local transport share."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from s2pubsub import Event, LocalPubSub

HERE = "jobs"
SOON = 0.02
"""A short pause or limit, in seconds."""
NEVER = 1e6
"""A wait that no test waits for, in seconds."""


@contextmanager
def switching_often() -> Iterator[None]:
    """Threads take turns after 10 µs, so that races show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def publish(pubsub: LocalPubSub, numbers: Any, topic: str = HERE) -> list[Event]:
    """Publish an event for each number."""
    return [pubsub.publish(topic, type="job", data={"n": n, "list": [n]}) for n in numbers]


def publish_numbers(pubsub: LocalPubSub, numbers: Any) -> list[Event]:
    """Publish events whose data are the numbers themselves."""
    return [pubsub.publish(HERE, type="job", data=n) for n in numbers]


def quiet(error: BaseException) -> None:
    """An error hook for callbacks that raise on purpose."""


class Handler:
    """A callback that keeps (number, attempt) of each call and raises for the attempts that ``refuse`` names."""

    def __init__(self, refuse: Any = lambda number, attempt: False) -> None:
        self.calls: list[tuple[int, int]] = []
        self.refuse = refuse

    def __call__(self, event: Event) -> None:
        self.calls.append((event.data, event.delivery_attempt))
        if self.refuse(event.data, event.delivery_attempt):
            raise ValueError(f"refused {event.data}")


def numbers(events: list[Event]) -> list[int]:
    """The numbers of events."""
    return [event.data["n"] for event in events]


def local_threads() -> list[str]:
    """Names of the threads of callbacks."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("s2pubsub-local")]
