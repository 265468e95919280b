"""The proxy's thread: its event loop, its listening socket, its connections, and the log of what passed.

Relies on `link` for bytes and on `http2` for requests. Not for: deciding on faults (`proxy`).
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import attrs

from tests.faults.http2 import Http2Tap
from tests.faults.link import Link, Setting, Way
from tests.faults.rules import ANY, Request, Rule, SeenRequest


@attrs.define(kw_only=True)
class Plan:
    """What awaits new connections."""

    silent: bool = False
    to_client: Setting = attrs.field(factory=Setting)
    to_server: Setting = attrs.field(factory=Setting)

    def settings(self) -> dict[Way, Setting]:
        return {"to_client": attrs.evolve(self.to_client), "to_server": attrs.evolve(self.to_server)}


class Listener:
    """Listens on ``port``, forwards to ``host:upstream_port``, and logs. `FaultProxy` adds the faults."""

    def __init__(
        self, upstream_port: int, *, host: str = "127.0.0.1", http2: bool = True, seed: int | None = None
    ) -> None:
        self.upstream_port = upstream_port
        self.errors: list[BaseException] = []
        self.accepted = 0
        self._host = host
        self._http2 = http2
        self._random = random.Random(seed)
        self._links: list[Link] = []
        self._log: list[SeenRequest] = []
        self._changed = threading.Condition()
        self._rules: list[Rule] = []
        self._new = Plan()
        self._socket: socket.socket | None = None
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self.port = 0
        self.start()

    # Life.

    def start(self) -> None:
        """Listen. Done by the constructor."""
        listener = socket.create_server((self._host, 0), backlog=512)
        self.port = listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name=f"fault-proxy-{self.port}", daemon=True)
        self._thread.start()
        self._do(lambda: self._listen(listener))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            asyncio.set_event_loop(None)

    async def _listen(self, listener: socket.socket | None = None) -> None:
        deadline = time.monotonic() + 5
        while listener is None:
            try:
                listener = socket.create_server((self._host, self.port), backlog=512)
            except OSError:
                # The port was given to an outgoing connection of somebody else meanwhile; those are short.
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)
        listener.setblocking(False)
        self._socket = listener
        self._loop.add_reader(listener, self._accept, listener)

    def _refuse(self) -> None:
        listener, self._socket = self._socket, None
        if listener is not None:
            self._loop.remove_reader(listener)
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        # Not by asyncio's server: closing that one while it accepts loses the socket it has just accepted.
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        self.accepted += 1
        plan = self._new
        link = Link(self.accepted, sock, plan.settings(), silent=plan.silent)
        self._links.append(link)
        tap = Http2Tap(link, self) if self._http2 else None
        link.task = self._loop.create_task(link.run(self._host, self.upstream_port, tap))
        link.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.append(error)

    def close(self) -> None:
        """Cut everything and end the thread. A second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(10)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(10)
            assert not thread.is_alive(), "the proxy's thread did not end"
            self._loop.close()

    async def _shut(self) -> None:
        self._refuse()
        for link in self._links:
            link.end("proxy", reset=True)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        for _ in range(5):
            await asyncio.sleep(0)  # transports close their sockets in callbacks of their own

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if kind is None and self.errors:
            raise AssertionError(f"the proxy itself failed: {self.errors!r}") from self.errors[0]

    @property
    def url(self) -> str:
        """Base URL for clients."""
        return f"http://{self._host}:{self.port}"

    def endpoints_env(self) -> dict[str, str]:
        """The environment that points a client at this proxy."""
        return {"S2_ACCOUNT_ENDPOINT": self.url, "S2_BASIN_ENDPOINT": self.url, "S2_ACCESS_TOKEN": "test"}

    def _do(self, action: Callable[[], Any]) -> Any:
        """Run ``action`` on the proxy's thread and return its result."""

        async def call() -> Any:
            result = action()
            return await result if asyncio.iscoroutine(result) else result

        if self._thread is None:
            raise RuntimeError("the proxy is closed")
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    def rule_for(self, seen: SeenRequest) -> Rule | None:
        """The rule that takes a new request; called by its connection."""
        return next((rule for rule in self._rules if rule.take(seen)), None)

    # What passed.

    def saw(self, seen: SeenRequest) -> None:
        """Log a request; called by its connection."""
        with self._changed:
            self._log.append(seen)
            self._changed.notify_all()

    @property
    def requests(self) -> list[SeenRequest]:
        """All requests so far, in order; those answered by the proxy too."""
        with self._changed:
            return list(self._log)

    def seen(self, match: Request = ANY) -> list[SeenRequest]:
        """The requests so far that match."""
        return [seen for seen in self.requests if match.matches(seen)]

    def wait_for(self, match: Request = ANY, count: int = 1, timeout: float = 10.0) -> list[SeenRequest]:
        """Block until ``count`` requests that match have come; AssertionError if they do not."""
        with self._changed:
            if not self._changed.wait_for(lambda: sum(map(match.matches, self._log)) >= count, timeout):
                found = sum(map(match.matches, self._log))
                raise AssertionError(f"{found} of {count} requests within {timeout} s: {match}")
        return self.seen(match)

    def forget(self) -> None:
        """Empty the log of requests."""
        with self._changed:
            self._log.clear()

    def prune(self) -> None:
        """Forget the log, and the connections that are over: for runs of hours."""

        def act() -> None:
            self._links = [link for link in self._links if not link.over]

        self.forget()
        self._do(act)

    @property
    def connections(self) -> list[Link]:
        """All connections so far."""
        return list(self._links)

    @property
    def open_connections(self) -> int:
        """Connections open now."""
        return sum(not link.over for link in self.connections)

    def passed(self, way: Way) -> int:
        """Bytes that went ``"to_client"`` or ``"to_server"`` over all connections so far."""
        return sum(found.passed for link in self.connections if (found := link.direction(way)) is not None)
