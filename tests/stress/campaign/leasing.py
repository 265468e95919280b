"""Holders of leases: each takes a lease for a while, checks it again and again, and publishes under it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial

from s2pubsub import LeaseError, S2PubSubError
from s2pubsub.held_lease import HeldLease
from tests.stress.campaign.publishing import note_future
from tests.stress.campaign.worker import LONG, Desk, expect_closed


class Leasing:
    """A thread for each key. A life has an owner of its own: what a killed one held is waited for."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.held: HeldLease | None = None
        self.readers: list[threading.Thread] = []
        self.writers = [desk.thread(self._compete, key) for key in desk.task.keys]

    def _compete(self, key: str) -> None:
        desk = self.desk
        owner = f"o{desk.task.slot}.{desk.task.life}"
        chance = random.Random(f"{desk.task.seed}-{desk.task.who}-{key}")
        number = 0
        while not desk.stop.wait(chance.random() * 0.3):
            try:
                lease = desk.pubsub.leases.hold(key, owner, chance.choice((0.8, 2.0)), timeout=chance.choice((0, 5)))
            except S2PubSubError as error:
                if not isinstance(error, LeaseError):
                    desk.note("note", f"{owner}: {error!r}")
                continue
            begun = time.monotonic()
            by = f"{desk.task.who}/{key}{number}"
            number += 1
            self.held = lease
            with lease:
                self._work(lease, by, begun, chance)

    def _work(self, lease: HeldLease, by: str, begun: float, chance: random.Random) -> None:
        """Publish under the lease until it is lost or for a while; the notes say until when it was good."""
        desk = self.desk
        topic = desk.pubsub.leases.thread_topic(lease.key)
        try:
            publisher = desk.pubsub.publisher(topic, lease=lease)
        except S2PubSubError as error:
            desk.note("note", f"{by}: {error!r}")
            return
        try:
            for n in range(chance.randint(3, 60)):
                at = time.monotonic()
                lease.check()
                desk.note("good", lease.key, lease.owner, by, begun, at)
                future = publisher.publish(type="l", data={"by": by, "n": n, "owner": lease.owner}, timeout=5)
                future.add_done_callback(partial(note_future, desk.note, topic, by, n))
                desk.pause(chance)
                if desk.stop.is_set():
                    break
            publisher.close(10)
        except S2PubSubError as error:  # lost, or too slow: what was not acknowledged is not promised
            desk.note("note", f"{by}: {error!r}")
        try:
            publisher.close(LONG)
        except S2PubSubError as error:
            desk.note("note", f"{by}: {error!r}")

    def finish_reading(self) -> None:
        """It reads nothing."""

    def in_child(self, note: Callable[..., None]) -> None:
        if self.held is not None:
            expect_closed(note, "a lease", self.held.check)
