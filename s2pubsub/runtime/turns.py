"""Fewer system calls for the I/O loop: each one lets go of the interpreter, and a busy thread then keeps it for 5 ms.

One small event passes some ten turns of the loop on its way through the SDK. asyncio asks the system for I/O at each of
them, and writes each frame by itself. Here the loop looks at its sockets only at every eighth turn while it has work,
and what is written in one turn is sent together. One call is spent on top: acknowledging at
once what comes, since the wait would cost more. Relies on what selectors and transports promise, no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

_TURNS = 8
"""So many turns in a row do without looking for I/O, as long as there is something else to do."""


class Selector(selectors.DefaultSelector):
    """The system's selector, which is not asked at every turn of a busy loop."""

    _passed = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready; with a ``timeout`` of 0 most of the time nothing."""
        if timeout == 0 and self._passed < _TURNS:
            self._passed += 1
            return []
        self._passed = 0
        return super().select(timeout)


class Gathering:
    """A transport that sends what was written in one turn of the loop at its end, with one system call."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Send ``data`` when the turn is over."""
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)

    def _flush(self) -> None:
        if self._held:
            data = b"".join(self._held)
            self._held.clear()
            if not self._transport.is_closing():  # asyncio warns who writes to a lost one
                self._transport.write(data)

    def close(self) -> None:
        """Send what is held and close."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def acknowledge_at_once(transport: asyncio.BaseTransport, protocol: asyncio.Protocol) -> None:
    """Have what comes on a connection acknowledged as it comes, where the system can do that.

    Linux may wait 40 ms for something to send along, and a server that gathers small writes (RFC 896) sends the rest
    of its answer only after that: half of all short reads from `s2 lite` took that long.
    """
    connection = transport.get_extra_info("socket")
    if hasattr(socket, "TCP_QUICKACK") and connection.family in (socket.AF_INET, socket.AF_INET6):
        transport.set_protocol(_Prompt(protocol, connection))  # type: ignore[arg-type]  # it has all that one has


class _Prompt:
    def __init__(self, protocol: asyncio.Protocol, connection: socket.socket) -> None:
        self._protocol = protocol
        self._connection = connection

    def data_received(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # closed, and the last bytes come out of its encryption
            # Each time, since the system forgets it.
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        self._protocol.data_received(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._protocol, name)


class Bell:
    """Has actions called on a loop. Ringing it takes a third of the time of ``call_soon_threadsafe``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        # Knows whether it is closed, and a number does not, which somebody else may have got since.
        self._writer = open(self._writing, "wb", buffering=0, closefd=False)  # noqa: SIM115
        self._actions: deque[Callable[[], object]] = deque()
        loop.add_reader(self._reading, self._answer)

    def ring(self, action: Callable[[], object]) -> None:
        """Have ``action`` called soon; nothing happens when the loop has ended. From any thread."""
        self._actions.append(action)
        try:
            self._writer.write(b"\0")
        except (ValueError, OSError):
            pass  # closed, or just being closed

    def _answer(self) -> None:
        os.read(self._reading, 4096)
        while self._actions:
            self._actions.popleft()()

    def close(self) -> None:
        """Let go of its descriptors."""
        self._writer.close()
        os.close(self._writing)
        os.close(self._reading)
