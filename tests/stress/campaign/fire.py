"""The faults of a campaign: on the wire of each process, on the processes, and on the server.

A fault counts only when it has hit: a connection that was open, a request that was taken, a process that lived. One
thread for each proxy, one for the processes and one for the server; each does one fault after the other and undoes it.
"""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from collections.abc import Callable

from tests.servers import ServerProcess
from tests.stress.campaign.crew import Crew, Member
from tests.stress.campaign.wire import Wire

_STARTS = 5


class Fire:
    """Burns until ``wanted`` faults have hit; then ``out`` is set."""

    def __init__(self, crew: Crew, server: ServerProcess, seed: int, wanted: int, pace: float) -> None:
        self.out = threading.Event()
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.notes: list[str] = []
        self._crew = crew
        self._server = server
        self._seed = seed
        self._wanted = wanted
        self._pace = pace
        self._lock = threading.Lock()
        self._threads = [
            *(self._thread(self._burn_wire, member) for member in crew.members),
            self._thread(self._burn_processes),
            self._thread(self._burn_server),
        ]

    def _thread(self, work: Callable[..., None], *args: Member) -> threading.Thread:
        def guarded() -> None:
            try:
                work(*args)
            except BaseException as error:
                self.problems.append(f"the fire itself failed: {work.__name__}: {error!r}")
                self.out.set()

        return threading.Thread(target=guarded, name=work.__name__, daemon=True)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait until all has been undone."""
        for thread in self._threads:
            thread.join()

    def _hit(self, kind: str, times: int = 1) -> None:
        with self._lock:
            self.counts[kind] += times
            if self.counts.total() >= self._wanted:
                self.out.set()

    # -- the wire ------------------------------------------------------------------------------------------------

    def _burn_wire(self, member: Member) -> None:
        chance = random.Random(f"{self._seed}-wire-{member.task.name}")
        wire = Wire(member.proxy, chance, self._hit, self.out)
        rounds = 0
        while not self.out.wait(self._pace * 2 * chance.random()):
            wire.strike()
            rounds += 1
            if rounds % 20 == 0:
                member.proxy.prune()
        member.proxy.clear()

    # -- processes -----------------------------------------------------------------------------------------------

    def _burn_processes(self) -> None:
        chance = random.Random(f"{self._seed}-processes")
        while not self.out.wait(self._pace * 2 * chance.random()):
            self._crew.check_alive()
            member = chance.choice(self._crew.members)
            with member.lock:
                if not member.running:
                    continue
                kind = chance.choices(("stop", "kill", "fork"), (66, 14, 20))[0]
                if kind == "stop":
                    member.signal(signal.SIGSTOP)
                    self.out.wait(chance.choice((0.05, 0.5, 3.0)) * chance.random())
                    member.signal(signal.SIGCONT)
                    self._hit("process suspended")
                elif kind == "kill":
                    member.replace()
                    self._hit("process killed")
                else:
                    member.say("fork")
                    self._hit("process forked")

    # -- the server ----------------------------------------------------------------------------------------------

    def _burn_server(self) -> None:
        chance = random.Random(f"{self._seed}-server")
        while not self.out.wait(self._pace * chance.uniform(2, 14)):
            kind = chance.choices(("pause", "kill", "stop"), (40, 35, 25))[0]
            if kind == "pause":
                self._server.pause()
                self.out.wait(chance.choice((0.3, 3.0)) * chance.random())
                self._server.resume()
                self._hit("server suspended")
            else:
                (self._server.kill if kind == "kill" else self._server.stop)()
                self.out.wait(chance.choice((0.0, 0.0, 2.0)) * chance.random())
                self._start_server()
                self._hit("server killed" if kind == "kill" else "server restarted")

    def _start_server(self) -> None:
        """Its port may have been given to an outgoing connection meanwhile, and a busy machine be slow."""
        for _ in range(_STARTS - 1):
            try:
                self._server.start()
                return
            except (AssertionError, RuntimeError) as error:
                self.notes.append(f"the server did not start: {str(error)[:300]}")
                threading.Event().wait(2.0)
        self._server.start()
