"""When a batch of local events is due, and what of it is delivered.

Pure: the clock is an argument, and whoever owns a ``Buffer`` does the waiting. A batch is a row of single calls, not a
list: it groups deliveries in time, so that events which supersede each other can be left out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from s2pubsub.event import Event
from s2pubsub.local.delivery import Delivery
from s2pubsub.local.options import BatchOptions

Entry = tuple[Delivery, Event]


class Buffer:
    """What is gathered for one subscription. Used by its worker only.

    Args:
        options: when it is due.
        clock: seconds, monotonic.
        report: told what ``is_immediate`` or ``coalesce`` raised.
    """

    def __init__(
        self,
        options: BatchOptions,
        report: Callable[[Exception, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._report = report
        self._clock = clock
        self._entries: list[Entry] = []
        self._immediate: set[str] = set()
        self._floor = -math.inf

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def room(self) -> int:
        """How many fit before it is full."""
        return max(0, self._options.max_buffer_size - len(self._entries))

    def add(self, delivery: Delivery, event: Event) -> None:
        """Gather one event."""
        self._entries.append((delivery, event))
        if self._options.is_immediate is not None:
            try:
                if self._options.is_immediate(event):
                    self._immediate.add(event.id)
            except Exception as error:  # noqa: BLE001  # the event is an ordinary one then
                self._report(error, "is_immediate")

    def due(self) -> float:
        """When to deliver, on the clock; infinite when nothing calls for it."""
        if not self._entries:
            return math.inf
        if not self.room:
            return -math.inf
        options = self._options
        if self._immediate or (options.max_size is not None and len(self._entries) >= options.max_size):
            return self._floor
        if options.max_wait is None:
            return math.inf
        return max(self._floor, self._entries[0][0].queued_at + options.max_wait)

    def is_due(self) -> bool:
        """Whether to deliver now."""
        return self.due() <= self._clock()

    def take(self) -> tuple[list[Entry], list[Entry], int]:
        """Empty it: what to deliver, what not, and how many of the latter overflow has dropped."""
        entries, self._entries = self._entries, []
        kept = self._coalesced(entries)
        over = len(kept) - self._options.max_buffer_size
        if over > 0:
            ordinary = [entry[1].id for entry in kept if entry[1].id not in self._immediate]
            drop = set(ordinary[-over:] if self._options.overflow == "drop-newest" else ordinary[:over])
            before = len(kept)
            kept = [entry for entry in kept if entry[1].id not in drop]
            over = before - len(kept)
        self._immediate.clear()
        ids = {entry[1].id for entry in kept}
        return kept, [entry for entry in entries if entry[1].id not in ids], max(0, over)

    def delivered(self) -> None:
        """A batch has been delivered: ``min_interval`` begins."""
        self._floor = self._clock() + self._options.min_interval

    def _coalesced(self, entries: list[Entry]) -> list[Entry]:
        if self._options.coalesce is None or not entries:
            return entries
        try:
            chosen = list(self._options.coalesce([event for _, event in entries]))
        except Exception as error:  # noqa: BLE001  # it has not said what to leave out, so nothing is
            self._report(error, "coalesce")
            return entries
        kept = []
        rest = iter(entries)
        for event in chosen:
            for entry in rest:
                if entry[1] is event:
                    kept.append(entry)
                    break
            else:
                problem = f"coalesce must return some of the {len(entries)} events it was given, the same objects in"
                self._report(ValueError(f"{problem} their order; the batch is dropped"), "coalesce")
                return []
        return kept
