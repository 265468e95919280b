"""Writers: threads that publish and wait, events published together, pipelined publishers, exactly-once ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from s2pubsub import Event, OperationTimeoutError, S2PubSubError, StoreError
from s2pubsub.publisher import Publisher
from tests.stress.campaign.worker import Desk, expect_closed

T = TypeVar("T")

PATIENCE = 10.0
_EVENTS_A_PUBLISHER = 150
_PADDING = ("", "", "", "x" * 200, "y" * 20_000)


def note_future(note: Callable[..., None], topic: str, by: str, n: int, future: Future[Event]) -> None:
    """Note what has become of a pipelined event."""
    error = future.exception()
    if error is None:
        event = future.result()
        note("ack", topic, by, n, event.index, event.id)
    else:
        note("fail", topic, by, n, getattr(error, "outcome", None), repr(error))


class Publishing:
    """Blocking threads and pipelined publishers on the shared topics."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.open: Publisher | None = None
        topics = desk.task.topics
        self.readers: list[Any] = []
        self.writers = [desk.thread(self._block, f"b{number}", topics[number % len(topics)]) for number in range(3)] + [
            desk.thread(self._pipe, "p", desk.random.choice(topics))
        ]

    def _block(self, name: str, topic: str) -> None:
        desk, by = self.desk, f"{self.desk.task.who}/{name}"
        chance = random.Random(f"{desk.task.seed}-{by}")
        n = 0
        while not desk.stop.is_set():
            timeout = chance.choice((1.0, 5.0, 20.0))
            if chance.random() < 0.1:
                n = self._together(topic, by, n, chance, timeout)
            else:
                data = {"by": by, "n": n, "pad": chance.choice(_PADDING)}
                try:
                    event = desk.pubsub.publish(topic, type="b", data=data, timeout=timeout)
                except S2PubSubError as error:
                    desk.note("fail", topic, by, n, error.outcome, repr(error))
                else:
                    desk.note("ack", topic, by, n, event.index, event.id)
                n += 1
            desk.pause(chance)

    def _together(self, topic: str, by: str, n: int, chance: random.Random, timeout: float) -> int:
        desk, count = self.desk, chance.randint(2, 20)
        events = [{"type": "b", "data": {"by": by, "n": n + k}} for k in range(count)]
        try:
            stored = desk.pubsub.publish_many(topic, events, timeout=timeout)
        except S2PubSubError as error:
            for k in range(count):
                desk.note("fail", topic, by, n + k, error.outcome, repr(error))
        else:
            desk.note("together", topic, by, n, count)
            for k, event in enumerate(stored):
                desk.note("ack", topic, by, n + k, event.index, event.id)
        return n + count

    def _pipe(self, name: str, topic: str) -> None:
        desk = self.desk
        chance = random.Random(f"{desk.task.seed}-{desk.task.who}-{name}")
        number = 0
        while not desk.stop.is_set():
            by = f"{desk.task.who}/{name}{number}"
            number += 1
            self.open = publisher = desk.pubsub.publisher(topic, max_in_flight=chance.choice((1, 8, 1024)))
            _feed(desk, publisher, by, chance)
            _finish(publisher)

    def finish_reading(self) -> None:
        """It reads nothing."""

    def in_child(self, note: Callable[..., None]) -> None:
        publisher = self.open
        if publisher is not None:
            expect_closed(note, "a publisher", lambda: publisher.publish(type="b", data=None))


def _feed(desk: Desk, publisher: Publisher, by: str, chance: random.Random) -> None:
    for n in range(_EVENTS_A_PUBLISHER):
        if desk.stop.is_set():
            return
        data = {"by": by, "n": n, "pad": chance.choice(_PADDING)}
        future = _insist(lambda data=data: publisher.publish(type="p", data=data, timeout=PATIENCE))
        future.add_done_callback(partial(note_future, desk.note, publisher.topic, by, n))
        desk.pause(chance)


def _finish(publisher: Publisher) -> None:
    _insist(lambda: publisher.flush(PATIENCE))
    publisher.close(PATIENCE)


def _insist(work: Callable[[], T]) -> T:
    """Do it again when it was too slow: an outage may last. What never ends is found at the end of the campaign."""
    while True:
        try:
            return work()
        except OperationTimeoutError:
            continue


class Exact:
    """One exactly-once publisher after the other, the only writer of its topic. The first topic is its own."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.open: Publisher | None = None
        self.readers: list[Any] = []
        self.writers = [desk.thread(self._write)]

    def _write(self) -> None:
        desk, topic = self.desk, f"agent.campaign.exact-{self.desk.task.slot}"
        chance = random.Random(f"{desk.task.seed}-{desk.task.who}")
        number = 0
        while not desk.stop.is_set():
            by = f"{desk.task.who}/x{number}"
            try:
                self.open = publisher = desk.pubsub.publisher(
                    topic, exactly_once=True, max_in_flight=chance.choice((1, 8, 1024))
                )
            except S2PubSubError as error:
                desk.note("note", f"{by}: {error!r}")
                continue
            number += 1
            try:
                _feed(desk, publisher, by, chance)
                _finish(publisher)
            except StoreError as error:
                # What its killed predecessor had on the wire may come after we have looked for the tail.
                if error.code != "second_writer" or desk.task.life == 0 or number > 3:
                    raise
                desk.note("note", f"{by}: {error!r}")

    def finish_reading(self) -> None:
        """It reads nothing."""

    def in_child(self, note: Callable[..., None]) -> None:
        publisher = self.open
        if publisher is not None:
            expect_closed(note, "an exactly-once publisher", lambda: publisher.publish(type="b", data=None))
