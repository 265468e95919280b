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

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import attrs

from tests.faults.http2 import Http2Tap
from tests.faults.link import Setting, Way
from tests.faults.listener import Listener, Plan
from tests.faults.rules import ANY, Effect, How, Request, Rule

Scope = Literal["open", "new", "all"]
Which = Literal["all", "one", "random"]
BOTH: tuple[Way, Way] = ("to_client", "to_server")


class FaultProxy(Listener):
    """Forwards to ``host:upstream_port``; ``port`` and ``url`` are where clients connect.

    With ``http2=False`` bytes pass unseen: then there are no rules, no log, and nothing is encoded anew.
    Leaving the ``with`` block raises AssertionError if the proxy itself failed.
    """

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
                    link.apply(way, discard=True)

        self._do(act)

    def strand(self, catch: float = 0.05, hold: float = 0.5, linger: float = 1.0) -> int:
        """Let what a random open connection sends from now on reach the server late, when its client has connected
        anew: see `Link.strand`. Returns how many connections were open: one or none.
        """

        def act() -> int:
            chosen = [link for link in self._links if not link.over and not link.stranded]
            if chosen:
                self._random.choice(chosen).strand(catch, hold, linger)
            return len(chosen[:1])

        return int(self._do(act))

    def silent(self, on: bool = True) -> None:
        """Accept new connections and never answer them; the server does not see them."""
        self._do(lambda: setattr(self._new, "silent", on))

    def refuse(self) -> None:
        """Close the listener: new connections are refused. Open ones go on."""
        self._do(self._refuse)

    def accept(self) -> None:
        """Listen again on the same port."""

        async def act() -> None:
            if self._socket is None:
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
            self._new = Plan()
            for link in self._links:
                for way in BOTH:
                    link.apply(way, **attrs.asdict(Setting()))

        self._do(act)

    def _set(self, scope: Scope, ways: tuple[Way, ...], **faults: Any) -> None:
        def act() -> None:
            for way in ways:
                if scope != "open":
                    setattr(self._new, way, attrs.evolve(getattr(self._new, way), **faults))
                if scope != "new":
                    for link in self._links:
                        link.apply(way, **faults)

        self._do(act)

    # Faults of requests.

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
