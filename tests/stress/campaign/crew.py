"""The processes of a campaign, each behind a proxy of its own: started, replaced when killed, and brought to an end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

import attrs

from tests.faults import FaultProxy
from tests.servers import Server
from tests.stress.campaign.worker import LONG, Task

PACKAGES = Path(__file__).parent.parent.parent.parent
PLANS = {
    "small": {"publisher": 1, "exact": 1, "reader": 1, "lease": 2, "runner": 2},
    "full": {"publisher": 2, "exact": 2, "reader": 3, "lease": 3, "runner": 2},
}
KEYS = ["first", "second"]


def topics_of(plan: dict[str, int]) -> dict[str, list[str]]:
    """The topics of each role; readers read all of them."""
    shared = ["agent.campaign.shared-0", "agent.campaign.shared-1"]
    exact = [f"agent.campaign.exact-{slot}" for slot in range(plan["exact"])]
    leases = [f"agent.thread-stream.{key}" for key in KEYS]
    return {role: shared + exact + leases if role == "reader" else shared for role in plan}


@attrs.define(eq=False)
class Member:
    """One process and its lives; ``lock`` is held by whoever is doing something to it."""

    task: Task
    proxy: FaultProxy
    errors: Path
    process: subprocess.Popen[str] | None = None
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    def start(self) -> None:
        with self.errors.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.stress.campaign.worker", json.dumps(attrs.asdict(self.task))],
                stdin=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=PACKAGES,
                env={**os.environ, "PYTHONPATH": str(PACKAGES)},
            )

    def say(self, line: str) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def replace(self) -> None:
        """Kill the process and start its next life."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.task = attrs.evolve(self.task, life=self.task.life + 1)
        self.start()


class Crew:
    """All members. ``problems`` are what went wrong with the processes themselves."""

    def __init__(self, server: Server, basin: str, folder: Path, plan: str, seed: int, pace: float) -> None:
        self.problems: list[str] = []
        self.members: list[Member] = []
        self._folder = folder
        self._seen_dead: set[int] = set()
        counts = PLANS[plan]
        topics = topics_of(counts)
        for role, count in counts.items():
            for slot in range(count):
                proxy = FaultProxy(server.port, seed=seed + len(self.members))
                task = Task(
                    role=role,
                    slot=slot,
                    life=0,
                    url=proxy.url,
                    token=server.token,
                    basin=basin,
                    folder=str(folder),
                    seed=seed,
                    pace=pace,
                    topics=topics[role],
                    keys=KEYS,
                    runners=counts["runner"],
                )
                self.members.append(Member(task, proxy, folder / f"{task.name}.errors"))

    def __enter__(self) -> Self:
        for member in self.members:
            member.start()
        return self

    def __exit__(self, *_: Any) -> None:
        for member in self.members:
            if member.process is not None:
                member.process.kill()
                member.process.wait()
                assert member.process.stdin is not None
                with contextlib.suppress(BrokenPipeError):
                    member.process.stdin.close()
            member.proxy.close()
            if member.proxy.errors:
                self.problems.append(f"the proxy of {member.task.name} has failed: {member.proxy.errors[:3]}")

    def check_alive(self) -> None:
        """Note members that have ended although nobody has ended them."""
        for member in self.members:
            with member.lock:
                process = member.process
                if process is not None and process.poll() is not None and process.pid not in self._seen_dead:
                    self._seen_dead.add(process.pid)
                    self.problems.append(f"{member.task.who} has ended by itself with {process.returncode}")

    # -- the end -------------------------------------------------------------------------------------------------

    def stop_writing(self) -> None:
        """Let all writers end what they have begun."""
        for member in self.members:
            member.say("stop")
        self._await("writing", lambda member: (self._folder / f"{member.task.name}.stopped").exists())

    def read_until(self, tails: dict[str, int]) -> None:
        """Let all readers read up to the ends of the topics, and the processes end."""
        for member in self.members:
            member.say(json.dumps({"until": tails}))
        self._await("reading", lambda member: not member.running)
        for member in self.members:
            if member.process is not None and member.process.returncode:
                self.problems.append(f"{member.task.who} ended with {member.process.returncode}")

    def _await(self, what: str, done: Any) -> None:
        deadline = time.monotonic() + LONG * 1.5
        while (late := [m for m in self.members if not done(m)]) and time.monotonic() < deadline:
            if dead := [m for m in late if not m.running]:
                late = dead
                break
            time.sleep(0.1)
        for member in late:
            self.problems.append(f"{member.task.who} does not end {what}")
            if member.running:
                member.signal(signal.SIGUSR1)  # its stacks go to its errors
        if late:
            time.sleep(1)

    def complaints(self) -> list[str]:
        """Tracebacks that the processes have printed."""
        found = []
        for member in self.members:
            text = member.errors.read_text(errors="replace") if member.errors.exists() else ""
            at = text.find("Traceback")
            if at >= 0:
                found.append(f"{member.task.name} has printed {text.count('Traceback')} tracebacks: {text[at:][:1500]}")
        return found
