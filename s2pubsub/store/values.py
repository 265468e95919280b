"""What the store tells about streams and the basin. Relies on nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import attrs


@attrs.frozen
class StreamInfo:
    """A listed stream."""

    name: str
    created_at: datetime
    deleting: bool


@attrs.frozen
class BasinFlags:
    """The two settings of a basin that publish/subscribe needs."""

    create_stream_on_append: bool
    create_stream_on_read: bool

    def named(self) -> Sequence[tuple[str, bool]]:
        """The settings with the names that S2 uses."""
        return (
            ("create-stream-on-append", self.create_stream_on_append),
            ("create-stream-on-read", self.create_stream_on_read),
        )
