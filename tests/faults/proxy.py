"""A TCP proxy that makes faults, between the real client and the real server.

    with FaultProxy(server.port) as proxy:
        rule = proxy.answer(READ_SESSION, status=503, code="unavailable", times=6, after=After(seconds=1))
        ...
        assert [seen.seq_num for seen in proxy.seen(READ_SESSION)] == [3, 3]

It runs in one thread of its own. Every method may be called from any thread and returns when the fault is in force.
Faults of bytes take a ``scope``: ``"open"`` (the connections of this moment), ``"new"`` (those made from now on) or
``"all"``. Faults of requests are rules: the first one that matches a request takes it, in the order they were made.
Not for: TLS, and HTTP/1.1 beyond passing its bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, Self, TypeVar

import attrs

from tests.faults.http2 import Http2Tap
from tests.faults.link import Link, Setting, Way
from tests.faults.rules import ANY, After, Effect, How, Request, Rule, SeenRequest

T = TypeVar("T")
Scope = Literal["open", "new", "all"]
Which = Literal["all", "one", "random"]
BOTH: tuple[Way, Way] = ("to_client", "to_server")


class FaultProxy:
    """Forwards to ``host:upstream_port``; ``port`` and ``url`` are where clients connect.

    With ``http2=False`` bytes pass unseen: then there are no rules, no log, and nothing is encoded anew.
    Leaving the ``with`` block raises AssertionError if the proxy itself failed.
    """

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
        self._new = _Plan()
        self._server: asyncio.Server | None = None
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
        self._server = await asyncio.start_server(self._accept, sock=listener)

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
        if self._server is not None:
            self._server.close()
        tasks = [link.task for link in self._links if link.task is not None and not link.task.done()]
        for link in self._links:
            link.end("proxy", reset=True)
        if tasks:
            await asyncio.wait(tasks)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        for _ in range(5):  # transports close their sockets in callbacks of their own
            await asyncio.sleep(0)

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

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        plan = self._new
        link = Link(self.accepted, reader, writer, plan.settings(), silent=plan.silent)
        self._links.append(link)
        tap = Http2Tap(link, self) if self._http2 else None
        link.task = self._loop.create_task(link.run(self._host, self.upstream_port, tap))
        link.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.append(error)

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

    # Faults of bytes.

    def cut(self, which: Which | int = "all", how: How = "rst") -> int:
        """Close open connections by RST or FIN: all, the newest one, a random one, or the one of that number.

        Returns how many.
        """

        def act() -> int:
            chosen = [link for link in self._links if not link.over]
            if isinstance(which, int):
                chosen = [link for link in chosen if link.number == which]
            elif which == "one":
                chosen = chosen[-1:]
            elif which == "random" and chosen:
                chosen = [self._random.choice(chosen)]
            for link in chosen:
                link.cut(how)
            return len(chosen)

        return int(self._do(act))

    def cut_after(self, size: int, way: Way = "to_client", *, scope: Scope = "open", how: How = "fin") -> None:
        """Close each connection once ``size`` more bytes have gone that way."""
        self._set(scope, (way,), cut_after=size, how=how)

    def stall(self, *ways: Way, scope: Scope = "open") -> None:
        """Stop forwarding, without closing: with the default scope new connections work."""
        self._set(scope, ways or BOTH, stalled=True)

    def resume(self) -> None:
        """End `stall`; what was held back goes on."""
        self._set("all", BOTH, stalled=False)

    def delay(self, seconds: float, *ways: Way, scope: Scope = "all") -> None:
        """Let bytes wait ``seconds`` (up to twice that for those that come meanwhile)."""
        self._set(scope, ways or BOTH, delay=seconds)

    def drip(self, rate: float = 1.0, *ways: Way, scope: Scope = "all") -> None:
        """Let one byte through at a time, ``rate`` per second; by default to the client."""
        self._set(scope, ways or ("to_client",), rate=rate)

    def lose(self, way: Way = "to_client", *, scope: Scope = "open") -> None:
        """Drop all bytes that way: the server acts and nobody hears of it. Follow it by `cut`."""
        self._set(scope, (way,), discard=True)

    def half_close(self, way: Way = "to_client") -> None:
        """Send FIN that way on open connections, and drop what would follow; the other way goes on."""

        def act() -> None:
            for link in self._links:
                direction = link.direction(way)
                if not link.over and direction is not None:
                    direction.shut()
                    direction.apply(attrs.evolve(direction.setting, discard=True))

        self._do(act)

    def silent(self, on: bool = True) -> None:
        """Accept new connections and never answer them; the server does not see them."""
        self._do(lambda: setattr(self._new, "silent", on))

    def refuse(self) -> None:
        """Close the listener: new connections are refused. Open ones go on."""

        def act() -> None:
            if self._server is not None:
                self._server.close()
                self._server = None

        self._do(act)

    def accept(self) -> None:
        """Listen again on the same port."""

        async def act() -> None:
            if self._server is None:
                await self._listen()

        self._do(act)

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """`refuse`, and `accept` at the end."""
        self.refuse()
        try:
            yield
        finally:
            self.accept()

    def clear(self) -> None:
        """End every fault: rules are removed, what was held back or stalled goes on, the listener is open."""
        self.accept()
        for rule in list(self._rules):
            self.remove(rule)

        def act() -> None:
            self._new = _Plan()
            for link in self._links:
                for way in BOTH:
                    if (direction := link.direction(way)) is not None:
                        direction.apply(Setting())

        self._do(act)

    def _set(self, scope: Scope, ways: tuple[Way, ...], **faults: Any) -> None:
        def act() -> None:
            for way in ways:
                if scope != "open":
                    setattr(self._new, way, attrs.evolve(getattr(self._new, way), **faults))
                if scope != "new":
                    for link in self._links:
                        direction = link.direction(way)
                        if not link.over and direction is not None:
                            direction.apply(attrs.evolve(direction.setting, **faults))

        self._do(act)

    # Faults of requests.

    def rule_for(self, seen: SeenRequest) -> Rule | None:
        """The rule that takes a new request; called by its connection."""
        return next((rule for rule in self._rules if rule.take(seen)), None)

    def add(self, rule: Rule) -> Rule:
        """Put a rule in force behind those there are."""
        self._do(lambda: self._rules.append(rule))
        return rule

    def remove(self, rule: Rule) -> None:
        """Let no further request be taken by ``rule``; responses it holds back go on. Struck streams stay struck."""

        def act() -> None:
            rule.removed = True
            if rule in self._rules:
                self._rules.remove(rule)
            for release in rule.release:
                release()
            rule.release.clear()

        self._do(act)

    def answer(
        self,
        match: Request = ANY,
        *,
        status: int,
        code: str = "unavailable",
        message: str = "injected fault",
        body: bytes | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        **when: Any,
    ) -> Rule:
        """Answer requests in the server's place, which does not see them. ``when``: see `Rule`, also below."""
        effect = Effect(do="answer", status=status, code=code, message=message, body=body, headers=headers)
        return self.add(Rule(match=match, effect=effect, **when))

    def lose_response(self, match: Request, *, how: How | None = "rst", **when: Any) -> Rule:
        """Forward the request and drop its answer when it comes (of a session: the next frame), then cut the
        connection; with ``how=None`` the answer is just missing.
        """
        return self.add(Rule(match=match, effect=Effect(do="lose", how=how), **when))

    def end_session(
        self, match: Request, *, status: int = 503, code: str = "unavailable", message: str = "injected", **when: Any
    ) -> Rule:
        """End sessions by a terminal frame; with ``after=After(request=True)`` by an answer of that status."""
        return self.add(Rule(match=match, effect=Effect(do="end", status=status, code=code, message=message), **when))

    def finish_session(self, match: Request, **when: Any) -> Rule:
        """End sessions in an orderly way, as if they were complete."""
        return self.add(Rule(match=match, effect=Effect(do="finish"), **when))

    def reset_stream(self, match: Request, **when: Any) -> Rule:
        """End the HTTP/2 stream of a request by RST_STREAM."""
        return self.add(Rule(match=match, effect=Effect(do="reset"), **when))

    def silence(self, match: Request, **when: Any) -> Rule:
        """Let nothing more pass to the client on that stream; the others of its connection go on."""
        return self.add(Rule(match=match, effect=Effect(do="silence"), **when))

    def hold_response(self, match: Request, seconds: float | None = None, **when: Any) -> Rule:
        """Hold an answer back for ``seconds``, or until the rule is removed."""
        return self.add(Rule(match=match, effect=Effect(do="hold", seconds=seconds), **when))

    def cut_on(self, match: Request, *, how: How = "fin", **when: Any) -> Rule:
        """Cut the connection that carries the request; FIN keeps what was delivered before readable."""
        return self.add(Rule(match=match, effect=Effect(do="cut", how=how), **when))

    def goaway_on(self, match: Request, *, grace: float = 0.0, **when: Any) -> Rule:
        """Send GOAWAY on the connection that carries the request; see `goaway`."""
        return self.add(Rule(match=match, effect=Effect(do="goaway", seconds=grace), **when))

    # Faults of what is open now.

    def _taps(self) -> list[Http2Tap]:
        return [link.tap for link in self._links if not link.over and isinstance(link.tap, Http2Tap)]

    def goaway(self, *, grace: float = 0.0) -> int:
        """Send GOAWAY (no error, last stream = the newest) on all connections; later requests on them are ignored.
        They close when their last exchange has ended, at the latest after ``grace`` seconds. Returns how many.
        """

        def act() -> int:
            taps = self._taps()
            for tap in taps:
                tap.goaway(grace)
            return len(taps)

        return int(self._do(act))

    def strike(self, match: Request, effect: Effect) -> int:
        """Let ``effect`` happen to exchanges that are under way and match, at their next frame boundary.

        Returns to how many.
        """
        rule = Rule(match=match, effect=effect, times=None)

        def act() -> int:
            found = [(tap, stream) for tap in self._taps() for stream in tap.streams.values()]
            found = [(tap, stream) for tap, stream in found if not stream.ours and match.matches(stream.seen)]
            for tap, stream in found:
                tap.strike_at_boundary(stream, rule)
            return len(found)

        return int(self._do(act))


@attrs.define(kw_only=True)
class _Plan:
    """What awaits new connections."""

    silent: bool = False
    to_client: Setting = attrs.field(factory=Setting)
    to_server: Setting = attrs.field(factory=Setting)

    def settings(self) -> dict[Way, Setting]:
        return {"to_client": attrs.evolve(self.to_client), "to_server": attrs.evolve(self.to_server)}


__all__ = ["After", "Effect", "FaultProxy", "Request", "Rule", "SeenRequest"]
