"""What the sites of these tests do, whatever their framework: write runs, and publish, subscribe and receive."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from s2pubsub.agent import DurableAgent
from s2pubsub.runs import Runs


def words(count: int, pace: float) -> Iterator[str]:
    """What the agent says."""
    waiting = threading.Event()
    for number in range(count):
        waiting.wait(pace)
        yield f"{number} "


class Service:
    """One in a process. ``runs`` gives the binding's runs when they are first needed."""

    def __init__(self, runs: Callable[[], Runs]) -> None:
        self._runs = runs
        self._agent: DurableAgent | None = None
        self._kept: Any = None
        if os.environ.get(
            "HOST_EARLY"
        ):  # in the process that imports the application, which may not be the one that serves
            self.use_early()

    def use_early(self) -> None:
        """Use everything at import: a client, a subscription, an agent."""
        self.round_trip()
        self._kept = self._runs().pubsub.subscribe("agent.host.early")
        self.ask(3, 0.0)

    def ask(self, count: int, pace: float) -> str:
        """Start a run of so many words, seconds apart, and return its id."""
        if self._agent is None:
            self._agent = DurableAgent(words, self._runs())
        observation = self._agent.stream(count, pace)
        observation.close()
        return str(observation.run_id)

    def round_trip(self) -> dict[str, Any]:
        """Publish an event and receive it; says which process has done it, and with what threads."""
        pubsub, topic = self._runs().pubsub, f"agent.host.{os.getpid()}"
        with pubsub.subscribe(topic, timeout=5) as events:
            sent = pubsub.publish(topic, type="ping", data=os.getpid(), timeout=5)
            if events.get(timeout=5) != sent:
                raise AssertionError("another event has come")
        threads = sorted(t.name for t in threading.enumerate() if t.name.startswith("s2pubsub-"))
        return {"pid": os.getpid(), "parent": os.getppid(), "threads": threads}
