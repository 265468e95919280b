"""What an appender has taken and the server has not acknowledged: batches with their conditions, and reading them back.

After a broken session it is unknown whether its batches are stored. With conditions on them the log can tell: the
records behind the last acknowledged one are compared, byte by byte, with what is unacknowledged; an event's body holds
its id, so equal bytes are the same event. Relies on nothing but the SDK's values. Not for sessions (``appending``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

import attrs
import s2_sdk

from s2pubsub.errors import StoreError
from s2pubsub.store.failures import ConditionError, PastTailError


class Item(Protocol):
    """A record to append: an event's body, or, with ``fence``, the command that sets the fencing token to it."""

    @property
    def body(self) -> bytes: ...

    @property
    def fence(self) -> str | None: ...


I = TypeVar("I", bound=Item)  # noqa: E741  # the one type variable here

Read = Callable[[int], Awaitable[Sequence[s2_sdk.SequencedRecord]]]
"""Reads records from a sequence number on; raises ours."""


@attrs.define(eq=False, slots=True)
class Batch(Generic[I]):
    """Items that are appended together.

    Attributes:
        sent: in the session that is open now.
        uncertain: it was in flight when a session ended without an answer about it.
    """

    items: Sequence[I]
    entry: s2_sdk.AppendInput
    sent: bool = False
    uncertain: bool = False


class Unacked(Generic[I]):
    """The batches, in order. On the I/O loop only.

    Args:
        doing: begins the messages of errors.
        position, token, is_own: as for ``Appender``.
    """

    def __init__(self, doing: str, position: int | None, token: str | None, is_own: Callable[[str], bool]) -> None:
        self.exact = position is not None and token is None
        self.read_back_first = False
        """Whether ``read_back`` must come before anything is sent again."""
        self._doing = doing
        self._position = position or 0  # exact: of the next new batch; fenced: behind what is known to be stored
        self._token = token
        self._is_own = is_own
        self._batches: deque[Batch[I]] = deque()

    def __iter__(self) -> Iterator[Batch[I]]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def clear(self) -> None:
        """Forget all."""
        self._batches.clear()

    # -- batches -------------------------------------------------------------------------------------------------

    def add(self, items: Sequence[I]) -> list[Batch[I]]:
        """Make a batch of items, or several around fences."""
        if self._token is None:
            return [self._add(items)] if items else []
        batches = []
        start = 0
        for end, item in enumerate(items, 1):
            if item.fence is not None or end == len(items) or items[end].fence is not None:
                batches.append(self._add(items[start:end]))
                start = end
        return batches

    def _add(self, items: Sequence[I]) -> Batch[I]:
        records = [s2_sdk.Record(item.body) if item.fence is None else _fence(item.fence) for item in items]
        entry = s2_sdk.AppendInput(records, fencing_token=self._token)
        if self.exact:
            entry.match_seq_num = self._position
            self._position += len(items)
        elif items[0].fence is not None:
            self._token = items[0].fence
        batch = Batch(items, entry)
        self._batches.append(batch)
        return batch

    def acknowledged(self, batch: Batch[I], first: int) -> None:
        """The oldest batch is stored from ``first`` on."""
        assert self._batches[0] is batch
        self._batches.popleft()
        if not self.exact:
            self._position = first + len(batch.items)

    # -- after a session -----------------------------------------------------------------------------------------

    def doubt(self) -> None:
        """The session ended without an answer about what was sent in it."""
        for batch in self._batches:
            batch.uncertain = batch.uncertain or batch.sent
        if self.exact and any(batch.uncertain for batch in self._batches):
            self.read_back_first = True

    def explain(self, mismatch: ConditionError) -> bool:
        """Whether a condition that was not met may be of our own making; then reading back will tell."""
        possible = self.exact or (mismatch.token is not None and self._adopt(mismatch.token))
        self.read_back_first = self.read_back_first or possible
        return possible

    def _adopt(self, token: str) -> bool:
        """Whether we can go on although ``token`` is in force; condition the batches on it if needed."""
        if any(item.fence == token for batch in self._batches for item in batch.items):
            return True  # it and all before it are stored; reading back finds them
        if not self._is_own(token):
            return False
        for batch in self._batches:
            batch.entry.fencing_token = token
            if batch.items[0].fence is not None:
                return True  # from there on, the tokens are those that are written here
        self._token = token
        return True

    # -- reading back --------------------------------------------------------------------------------------------

    async def read_back(self, read: Read, found: Callable[[I, int], object]) -> None:
        """Take out what is stored, telling ``found`` of each item and its place; condition the rest on what follows.

        Raises:
            SecondWriterError: exact, and somebody else's record is where the next item was to be.
            StoreError: what ``read`` raises; or the records are gone, so nobody can tell.
        """
        waiting = deque(item for batch in self._batches for item in batch.items)
        token = self._batches[0].entry.fencing_token
        at = (self._batches[0].entry.match_seq_num or 0) if self.exact else self._position
        try:
            while waiting and (records := await self._stored_from(read, at)):
                for record in records:
                    if not waiting:
                        break
                    if self.exact and record.seq_num != at:
                        raise _trimmed(self._doing, at)
                    if _is_record_of(record, waiting[0]):
                        item = waiting.popleft()
                        token = token if item.fence is None else item.fence
                        found(item, record.seq_num)
                    elif self.exact and not record.is_command_record():
                        raise self._second_writer(at)
                    at = record.seq_num + 1
        finally:  # whatever came between: what was found must not be sent or looked for again
            self._rebatch(waiting, token, at)
        self.read_back_first = False

    def _rebatch(self, waiting: deque[I], token: str | None, at: int) -> None:
        """Form batches anew from what is not stored, as they were, from the sequence number ``at`` on."""
        left = {id(item) for item in waiting}
        before = tuple(self._batches)
        self._batches.clear()
        self._position = at
        self._token = token
        for batch in before:
            items = [item for item in batch.items if id(item) in left]
            if items:
                self._add(items).uncertain = batch.uncertain

    async def _stored_from(self, read: Read, at: int) -> Sequence[s2_sdk.SequencedRecord]:
        """Records from ``at``; none at the tail."""
        try:
            records = await read(at)
        except PastTailError as past:
            if past.tail < at:
                raise _lost(f"{self._doing}: the stream ends at {past.tail} although {at} was stored") from past
            return ()
        except StoreError as error:
            if error.kind != "gone":
                raise
            if at > 0:
                raise _lost(f"{self._doing}: the stream was deleted") from error
            return ()
        if not records:
            raise _trimmed(self._doing, at)
        return records

    def _second_writer(self, at: int) -> SecondWriterError:
        error = SecondWriterError(
            f"{self._doing}: record {at} is from a second writer, and this one was opened as the only one "
            f"(exactly_once)",
            code="second_writer",
            status=412,
        )
        error.outcome = "not_stored"  # the place of all that is unacknowledged is taken
        return error


class SecondWriterError(StoreError):
    """Somebody else has written to a stream that was to have one writer."""


def _trimmed(doing: str, at: int) -> StoreError:
    return _lost(f"{doing}: the records from {at} were trimmed before they could be read back")


def _lost(message: str) -> StoreError:
    error = StoreError(message, code="unverifiable", status=None)
    error.outcome = "unknown"
    return error


def _fence(token: str) -> s2_sdk.Record:
    record: s2_sdk.Record = s2_sdk.CommandRecord.fence(token)
    return record


def _is_record_of(record: s2_sdk.SequencedRecord, item: Item) -> bool:
    if item.fence is None:
        return bool(record.body == item.body and not record.is_command_record())
    return bool(record.is_command_record() and record.body == item.fence.encode())
