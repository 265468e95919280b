"""The store that survives the process: SQLite in write-ahead mode, one writer thread, group commit.

Whatever changes arrive while a commit is under way go into the next one, and each is reported only after the commit
has reached the disk (``synchronous=FULL``), so an acknowledged record survives the loss of the process or of power.
Reads of what the logs no longer hold run on a second thread with a connection of its own.

Timestamps are unsigned 64-bit numbers and SQLite's are signed: they are stored less 2^63, which keeps their order.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from s2pubsub.server.names import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from s2pubsub.server.record import Batch, batch_from_index
from s2pubsub.server.store import Done, LogState, StoredStream

_VERSION = 1
_OFFSET = 2**63
_CACHE_BYTES = 256 * 1024
_MAX_GROUP = 2000
_PURGE_ROWS = 2000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS basins (name TEXT PRIMARY KEY, description TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS streams (
    number INTEGER PRIMARY KEY, description TEXT NOT NULL,
    next_seq_num INTEGER NOT NULL, last_timestamp INTEGER NOT NULL, fencing_token TEXT NOT NULL,
    trim_point INTEGER NOT NULL, last_append INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS batches (
    id INTEGER PRIMARY KEY, stream INTEGER NOT NULL, seq_num INTEGER NOT NULL, next_seq_num INTEGER NOT NULL,
    last_timestamp INTEGER NOT NULL, expires INTEGER, places BLOB NOT NULL, data BLOB NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS batches_by_place ON batches (stream, seq_num);
CREATE INDEX IF NOT EXISTS batches_by_expiry ON batches (expires) WHERE expires IS NOT NULL;
CREATE TABLE IF NOT EXISTS dropped (stream INTEGER PRIMARY KEY);
"""

_Change = Callable[[sqlite3.Connection], object]


class _Item:
    """A change in the writer's queue. ``key`` is the stream and generation of an append."""

    __slots__ = ("change", "done", "key")

    def __init__(self, change: _Change, done: Done, key: tuple[int, int] | None = None) -> None:
        self.change = change
        self.done = done
        self.key = key


class SqliteStore:
    """A `Store` in the directory ``path``, which is made where it is missing. Make it on the event loop's thread.

    `OSError` when another server uses the directory, or when its files are not usable.
    """

    cache_bytes: int | None = _CACHE_BYTES

    def __init__(self, path: Path) -> None:
        self.failed = False
        path.mkdir(parents=True, exist_ok=True)
        self._loop = asyncio.get_running_loop()
        with ExitStack() as stack:
            try:
                self._guard = stack.enter_context(closing(_take_directory(path)))
                self._writing = stack.enter_context(closing(_connect(path)))
                self._reading = stack.enter_context(closing(_connect(path)))
                self._prepare()
            except sqlite3.Error as error:
                raise OSError(f"the data in {path} cannot be opened: {error}") from error
            stack.pop_all()
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._broken: dict[int, int] = {}
        self._trimmed: dict[int, int] = {}
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="s2pubsub-server-read")
        self._writer = threading.Thread(target=self._write, name="s2pubsub-server-write", daemon=True)
        self._writer.start()

    def _prepare(self) -> None:
        version = self._writing.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"it was written by another version of this server ({version})")
        self._writing.executescript(_SCHEMA)
        self._writing.execute(f"PRAGMA user_version = {_VERSION}")

    def load(self) -> tuple[list[dict[str, Any]], list[StoredStream], int]:
        basins = [json.loads(row[0]) for row in self._reading.execute("SELECT description FROM basins")]
        streams: list[StoredStream] = []
        rows = self._reading.execute(
            "SELECT number, description, next_seq_num, last_timestamp, fencing_token, trim_point, last_append"
            " FROM streams"
        )
        for number, description, next_seq_num, last, token, trim_point, last_append in rows:
            state = LogState(next_seq_num, last + _OFFSET, token, trim_point, last_append)
            streams.append(StoredStream(number, json.loads(description), state))
            if trim_point:
                self._trimmed[number] = trim_point
        # A number that still waits to be purged must not be given to another stream: its records would go along.
        (highest,) = self._reading.execute(
            "SELECT max((SELECT coalesce(max(number), 0) FROM streams), (SELECT coalesce(max(stream), 0) FROM dropped),"
            " (SELECT coalesce(max(stream), 0) FROM batches))"
        ).fetchone()
        return basins, streams, highest + 1

    # Changes

    def put_basin(self, description: dict[str, Any], done: Done) -> None:
        row = (description["name"], json.dumps(description))
        self._submit(lambda db: db.execute("INSERT OR REPLACE INTO basins VALUES (?, ?)", row), done)

    def drop_basin(self, name: str, done: Done) -> None:
        self._submit(lambda db: db.execute("DELETE FROM basins WHERE name = ?", (name,)), done)

    def put_stream(self, number: int, description: dict[str, Any], done: Done) -> None:
        text = json.dumps(description)
        row = (number, text, 0, -_OFFSET, "", 0, 0, text)
        self._submit(
            lambda db: db.execute(
                "INSERT INTO streams VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (number) DO UPDATE SET description = ?",
                row,
            ),
            done,
        )

    def drop_stream(self, number: int, done: Done) -> None:
        def change(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM streams WHERE number = ?", (number,))
            db.execute("INSERT OR IGNORE INTO dropped VALUES (?)", (number,))

        self._submit(change, done)

    def append(self, number: int, generation: int, batch: Batch, state: LogState, done: Done) -> None:
        last = batch.last_timestamp - _OFFSET
        row = (number, batch.seq_num, batch.next_seq_num, last, batch.expires, batch.index(), batch.data)
        after = (state.next_seq_num, last, state.fencing_token, state.trim_point, state.last_append, number)
        if state.trim_point:
            self._trimmed[number] = state.trim_point

        def change(db: sqlite3.Connection) -> None:
            db.execute(
                "INSERT INTO batches (stream, seq_num, next_seq_num, last_timestamp, expires, places, data)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                row,
            )
            db.execute(
                "UPDATE streams SET next_seq_num = ?, last_timestamp = ?, fencing_token = ?, trim_point = ?,"
                " last_append = ? WHERE number = ?",
                after,
            )

        self._queue.put(_Item(change, done, (number, generation)))

    def purge(self, now: int, done: Done) -> None:
        trimmed, self._trimmed = self._trimmed, {}
        unfinished: dict[int, int] = {}

        def change(db: sqlite3.Connection) -> None:
            db.execute(
                "DELETE FROM batches WHERE id IN (SELECT id FROM batches WHERE expires <= ? LIMIT ?)",
                (now, _PURGE_ROWS),
            )
            for number, trim_point in trimmed.items():
                # Below the index of the first retained batch nothing is in between: a range of the index.
                place = (number, trim_point, trim_point)
                if _delete(db, "stream = ? AND seq_num < ? AND next_seq_num <= ?", place) == _PURGE_ROWS:
                    unfinished[number] = trim_point
            for (number,) in db.execute("SELECT stream FROM dropped LIMIT 10").fetchall():
                if not _delete(db, "stream = ?", (number,)):
                    db.execute("DELETE FROM dropped WHERE stream = ?", (number,))

        def purged(error: BaseException | None) -> None:
            self._trimmed = {**(trimmed if error else unfinished), **self._trimmed}
            done(error)

        self._submit(change, purged)

    def _submit(self, change: _Change, done: Done) -> None:
        self._queue.put(_Item(change, done))

    # The writer thread

    def _write(self) -> None:
        open_ = True
        while open_:
            items: list[_Item] = []
            item = self._queue.get()
            while item is not None:
                items.append(item)
                if len(items) >= _MAX_GROUP:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            open_ = item is not None
            if items:
                self._commit(items)

    def _commit(self, items: list[_Item]) -> None:
        """Make one transaction of ``items`` and report the outcome of each on the event loop."""
        outcomes: list[tuple[Done, BaseException | None]] = []
        valid: list[_Item] = []
        for item in items:
            if item.key is not None and self._broken.get(item.key[0], -1) >= item.key[1]:
                # Its place follows that of an append which was lost.
                outcomes.append((item.done, sqlite3.OperationalError("an earlier append could not be stored")))
            else:
                valid.append(item)
        error: BaseException | None = None
        try:
            self._writing.execute("BEGIN IMMEDIATE")
            for item in valid:
                item.change(self._writing)
            self._writing.execute("COMMIT")
        except Exception as problem:  # noqa: BLE001 - every failure must reach those who wait
            error = problem
            self._roll_back()
            for item in valid:
                if item.key is not None:
                    self._broken[item.key[0]] = max(self._broken.get(item.key[0], -1), item.key[1])
        self.failed = error is not None
        outcomes += [(item.done, error) for item in valid]
        try:
            self._loop.call_soon_threadsafe(_report, outcomes)
        except RuntimeError:
            pass  # the loop has ended: nobody waits any more

    def _roll_back(self) -> None:
        try:
            if self._writing.in_transaction:
                self._writing.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # the failure that led here is the one to report

    # Reading

    async def fetch(self, number: int, seq_num: int) -> list[Batch]:
        return await self._loop.run_in_executor(self._reader, self._fetch, number, seq_num)

    def _fetch(self, number: int, seq_num: int) -> list[Batch]:
        rows = self._reading.execute(
            "SELECT seq_num, places, data, expires FROM batches WHERE stream = ? AND next_seq_num > ? AND seq_num >="
            " coalesce((SELECT max(seq_num) FROM batches WHERE stream = ? AND seq_num <= ?), 0) ORDER BY seq_num",
            (number, seq_num, number, seq_num),
        )
        batches: list[Batch] = []
        records = size = 0
        for first, places, data, expires in rows:
            batch = batch_from_index(first, places, data, expires)
            batches.append(batch)
            records += batch.count
            size += batch.metered
            if records >= MAX_BATCH_RECORDS or size >= MAX_BATCH_BYTES:
                break
        rows.close()
        return batches

    async def find(self, number: int, timestamp: int) -> int | None:
        return await self._loop.run_in_executor(self._reader, self._find, number, timestamp - _OFFSET)

    def _find(self, number: int, wanted: int) -> int | None:
        """Halve the range of sequence numbers until one batch is left: timestamps never decrease along it."""
        low, high = self._reading.execute(
            "SELECT min(seq_num), max(next_seq_num) FROM batches WHERE stream = ?", (number,)
        ).fetchone()
        if low is None:
            return None
        found: int | None = None
        while low < high:
            middle = (low + high) // 2
            row = self._reading.execute(
                "SELECT seq_num, next_seq_num, last_timestamp FROM batches WHERE stream = ? AND seq_num <= ?"
                " ORDER BY seq_num DESC LIMIT 1",
                (number, middle),
            ).fetchone()
            if row is None or row[2] < wanted:
                low = middle + 1 if row is None else max(middle + 1, row[1])
            else:
                found = high = row[0]
        return found

    def close(self) -> None:
        self._queue.put(None)
        self._writer.join()
        self._reader.shutdown(wait=True)
        self._reading.close()
        self._writing.close()
        self._guard.close()


def _report(outcomes: list[tuple[Done, BaseException | None]]) -> None:
    for done, error in outcomes:
        done(error)


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path / "s2pubsub.db", isolation_level=None, check_same_thread=False, timeout=10)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error:
        db.close()
        raise
    return db


def _take_directory(path: Path) -> sqlite3.Connection:
    """Hold the directory for this process; the lock goes with the process, however that ends."""
    guard = sqlite3.connect(path / "s2pubsub.lock", isolation_level=None, check_same_thread=False, timeout=0)
    try:
        guard.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        guard.close()
        raise OSError(f"{path} is in use by another server") from error
    return guard


def _delete(db: sqlite3.Connection, condition: str, values: tuple[int, ...]) -> int:
    """Delete some of the batches that meet ``condition``; how many."""
    statement = f"DELETE FROM batches WHERE id IN (SELECT id FROM batches WHERE {condition} LIMIT ?)"
    return db.execute(statement, (*values, _PURGE_ROWS)).rowcount
