"""A lane: one S2 client of the SDK, and with it the connections, for one kind of work; replaceable.

Reads and writes travel on separate lanes, since an append on a connection that also carries live read sessions
waits 44 ms for delayed acknowledgements. The SDK never replaces a connection that has gone silent, so a lane does:
when a call got no answer in time while nothing else was heard either, new work goes to a fresh client; the old one
is closed when its calls have ended. Everything here runs on the I/O loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import s2_sdk

from s2pubsub.errors import ClosedError, S2PubSubError, StoreError
from s2pubsub.runtime.fork import reset_in_child, undisturbed
from s2pubsub.store.failures import classify, is_broken_client

T = TypeVar("T")

SILENCE = 5.0
"""Seconds without any answer after which a call's connection is given up for new work: the SDK's request timeout."""

_NOTICEABLE = 0.05
"""A call that was given up sooner says nothing about its connection."""

_CLOSE_LIMIT = 2.0


class Tenancy:
    """An S2 client with the number of its users, closed when it is retired and the last one has left."""

    def __init__(self, s2: s2_sdk.S2) -> None:
        self.s2 = s2
        self.users = 0
        self.retired = False
        self.heard_at = 0.0


class Lane:
    """Hands out the current client of one kind of work.

    Args:
        make: makes a client; called on a helper thread, since it loads TLS certificates and may be the user's.
        replaceable: False for a client that the user made: it is used as long as the lane lives.
    """

    def __init__(self, make: Callable[[], s2_sdk.S2], *, replaceable: bool = True) -> None:
        self._make = make
        self._replaceable = replaceable
        self._reset()
        reset_in_child(self)

    def _reset(self) -> None:
        self._current: Tenancy | None = None
        self._all: set[Tenancy] = set()
        self._making = asyncio.Lock()
        self._closers: set[asyncio.Task[None]] = set()
        self._closed = False
        self.replaced = 0

    def _reset_in_child(self) -> None:
        if self._current is not None and not self._replaceable:
            self._make = _refuse_inherited
        self._reset()

    async def enter(self) -> Tenancy:
        """The current client, made if there is none; pair with ``leave``."""
        tenancy = self._current
        if tenancy is None:
            async with self._making:
                tenancy = self._current
                if tenancy is None:
                    s2 = await self._made()
                    tenancy = self._current = Tenancy(s2)
                    self._all.add(tenancy)
        tenancy.users += 1
        return tenancy

    async def ready(self) -> None:
        """Return when there is a client."""
        self.leave(await self.enter())

    def _make_undisturbed(self) -> s2_sdk.S2:
        # A child forked while this thread is inside OpenSSL could never make a client of its own.
        with undisturbed():
            return self._make()

    async def _made(self) -> s2_sdk.S2:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, self._make_undisturbed)
        except S2PubSubError:
            raise
        except Exception as error:
            # The callable is the user's: what it raises may be an outage (a token that has to be fetched), or final.
            failed = classify(error, "making the S2 client")
            failed.outcome = "not_stored"
            raise failed from error

    def leave(self, tenancy: Tenancy) -> None:
        """Give a client back."""
        tenancy.users -= 1
        if tenancy.retired and tenancy.users == 0:
            self._close_soon(tenancy)

    def retire(self, tenancy: Tenancy) -> None:
        """Send new work to a fresh client."""
        if not self._replaceable or tenancy.retired:
            return
        tenancy.retired = True
        self.replaced += 1
        if self._current is tenancy:
            self._current = None
        if tenancy.users == 0:
            self._close_soon(tenancy)

    async def run(self, doing: str, work: Callable[[s2_sdk.S2], Awaitable[T]]) -> T:
        """Run one unary call; errors of the SDK come out as ours, ``doing`` begins their message."""
        tenancy = await self.enter()
        started = time.monotonic()
        watch = asyncio.get_running_loop().call_later(SILENCE, self._give_up_if_silent, tenancy, started)
        try:
            result = await work(tenancy.s2)
            tenancy.heard_at = time.monotonic()
            return result
        except asyncio.CancelledError:
            if time.monotonic() - started >= _NOTICEABLE:
                self._give_up_if_silent(tenancy, started)
            raise
        except Exception as error:
            if is_broken_client(error):
                self.retire(tenancy)
            elif isinstance(error, s2_sdk.S2ServerError):
                tenancy.heard_at = time.monotonic()
            elif self._closed:
                closed = ClosedError(f"{doing}: the client was closed meanwhile")
                closed.outcome = "unknown"
                raise closed from error
            raise classify(error, doing) from error
        finally:
            watch.cancel()
            self.leave(tenancy)

    def doubt(self, since: float) -> None:
        """Somebody gave up waiting for an answer that was due since ``since``."""
        if self._current is not None and time.monotonic() - since >= _NOTICEABLE:
            self._give_up_if_silent(self._current, since)

    def _give_up_if_silent(self, tenancy: Tenancy, since: float) -> None:
        if tenancy.heard_at < since:
            self.retire(tenancy)

    def _close_soon(self, tenancy: Tenancy) -> None:
        task = asyncio.get_running_loop().create_task(self._close(tenancy))
        self._closers.add(task)
        task.add_done_callback(self._closers.discard)

    async def _close(self, tenancy: Tenancy) -> None:
        self._all.discard(tenancy)
        try:
            async with asyncio.timeout(_CLOSE_LIMIT):
                await tenancy.s2.close()
        except (TimeoutError, s2_sdk.S2Error, OSError):
            pass  # its connections are broken; the loop drops them

    async def close(self) -> None:
        """Close every client, retired ones included."""
        self._closed = True
        self._current = None
        await asyncio.gather(*(self._close(tenancy) for tenancy in tuple(self._all)), *self._closers)


def _refuse_inherited() -> s2_sdk.S2:
    raise ClosedError(
        "the ready-made S2 client belongs to the parent process; pass client=<a callable that makes one> to use this "
        "S2PubSub after a fork"
    )


def no_answer(doing: str) -> StoreError:
    """The error for a connection that was closed under a call."""
    return StoreError(f"{doing}: the connection was closed", code="connection", status=None, kind="outage")
