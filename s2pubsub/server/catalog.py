"""Which basins and streams there are: creation, configuration, listing, deletion.

Changes are checked, stored and applied one at a time under one lock, so what a request has seen committed is what the
next one finds. Data operations look a stream up without the lock and create it where the basin allows that.

Belongs to the event loop. Knows nothing of HTTP; refusals are `ApiError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

import attrs

from s2pubsub.server.config import (
    SYSTEM_DEFAULTS,
    BasinConfig,
    Patch,
    StreamConfig,
    basin_config,
    patch_basin,
    stream_config,
)
from s2pubsub.server.failure import ApiError
from s2pubsub.server.log import StreamLog
from s2pubsub.server.named import Named
from s2pubsub.server.store import Done, LogState, Store

Outcome = Literal["created", "updated", "noop"]


class Stream:
    """A stream: its description and its log."""

    def __init__(self, name: str, number: int, description: dict[str, Any], log: StreamLog) -> None:
        self.name = name
        self.number = number
        self.description = description
        self.log = log

    @property
    def cipher(self) -> str | None:
        cipher: str | None = self.description["cipher"]
        return cipher

    def info(self) -> dict[str, Any]:
        """The API's StreamInfo."""
        return {
            "name": self.name,
            "created_at": self.description["created_at"],
            "deleted_at": None,
            "cipher": self.cipher,
        }


class Basin:
    """A basin: its description, its configuration and its streams."""

    def __init__(self, name: str, description: dict[str, Any]) -> None:
        self.name = name
        self.description = description
        self.config = basin_config(description["config"])
        self.streams: Named[Stream] = Named()

    @property
    def deleting(self) -> bool:
        return self.description["deleted_at"] is not None

    def info(self) -> dict[str, Any]:
        """The API's BasinInfo."""
        return {
            "name": self.name,
            "location": None,
            "created_at": self.description["created_at"],
            "deleted_at": self.description["deleted_at"],
            "state": "deleting" if self.deleting else "active",
        }


class Catalog:
    """All basins of a server and their streams."""

    def __init__(self, store: Store, clock: Callable[[], int]) -> None:
        self.basins: Named[Basin] = Named()
        self._store = store
        self._clock = clock
        self._lock = asyncio.Lock()
        self._next_number = 1
        self._tasks: set[asyncio.Task[None]] = set()

    def load(self) -> None:
        """Take over what the store holds. Call once, on the event loop, before anything else."""
        basins, streams, self._next_number = self._store.load()
        for description in basins:
            self.basins.put(description["name"], Basin(description["name"], description))
        for stored in streams:
            basin = self.basins.get(stored.description["basin"])
            if basin is not None:
                basin.streams.put(
                    stored.description["name"], self._stream(stored.number, stored.description, stored.state)
                )
        for basin in self.basins.values():
            if basin.deleting:
                self._empty(basin)

    def _stream(self, number: int, description: dict[str, Any], state: LogState) -> Stream:
        config = stream_config(description["config"])
        log = StreamLog(self._store, number, config, state, description["created"])
        return Stream(description["name"], number, description, log)

    async def _stored(self, change: Callable[[Done], None]) -> None:
        """Have the store make a change and wait until it is durable."""
        result: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            if result.done():
                return
            if error is None:
                result.set_result(None)
            else:
                result.set_exception(ApiError("storage", f"the change could not be stored: {error}"))

        change(done)
        await result

    def now(self) -> int:
        """The wall clock in milliseconds."""
        return self._clock()

    # Basins

    def basin(self, name: str) -> Basin:
        basin = self.basins.get(name)
        if basin is None:
            raise ApiError("basin_not_found", f"basin {name!r} does not exist")
        return basin

    def live_basin(self, name: str) -> Basin:
        """The basin, which must not be on its way out."""
        basin = self.basin(name)
        if basin.deleting:
            raise ApiError("basin_deletion_pending", f"basin {name!r} is being deleted")
        return basin

    async def create_basin(self, name: str, config: BasinConfig, token: str | None) -> tuple[Basin, Outcome]:
        async with self._lock:
            basin = self.basins.get(name)
            if basin is not None:
                self.live_basin(name)
                wanted = _creation(token, config.document())
                if token is None or basin.description["creation"] != wanted:
                    raise ApiError("resource_already_exists", f"basin {name!r} exists")
                return basin, "noop"
            return await self._add_basin(name, config, token), "created"

    async def ensure_basin(self, name: str, config: BasinConfig) -> tuple[Basin, Outcome]:
        async with self._lock:
            if self.basins.get(name) is None:
                return await self._add_basin(name, config, None), "created"
            basin = self.live_basin(name)
            if basin.config == config:
                return basin, "noop"
            await self._configure_basin(basin, config)
            return basin, "updated"

    async def reconfigure_basin(self, name: str, patch: Patch) -> Basin:
        async with self._lock:
            basin = self.live_basin(name)
            await self._configure_basin(basin, patch_basin(basin.config, patch))
            return basin

    async def _add_basin(self, name: str, config: BasinConfig, token: str | None) -> Basin:
        document = config.document()
        basin = Basin(
            name,
            {
                "name": name,
                "config": document,
                "created_at": rfc3339(self._clock()),
                "deleted_at": None,
                "creation": _creation(token, document),
            },
        )
        await self._stored(lambda done: self._store.put_basin(basin.description, done))
        self.basins.put(name, basin)
        return basin

    async def _configure_basin(self, basin: Basin, config: BasinConfig) -> None:
        description = {**basin.description, "config": config.document()}
        await self._stored(lambda done: self._store.put_basin(description, done))
        basin.description, basin.config = description, config

    async def delete_basin(self, name: str) -> None:
        async with self._lock:
            basin = self.basin(name)
            if basin.deleting:
                return
            if not len(basin.streams):
                await self._stored(lambda done: self._store.drop_basin(name, done))
                self.basins.drop(name)
                return
            description = {**basin.description, "deleted_at": rfc3339(self._clock())}
            await self._stored(lambda done: self._store.put_basin(description, done))
            basin.description = description
            self._empty(basin)

    def _empty(self, basin: Basin) -> None:
        """Delete a basin's streams and then the basin, behind the back of whoever asked for it."""
        task = asyncio.get_running_loop().create_task(self._delete_streams(basin))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _delete_streams(self, basin: Basin) -> None:
        async with self._lock:
            try:
                for stream in basin.streams.values():
                    await self._drop_stream(basin, stream)
                await self._stored(lambda done: self._store.drop_basin(basin.name, done))
            except ApiError:
                return  # the store is failing; the deletion goes on when the server starts again
            self.basins.drop(basin.name)

    # Streams

    async def create_stream(
        self, basin_name: str, name: str, config: StreamConfig, token: str | None
    ) -> tuple[Stream, Outcome]:
        async with self._lock:
            basin = self.live_basin(basin_name)
            stream = basin.streams.get(name)
            if stream is None:
                return await self._add_stream(basin, name, config, token), "created"
            stream.log.check()
            wanted = _creation(token, config.document())
            if token is None or stream.description["creation"] != wanted:
                raise ApiError("resource_already_exists", f"stream {name!r} exists")
            return stream, "noop"

    async def ensure_stream(self, basin_name: str, name: str, config: StreamConfig) -> tuple[Stream, Outcome]:
        async with self._lock:
            basin = self.live_basin(basin_name)
            stream = basin.streams.get(name)
            if stream is None:
                return await self._add_stream(basin, name, config, None), "created"
            stream.log.check()
            resolved = self._resolve(basin, config)
            if stream.log.config == resolved:
                return stream, "noop"
            await self._configure_stream(stream, resolved)
            return stream, "updated"

    async def reconfigure_stream(self, basin_name: str, name: str, patch: Patch) -> Stream:
        async with self._lock:
            basin = self.live_basin(basin_name)
            stream = self._existing(basin, name)
            await self._configure_stream(stream, self._resolve(basin, attrs.evolve(stream.log.config, **patch)))
            return stream

    async def delete_stream(self, basin_name: str, name: str) -> None:
        async with self._lock:
            basin = self.basins.get(basin_name)
            stream = basin.streams.get(name) if basin is not None else None
            if basin is None or stream is None:
                raise _no_stream(name)
            await self._drop_stream(basin, stream)

    async def delete_empty_stream(self, basin_name: str, stream: Stream) -> None:
        """Delete ``stream`` if it is still there and still empty."""
        async with self._lock:
            basin = self.basins.get(basin_name)
            if basin is None or basin.streams.get(stream.name) is not stream:
                return
            log, now = stream.log, self._clock()
            due = log.last_append + (log.config.min_age or 0) * 1000
            if log.config.min_age and now >= due and not log.pending_bytes and await log.is_empty(now):
                await self._drop_stream(basin, stream)

    def _resolve(self, basin: Basin, config: StreamConfig) -> StreamConfig:
        return config.over(basin.config.default).over(SYSTEM_DEFAULTS)

    async def _add_stream(self, basin: Basin, name: str, config: StreamConfig, token: str | None) -> Stream:
        now = self._clock()
        description = {
            "basin": basin.name,
            "name": name,
            "config": self._resolve(basin, config).document(),
            "cipher": basin.config.cipher,
            "created": now,
            "created_at": rfc3339(now),
            "creation": _creation(token, config.document()),
        }
        number = self._next_number
        self._next_number += 1
        await self._stored(lambda done: self._store.put_stream(number, description, done))
        stream = self._stream(number, description, LogState())
        basin.streams.put(name, stream)
        return stream

    async def _configure_stream(self, stream: Stream, config: StreamConfig) -> None:
        description = {**stream.description, "config": config.document()}
        await self._stored(lambda done: self._store.put_stream(stream.number, description, done))
        stream.description = description
        stream.log.config = config

    async def _drop_stream(self, basin: Basin, stream: Stream) -> None:
        stream.log.close("stream_deletion_pending", f"stream {stream.name!r} is being deleted")
        try:
            await self._stored(lambda done: self._store.drop_stream(stream.number, done))
        except ApiError:
            stream.log.reopen()
            raise
        basin.streams.drop(stream.name)

    def _existing(self, basin: Basin, name: str) -> Stream:
        stream = basin.streams.get(name)
        if stream is None:
            raise _no_stream(name)
        stream.log.check()
        return stream

    def stream(self, basin_name: str, name: str) -> Stream:
        """An existing stream. A missing basin is reported as a missing stream, as the real server does."""
        basin = self.basins.get(basin_name)
        if basin is None:
            raise _no_stream(name)
        return self._existing(basin, name)

    async def open(self, basin_name: str, name: str, *, writing: bool, config: StreamConfig | None) -> Stream:
        """The stream for a data operation, created with ``config`` where it is missing and the basin allows that."""
        basin = self.basins.get(basin_name)
        stream = basin.streams.get(name) if basin is not None else None
        if stream is None:
            basin = self.basin(basin_name)
            allowed = basin.config.create_on_append if writing else basin.config.create_on_read
            if not allowed:
                raise _no_stream(name)
            async with self._lock:
                basin = self.live_basin(basin_name)
                stream = basin.streams.get(name)
                if stream is None:
                    stream = await self._add_stream(basin, name, config or StreamConfig(), None)
        stream.log.check()
        return stream

    def streams(self) -> list[tuple[Basin, Stream]]:
        """Every stream with its basin."""
        return [(basin, stream) for basin in self.basins.values() for stream in basin.streams.values()]

    async def close(self) -> None:
        """Stop the deletions under way; they go on when the server starts again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def rfc3339(milliseconds: int) -> str:
    """A time as the API writes it."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _creation(token: str | None, document: dict[str, Any]) -> list[Any] | None:
    """What a repeated create must match to be taken for the same one."""
    return None if token is None else [token, document]


def _no_stream(name: str) -> ApiError:
    return ApiError("stream_not_found", f"stream {name!r} does not exist")
