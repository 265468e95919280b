"""Counters that a user can read: ``S2PubSub.stats()``."""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class Counters:
    """Counted since the client was made. Plain additions from several threads: near enough for people to read."""

    published: int = 0
    delivered: int = 0
    reconnects: int = 0
    parked: int = 0

    def count_parked(self) -> None:
        """One more session has been closed because its consumer was slow."""
        self.parked += 1


@attrs.frozen
class Stats:
    """A snapshot of one client.

    Attributes:
        subscriptions: open subscriptions to durable topics.
        queued: events that they have received and not yet handed to their iterators and callbacks.
        publishers: open publishers.
        in_flight: events that publishers have accepted and the server has not acknowledged yet.
        leases: leases held.
        published: events acknowledged.
        delivered: events handed to consumers' queues or callbacks.
        reconnects: attempts of subscriptions and publishers to go on after their connection broke.
        parked: read sessions closed because their consumer was slow.
        replaced_clients: SDK clients given up because a connection went silent.
    """

    subscriptions: int = 0
    queued: int = 0
    publishers: int = 0
    in_flight: int = 0
    leases: int = 0
    published: int = 0
    delivered: int = 0
    reconnects: int = 0
    parked: int = 0
    replaced_clients: int = 0
