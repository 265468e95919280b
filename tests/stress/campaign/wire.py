"""The faults of one process's connections. Each does one thing, waits as long as it lasts, undoes it, and counts."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from tests.faults import APPEND, APPEND_SESSION, READ_SESSION, TAIL, After, Effect, FaultProxy, Request, Rule
from tests.faults.rules import How

_READ = Request(kind="read")
_PATIENCE = 1.5
"""Seconds that a fault of requests waits for one."""

_ANSWERS = [
    (429, "rate_limited"),
    (500, "internal"),
    (503, "unavailable"),
    (503, "server_draining"),
    (502, "hot_server"),
    (409, "transaction_conflict"),
]
_APPEND_ANSWERS = [*_ANSWERS, (409, "stream_deletion_pending"), (404, "stream_not_found")]
"""The last two are never said of reads: there they mean that the topic is gone, which ends its readers."""


class Wire:
    """Faults on ``proxy``; ``hit(kind, times)`` is told those that have hit something; ``out`` ends waits."""

    def __init__(
        self, proxy: FaultProxy, chance: random.Random, hit: Callable[[str, int], None], out: threading.Event
    ) -> None:
        self._proxy = proxy
        self._chance = chance
        self._hit = hit
        self._out = out
        self._faults: dict[Callable[[], None], int] = {
            self._cut: 16,
            self._cut_all: 4,
            self._cut_after: 6,
            self._lose_and_cut: 8,
            self._lose_answer: 14,
            self._strand: 8,
            self._stall: 5,
            self._delay: 5,
            self._drip: 2,
            self._slow_newcomers: 4,
            self._half_close: 3,
            self._silent: 2,
            self._refuse: 4,
            self._answer: 16,
            self._hold: 6,
            self._goaway: 6,
            self._end_sessions: 10,
            self._silence: 1,
        }

    def strike(self) -> None:
        """One fault."""
        self._chance.choices(list(self._faults), list(self._faults.values()))[0]()

    def _how(self) -> How:
        return self._chance.choice(("rst", "fin"))

    def _wait(self, longest: float) -> None:
        self._out.wait(longest * self._chance.random())

    def _count(self, kind: str, times: int) -> None:
        if times:
            self._hit(kind, times)

    def _open(self) -> int:
        return min(1, self._proxy.open_connections)

    # -- bytes ---------------------------------------------------------------------------------------------------

    def _cut(self) -> None:
        how = self._how()
        self._count(f"connection cut ({how})", self._proxy.cut("random", how))

    def _cut_all(self) -> None:
        self._count("all connections of a process cut", min(1, self._proxy.cut("all", self._how())))

    def _cut_after(self) -> None:
        before = [link for link in self._proxy.connections if not link.over]
        way = self._chance.choice(("to_client", "to_server"))
        self._proxy.cut_after(self._chance.randint(1, 3000), way, how=self._how())
        self._wait(1.0)
        self._count("cut amid bytes", sum(link.over and link.ended_by == "proxy" for link in before))
        self._proxy.cut_after(2**60, way)

    def _lose_and_cut(self) -> None:
        """The server acts on what is under way, and nobody hears of it."""
        live = self._open()
        self._proxy.lose()
        self._wait(0.2)
        self._proxy.cut("all", self._how())
        self._count("all answers lost, then cut", live)

    def _strand(self) -> None:
        hold = self._chance.choice((0.2, 1.0, 3.0)) * self._chance.random()
        struck = self._proxy.strand(0.3 * self._chance.random(), hold)
        self._out.wait(hold + 0.5)
        self._count("delivered late, behind a newer connection", struck)

    def _stall(self) -> None:
        live = self._open()
        self._proxy.stall(*self._chance.choice(((), ("to_client",), ("to_server",))))
        self._wait(self._chance.choice((0.3, 1.5, 6.0)))
        self._proxy.resume()
        self._count("stalled", live)

    def _delay(self) -> None:
        live = self._open()
        self._proxy.delay(0.2 * self._chance.random())
        self._wait(2.0)
        self._proxy.delay(0.0)
        self._count("delayed", live)

    def _drip(self) -> None:
        live = self._open()
        self._proxy.drip(300.0, self._chance.choice(("to_client", "to_server")))
        self._wait(2.0)
        self._proxy._set("all", ("to_client", "to_server"), rate=None)
        self._count("a few bytes a second", live)

    def _slow_newcomers(self) -> None:
        """The next connection is slow, so that the one after it overtakes it."""
        self._proxy.delay(self._chance.uniform(0.1, 1.0), scope="new")
        struck = self._proxy.cut("random", self._how())
        self._wait(1.0)
        self._proxy.delay(0.0, scope="new")
        self._proxy.cut("random", self._how())
        self._wait(1.0)
        self._proxy.delay(0.0)
        self._count("connections reordered", struck)

    def _half_close(self) -> None:
        live = self._open()
        self._proxy.half_close(self._chance.choice(("to_client", "to_server")))
        self._wait(1.0)
        self._proxy.cut("all", self._how())
        self._count("half-closed", live)

    def _silent(self) -> None:
        before = self._proxy.accepted
        self._proxy.silent()
        self._proxy.cut("all", self._how())
        self._out.wait(self._chance.uniform(0.5, 4.0))
        self._proxy.silent(False)
        self._count("new connection never answered", self._proxy.accepted - before)
        for link in self._proxy.connections:
            if link.silent and not link.over and self._chance.random() < 0.7:  # the others are for the client to notice
                self._proxy.cut(link.number, self._how())

    def _refuse(self) -> None:
        with self._proxy.refusing():
            struck = self._proxy.cut("all", self._how())
            self._wait(self._chance.choice((0.3, 2.0)))
        self._count("cut and refused", min(1, struck))

    # -- requests ------------------------------------------------------------------------------------------------

    def _await(self, kind: str, rule: Rule) -> None:
        """Let the rule strike, for a while, and count."""
        for _ in range(int(_PATIENCE / 0.05)):
            if rule.fired >= (rule.times or 1) or self._out.wait(0.05):
                break
        self._proxy.remove(rule)
        self._count(kind, rule.fired)

    def _lose_answer(self) -> None:
        match, name = self._chance.choice(
            (
                (APPEND, "append"),
                (APPEND, "append"),
                (APPEND_SESSION, "append session"),
                (APPEND_SESSION, "append session"),
                (TAIL, "tail"),
            )
        )
        after = After(frames=self._chance.randint(1, 5)) if match is APPEND_SESSION else After()
        how = self._chance.choice(("rst", "fin", None)) if match is not APPEND_SESSION else self._how()
        rule = self._proxy.lose_response(match, how=how, after=after)
        if match is APPEND_SESSION:
            self._proxy.cut("all", self._how())  # so that there is a new session
        self._await(f"acknowledgement lost ({name})", rule)

    def _answer(self) -> None:
        match = self._chance.choice((APPEND, APPEND, APPEND_SESSION, READ_SESSION, TAIL, _READ))
        answers = _APPEND_ANSWERS if match in (APPEND, APPEND_SESSION) else _ANSWERS
        status, code = self._chance.choice(answers)
        times = 1 if status == 404 else self._chance.randint(1, 2)
        rule = self._proxy.answer(match, status=status, code=code, times=times)
        if match in (APPEND_SESSION, READ_SESSION):
            self._proxy.cut("all", self._how())
        self._await(f"answered {status}", rule)

    def _hold(self) -> None:
        match = self._chance.choice((APPEND, TAIL, READ_SESSION, APPEND_SESSION))
        rule = self._proxy.hold_response(match, self._chance.uniform(0.1, 1.5))
        self._await("answer held back", rule)

    def _goaway(self) -> None:
        grace = self._chance.choice((0.0, 0.05, 0.5))
        self._count("GOAWAY", self._proxy.goaway(grace=grace))

    def _end_sessions(self) -> None:
        """End all sessions that are open, in one of the ways in which a server does."""
        match = self._chance.choice((READ_SESSION, READ_SESSION, APPEND_SESSION))
        effect, name = self._chance.choice(
            (
                (Effect(do="end", status=503, code="unavailable"), "ended by 503"),
                (Effect(do="end", status=500, code="internal"), "ended by 500"),
                (Effect(do="finish"), "just ended"),
                (Effect(do="reset"), "reset"),
            )
        )
        self._count(f"session {name}", min(1, self._proxy.strike(match, effect)))

    def _silence(self) -> None:
        """A session from which nothing comes any more, on a connection that goes on."""
        self._count("session gone silent", min(1, self._proxy.strike(READ_SESSION, Effect(do="silence"))))
        self._wait(2.0)
