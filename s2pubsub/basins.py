"""The basin and its settings. What the calls mean stands at ``S2PubSub``."""

from __future__ import annotations

from s2pubsub.engine import Engine
from s2pubsub.errors import StoreError
from s2pubsub.runtime.deadline import Deadline


def ensure(engine: Engine, retention: int | None, delete_on_empty: int | None, timeout: float | None) -> None:
    """See ``S2PubSub.ensure_basin``."""
    for name, value in (("retention", retention), ("delete_on_empty", delete_on_empty)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise TypeError(f"{name} must be an int of seconds, not {value!r}")
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1 second, got {value}")
    engine.check_open()
    engine.store.ensure_basin(Deadline.after(timeout), retention=retention, delete_on_empty=delete_on_empty)


def check(engine: Engine, timeout: float | None) -> None:
    """See ``S2PubSub.check``."""
    engine.check_open()
    flags = engine.store.flags(Deadline.after(timeout))
    off = [name for name, on in flags.named() if not on]
    if off:
        raise StoreError(
            f"basin {engine.store.basin!r} has {' and '.join(off)} off; ensure_basin() turns them on",
            code="basin_settings",
            status=None,
        )
