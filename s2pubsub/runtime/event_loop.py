"""The event loop of a client: asyncio's, with fewer system calls, connections that do not wait for
acknowledgements, and threads for what blocks. Not for running it or calling it (``loop``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from s2pubsub.runtime.pool import Pool
from s2pubsub.runtime.turns import Bell, Gathering, acknowledge_at_once

_RESOLVERS = 4


class EventLoop(asyncio.SelectorEventLoop):
    """asyncio's, except for its connections and for what blocks, such as name resolution: that goes to daemon threads.

    Attributes:
        pid: the process that it was made in.
        bell: has actions called on it from other threads.
        pool: the threads for what blocks.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        super().__init__(selector)
        # Python's development mode is about its user's program; for this loop it has to be asked for.
        self.set_debug(bool(os.environ.get("PYTHONASYNCIODEBUG")))
        self._ending = False
        self._opened: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self.pid = os.getpid()
        self.bell = Bell(self)
        self.pool = Pool("s2pubsub-resolver", _RESOLVERS)

    def run_in_executor(  # type: ignore[override]  # wider: any callable
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run ``func(*args)`` on a daemon thread; ``executor`` makes no difference."""
        work = self.pool.submit(lambda: func(*args))
        answer = asyncio.wrap_future(work, loop=self)
        # Under gevent Python 3.14 takes the thread for the loop's own, and does not wake the loop.
        work.add_done_callback(lambda _: self.bell.ring(lambda: None))
        return answer

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        """As asyncio's; writes of one turn of the loop are sent together, and what comes is acknowledged at once."""
        transport, protocol = await super().create_connection(*args, **options)
        self._opened.add(transport)
        acknowledge_at_once(transport, protocol)
        return Gathering(transport, self), protocol

    async def abort_connections(self) -> None:
        """Let go of the sockets of all connections, also of those that were closed and still have something to send."""
        for transport in self._opened:
            transport.abort()
        await asyncio.sleep(0)  # asyncio closes a socket a turn later

    def close(self) -> None:
        """As asyncio's."""
        super().close()
        self.bell.close()

    def end_soon(self) -> None:
        """From any thread: let ``run_forever`` return. Idempotent."""
        with contextlib.suppress(RuntimeError):  # it has ended already
            self.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        # A second ``stop`` would break off the winding up, which runs on the loop too.
        if not self._ending:
            self._ending = True
            self.stop()
