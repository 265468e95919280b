"""Readers: subscribers that iterate, take lists, or are called back; short ones from the tail; and history."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from s2pubsub import Event, S2PubSubError
from s2pubsub.subscription import Subscription
from tests.stress.campaign.notes import read_notes
from tests.stress.campaign.worker import LONG, Desk, expect_closed

_LOOK_BACK = (30, 30, 200, 1500)
"""So many events at most; more than a thousand take a session."""


def positions(folder: str, name: str) -> dict[str, int]:
    """Where each reader of a process stands: behind the last event that it noted in any of its lives."""
    found: dict[str, int] = {}
    for note in read_notes(Path(folder) / f"{name}.jsonl"):
        if note[0] == "seen":
            found[note[1]] = note[2] + 1
    return found


class Reading:
    """A reader on each topic, from where it stood in its last life, and what looks around on the first topics."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.positions = positions(desk.task.folder, desk.task.name)
        self.subscriptions: dict[str, Subscription] = {}
        self.writers: list[threading.Thread] = []
        self._iterated: list[str] = []
        ways = itertools.cycle((self._iterate, self._take_lists, self._be_called))
        for _ in range(desk.task.slot % 3):
            next(ways)
        self.readers = [desk.thread(self._read, topic, way) for topic, way in zip(desk.task.topics, ways, strict=False)]
        self._looking = [
            desk.thread(self._look_at_the_tail, desk.task.topics[0]),
            desk.thread(self._look_back, desk.task.topics[desk.task.slot % 2]),
        ]

    # -- readers of everything -----------------------------------------------------------------------------------

    def _read(self, topic: str, way: Callable[[str, str], None]) -> None:
        way(topic, f"{self.desk.task.name}:{topic}")

    def _open(
        self, topic: str, sub: str, callback: Callable[[Event], object] | None = None, **more: Any
    ) -> Subscription:
        start = self.positions.get(sub, 0)
        while True:
            try:
                opened: Any = self.desk.pubsub.subscribe_from_offset(topic, start, callback, timeout=10, **more)
            except S2PubSubError as error:  # an outage: it says so instead of pretending
                self.desk.note("note", f"{sub}: {error!r}")
                continue
            self.desk.note("sub", sub, topic, start)
            self.subscriptions[topic] = opened
            return opened

    def _see(self, sub: str, event: Event) -> None:
        self.desk.note("seen", sub, event.index, event.id)
        self.positions[sub] = (event.index or 0) + 1

    def _iterate(self, topic: str, sub: str) -> None:
        chance = random.Random(sub)
        self._iterated.append(topic)
        for event in self._open(topic, sub):
            self._see(sub, event)
            if chance.random() < 0.005:
                time.sleep(1.0)  # a slow consumer
        self._check_end(topic, sub)

    def _take_lists(self, topic: str, sub: str) -> None:
        for batch in self._open(topic, sub).batches(max_size=50, max_wait=0.05):
            for event in batch:
                self._see(sub, event)
        self._check_end(topic, sub)

    def _be_called(self, topic: str, sub: str) -> None:
        failures: list[BaseException] = []
        subscription = self._open(topic, sub, lambda event: self._see(sub, event), on_error=failures.append)
        while not subscription.closed:
            self.desk.reading_until.wait(0.5)
        if failures:
            raise failures[0]
        self._check_end(topic, sub)

    def _check_end(self, topic: str, sub: str) -> None:
        if not self._done(topic):
            raise AssertionError(f"{sub} has ended by itself at {self.positions.get(sub, 0)}")

    def _done(self, topic: str) -> bool:
        desk = self.desk
        return desk.reading_until.is_set() and self.positions.get(f"{desk.task.name}:{topic}", 0) >= desk.until[topic]

    def finish_reading(self) -> None:
        deadline = time.monotonic() + LONG
        for topic in self.desk.task.topics:
            while not self._done(topic):
                if time.monotonic() > deadline:
                    at = self.positions.get(f"{self.desk.task.name}:{topic}", 0)
                    self.desk.note("wrong", f"{self.desk.task.who}: {topic} stands at {at} of {self.desk.until[topic]}")
                    break
                time.sleep(0.05)
            if topic in self.subscriptions:
                self.subscriptions[topic].close()
        for thread in self._looking:
            thread.join(LONG)

    # -- those that look around ----------------------------------------------------------------------------------

    def _look_at_the_tail(self, topic: str) -> None:
        desk, chance = self.desk, random.Random(f"{self.desk.task.seed}-{self.desk.task.who}-latest")
        while not desk.stop.wait(chance.random() * 2):
            try:
                low = desk.pubsub.tail(topic, timeout=10)
                opened: Any = desk.pubsub.subscribe(topic, timeout=10)
                with opened as events:
                    start = events.next_index
                    high = desk.pubsub.tail(topic, timeout=10)
                    until = time.monotonic() + 5
                    seen = []
                    while len(seen) < 30 and (left := until - time.monotonic()) > 0:
                        try:
                            event = events.get(left)
                        except TimeoutError:
                            break
                        seen.append((event.index, event.id))
            except S2PubSubError as error:
                desk.note("note", f"{desk.task.who} at the tail: {error!r}")
                continue
            desk.note("latest", topic, low, start, high, seen)

    def _look_back(self, topic: str) -> None:
        desk, chance = self.desk, random.Random(f"{self.desk.task.seed}-{self.desk.task.who}-history")
        while not desk.stop.wait(chance.random() * 2):
            try:
                low = desk.pubsub.tail(topic, timeout=10)
                offset = max(0, low - chance.randint(0, chance.choice(_LOOK_BACK)))
                read = desk.pubsub.get_history if chance.random() < 0.5 else desk.pubsub.iter_history
                seen = [(event.index, event.id) for event in read(topic, offset, timeout=15)]
                high = desk.pubsub.tail(topic, timeout=10)
            except S2PubSubError as error:
                desk.note("note", f"{desk.task.who} looking back: {error!r}")
                continue
            desk.note("history", topic, offset, low, high, seen)

    def in_child(self, note: Callable[..., None]) -> None:
        for topic in self._iterated:
            subscription = self.subscriptions.get(topic)
            if subscription is not None:
                expect_closed(note, "a subscription", partial(subscription.get, 0))
