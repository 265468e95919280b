"""Where the server keeps what it must not forget: the interface, and the store that forgets everything.

A store takes changes in order and reports each as done, or failed, on the event loop that it was made for. The logs
keep recent batches themselves (`StreamLog`); a store is asked only for what they no longer hold. `sqlite.py` has the
store that survives the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from attrs import frozen

from s2pubsub.server.record import Batch

Done = Callable[[BaseException | None], None]
"""Called on the event loop when a change is durable (None) or has failed."""


@frozen
class LogState:
    """What a stream's log must know again after a restart."""

    next_seq_num: int = 0
    last_timestamp: int = 0
    fencing_token: str = ""
    trim_point: int = 0
    last_append: int = 0


@frozen
class StoredStream:
    """A stream as a store gives it back: its number, its description and the state of its log."""

    number: int
    description: dict[str, Any]
    state: LogState


class Store(Protocol):
    """A store. All methods but `close` are called on the event loop and return without waiting for a disk."""

    cache_bytes: int | None
    """How much of each log its `StreamLog` keeps in memory; None when it must keep all."""

    failed: bool
    """Whether the last write failed; `/health` tells."""

    def load(self) -> tuple[list[dict[str, Any]], list[StoredStream], int]:
        """The descriptions of all basins, all streams, and the first number that was never a stream's.

        May block; called once, before the server listens.
        """

    def put_basin(self, description: dict[str, Any], done: Done) -> None: ...

    def drop_basin(self, name: str, done: Done) -> None: ...

    def put_stream(self, number: int, description: dict[str, Any], done: Done) -> None: ...

    def drop_stream(self, number: int, done: Done) -> None: ...

    def append(self, number: int, generation: int, batch: Batch, state: LogState, done: Done) -> None:
        """Keep ``batch`` and ``state``. After a failure all changes of the same generation fail as well."""

    def purge(self, now: int, done: Done) -> None:
        """Forget the batches that have expired or been trimmed, some at a time."""

    async def fetch(self, number: int, seq_num: int) -> list[Batch]:
        """Stored batches from the one that holds ``seq_num`` on, or the next there is; a bounded number."""

    async def find(self, number: int, timestamp: int) -> int | None:
        """The first sequence number of the first batch whose last timestamp is at least ``timestamp``."""

    def close(self) -> None:
        """Finish the changes under way and let go of the files. Blocks for as long as that takes."""


class MemoryStore:
    """Keeps nothing: the logs hold all there is, and every change is done at once."""

    cache_bytes: int | None = None
    failed = False

    def load(self) -> tuple[list[dict[str, Any]], list[StoredStream], int]:
        return [], [], 1

    def put_basin(self, description: dict[str, Any], done: Done) -> None:
        done(None)

    def drop_basin(self, name: str, done: Done) -> None:
        done(None)

    def put_stream(self, number: int, description: dict[str, Any], done: Done) -> None:
        done(None)

    def drop_stream(self, number: int, done: Done) -> None:
        done(None)

    def append(self, number: int, generation: int, batch: Batch, state: LogState, done: Done) -> None:
        done(None)

    def purge(self, now: int, done: Done) -> None:
        done(None)

    async def fetch(self, number: int, seq_num: int) -> list[Batch]:
        return []

    async def find(self, number: int, timestamp: int) -> int | None:
        return None

    def close(self) -> None:
        pass
