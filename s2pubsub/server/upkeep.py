"""What the server does by itself, once a second: records that are too old, streams that are empty for too long."""

from __future__ import annotations

import asyncio
import logging

from s2pubsub.server.catalog import Catalog
from s2pubsub.server.failure import ApiError
from s2pubsub.server.store import Store

_log = logging.getLogger("s2pubsub.server")

_PERIOD = 1.0
_CACHE_AGE = 60_000


async def keep_up(catalog: Catalog, store: Store) -> None:
    """Run until cancelled."""
    while True:
        await asyncio.sleep(_PERIOD)
        try:
            await _round(catalog, store)
        except Exception:  # noqa: BLE001 - the next round may succeed
            _log.exception("the upkeep of the embedded server failed; it goes on")


async def _round(catalog: Catalog, store: Store) -> None:
    now = catalog.now()
    for basin, stream in catalog.streams():
        log = stream.log
        log.expire(now)
        if now > log.last_append + _CACHE_AGE:
            log.release()
        age = log.config.min_age or 0
        if age and now >= log.last_append + age * 1000 and not log.pending_bytes and await log.is_empty(now):
            try:
                await catalog.delete_empty_stream(basin.name, stream)
            except ApiError:
                pass  # it has gone meanwhile, or is used again
    store.purge(now, lambda error: None)
