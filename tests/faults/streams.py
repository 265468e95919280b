"""What the HTTP/2 layer remembers: of each request on its way, and of each of the two peers.

Values and header compression only. Not for: what happens to them (`http2`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

import attrs
from hpack import Decoder, Encoder

from tests.faults import frames as f
from tests.faults.rules import Rule, SeenRequest


class Registry(Protocol):
    """What the proxy offers to its connections."""

    def saw(self, seen: SeenRequest) -> None:
        """Log a request."""

    def rule_for(self, seen: SeenRequest) -> Rule | None:
        """The first rule that takes the request."""


@attrs.define(eq=False)
class Stream:
    """One request on its way. ``ours``: the server does not know it. ``muted``: its response is swallowed."""

    id: int
    seen: SeenRequest
    rule: Rule | None = None
    ours: bool = False
    muted: bool = False
    headers_passed: bool = False
    response_done: bool = False
    due: bool = False
    records: int = 0
    session: f.SessionFrames | None = None
    partial: bytearray = attrs.field(factory=bytearray)
    held: list[Callable[[], None]] | None = None
    timer: asyncio.TimerHandle | None = None


class Peer:
    """One side of a connection: the frames it sends, the header fields in them, and blocks encoded for it."""

    def __init__(self) -> None:
        self.feed: Callable[[bytes], Iterator[f.Frame]] = f.FrameBuffer().feed
        self._open: tuple[f.Frame, bytes] | None = None
        self._decoder = Decoder(max_header_list_size=1 << 20)
        self._decoder.max_allowed_table_size = 1 << 20  # what the two peers have agreed on is theirs to keep
        self._encoder = Encoder()
        self._encoder.header_table_size = 0  # nothing to keep in step with the peer's settings

    def fields_of(self, frame: f.Frame) -> tuple[f.Frame, list[tuple[str, str]]] | None:
        """The header fields that ``frame`` completes, with the frame that they began in; None if more is to come."""
        first, block = self._open or (frame, b"")
        block += frame.content() if frame.kind == f.HEADERS else frame.payload
        self._open = None if frame.flags & f.END_HEADERS else (first, block)
        if self._open is not None:
            return None
        return first, [(str(name), str(value)) for name, value in self._decoder.decode(block)]

    def encode(self, fields: list[tuple[str, str]]) -> bytes:
        """The header block that this peer can decode."""
        return self._encoder.encode(fields)
