"""What one read takes out of stored batches, within its limits."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from s2pubsub.server.names import MAX_BATCH_BYTES, MAX_BATCH_RECORDS, MAX_U64
from s2pubsub.server.record import Batch


@frozen
class Limits:
    """How much a read may still give: records, metered bytes, and the timestamp that it stops before."""

    count: int | None = None
    size: int | None = None
    until: int | None = None

    def less(self, chunk: Chunk) -> Limits:
        return Limits(
            None if self.count is None else self.count - chunk.count,
            None if self.size is None else self.size - chunk.metered,
            self.until,
        )


@frozen
class Chunk:
    """Encoded records in a row. ``ended`` says that the read's limits allow no more than these."""

    data: bytes
    count: int
    metered: int
    next_seq_num: int
    last_seq_num: int
    ended: bool


def expired(batch: Batch, now: int) -> bool:
    """Whether the records of ``batch`` are too old to be read."""
    return batch.expires is not None and batch.expires <= now


def collect(batches: Sequence[Batch], start: int, seq_num: int, tail: int, limits: Limits, now: int) -> Chunk:
    """One chunk out of ``batches[start:]``, from ``seq_num`` on and below ``tail``."""
    count_limit = MAX_U64 if limits.count is None else limits.count
    size_limit = MAX_U64 if limits.size is None else limits.size
    until = MAX_U64 + 1 if limits.until is None else limits.until
    count_room, size_room = min(count_limit, MAX_BATCH_RECORDS), min(size_limit, MAX_BATCH_BYTES)
    parts: list[bytes] = []
    count = metered = 0
    last = -1
    for index in range(start, len(batches)):
        batch = batches[index]
        if batch.seq_num >= tail:
            break
        if batch.next_seq_num <= seq_num:
            continue
        if expired(batch, now):
            seq_num = batch.next_seq_num
            continue
        if (
            batch.seq_num >= seq_num
            and batch.count <= count_room - count
            and batch.metered <= size_room - metered
            and batch.last_timestamp < until
        ):
            parts.append(batch.data)
            count += batch.count
            metered += batch.metered
            seq_num = batch.next_seq_num
            last = seq_num - 1
            continue
        begin = stop = max(0, seq_num - batch.seq_num)
        ended = full = False
        while stop < batch.count:
            size = metered + batch.sizes[stop]
            ended = batch.timestamps[stop] >= until or count >= count_limit or size > size_limit
            full = count >= count_room or size > size_room
            if ended or full:
                break
            count += 1
            metered = size
            stop += 1
        if stop > begin:
            parts.append(batch.data[batch.ends[begin - 1] if begin else 0 : batch.ends[stop - 1]])
            last = batch.seq_num + stop - 1
            seq_num = last + 1
        if ended or full:
            return Chunk(b"".join(parts), count, metered, seq_num, last, ended)
    ended = count >= count_limit or metered >= size_limit
    return Chunk(b"".join(parts), count, metered, seq_num, last, ended)
