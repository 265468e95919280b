"""One round: a server with its data on disk, the crew, the fire, and the judgement."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import attrs

from tests.servers import CREATE_STREAMS, EmbeddedServer, LiteServer, ServerProcess
from tests.stress.campaign.checker import Verdict, judge
from tests.stress.campaign.crew import Crew
from tests.stress.campaign.fire import Fire
from tests.stress.campaign.notes import Note, read_notes
from tests.stress.campaign.stored import Log, read_log

_CHECK_EVERY = 1.0


@attrs.frozen(kw_only=True)
class Outcome:
    """What a round has seen; good if there are no ``problems``."""

    server: str
    plan: str
    seed: int
    date: str
    seconds: float
    faults: Counter[str]
    verdict: Verdict
    problems: list[str]
    folder: str
    notes: list[str] = attrs.field(factory=list)

    def summary(self) -> str:
        v = self.verdict
        lines = [
            f"{self.server}, seed {self.seed}: {self.faults.total()} faults in {self.seconds:.0f} s, "
            f"{len(self.problems)} problems; {v.events} events stored, {v.acknowledged} acknowledged, {v.failed} "
            f"failed, {v.stored_twice} stored twice, {v.seen} seen, {v.runs} runs, {v.grants} holds of leases",
            ", ".join(f"{kind} {count}" for kind, count in self.faults.most_common()),
            *(f"  note: {note}" for note in self.notes),
            *(f"  PROBLEM {problem}" for problem in self.problems[:30]),
        ]
        return "\n".join([*lines, *([f"  see {self.folder}"] if self.problems else [])])


class Campaign:
    """Args: the server's kind, the crew's plan, seed, faults wanted; ``pace`` of writers, ``every`` of faults."""

    def __init__(self, kind: str, plan: str, seed: int, wanted: int, *, pace: float = 0.25, every: float = 1.0) -> None:
        self._kind = kind
        self._plan = plan
        self._seed = seed
        self._wanted = wanted
        self._pace = pace
        self._every = every

    def run(self) -> Outcome:
        """The round. Its folder is kept if there are problems."""
        began = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix="campaign-"))
        (folder / "data").mkdir()
        (folder / "notes").mkdir()
        problems: list[str] = []
        until: dict[str, int] = {}
        with self._server(folder / "data") as server:
            basin = server.make_basin(**CREATE_STREAMS)
            crew = Crew(server, basin, folder / "notes", self._plan, self._seed, self._pace)
            with crew:
                fire = Fire(crew, server, self._seed, self._wanted, self._every)
                fire.start()
                while not fire.out.wait(_CHECK_EVERY):
                    if crew.problems or self._wrong(folder / "notes"):
                        fire.out.set()
                fire.join()
                problems += fire.problems
                if not fire.problems:
                    crew.stop_writing()
                    until = tails(read_log(server, basin))
                    crew.read_until(until)
            problems += crew.problems + crew.complaints()
            verdict = Verdict() if fire.problems else judge(read_log(server, basin), all_notes(folder / "notes"), until)
        problems += verdict.violations
        if not problems:
            shutil.rmtree(folder, ignore_errors=True)
        return Outcome(
            server=self._kind,
            plan=self._plan,
            seed=self._seed,
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            seconds=time.monotonic() - began,
            faults=fire.counts,
            verdict=verdict,
            problems=problems,
            folder=str(folder),
            notes=fire.notes,
        )

    def _server(self, data: Path) -> ServerProcess:
        return LiteServer(local_root=data) if self._kind == "lite" else EmbeddedServer(data=data)

    @staticmethod
    def _wrong(folder: Path) -> bool:
        """Whether a process has noted something that must not happen: then there is no need to go on."""
        return any(b'["wrong"' in path.read_bytes() for path in folder.glob("*.jsonl"))


def tails(log: Log) -> dict[str, int]:
    """Behind the last event of each topic."""
    return {
        topic: max((entry.index + 1 for entry in entries if entry.id is not None), default=0)
        for topic, entries in log.items()
    }


def all_notes(folder: Path) -> list[Note]:
    return [note for path in sorted(folder.glob("*.jsonl")) for note in read_notes(path)]
