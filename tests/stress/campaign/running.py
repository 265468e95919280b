"""Runs: each process writes some, one after the other, and observes those of all others.

A writer that was killed leaves its run open; in its next life it attaches to it and ends it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

from s2pubsub import RunEndedError, RunExistsError, RunNotFoundError, S2PubSubError, StoreError
from s2pubsub.runs import Run, Runs
from s2pubsub.topic import run_topic
from tests.stress.campaign.notes import read_notes
from tests.stress.campaign.publishing import note_future
from tests.stress.campaign.reading import positions
from tests.stress.campaign.worker import Desk, expect_closed

WRITERS = 2


def run_id(slot: int, writer: int, number: int) -> str:
    return f"r{slot}-{writer}-{number}"


class Running:
    """Writers of runs, and an observer for each writer elsewhere."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.runs = Runs(desk.pubsub, cleanup_timeout=0)
        self.open: Run | None = None
        notes = read_notes(Path(desk.task.folder) / f"{desk.task.name}.jsonl")
        ended = [note[1] for note in notes if note[0] == "ended"]
        self._over = {note[1] for note in notes if note[0] == "over"}
        slot = desk.task.slot
        self.writers = [
            desk.thread(self._write, writer, sum(run.startswith(f"r{slot}-{writer}-") for run in ended))
            for writer in range(WRITERS)
        ]
        self._positions = positions(desk.task.folder, desk.task.name)
        self.readers = [
            desk.thread(self._observe, other, writer)
            for other in range(desk.task.runners)
            if other != slot
            for writer in range(WRITERS)
        ]

    # -- writing -------------------------------------------------------------------------------------------------

    def _write(self, writer: int, number: int) -> None:
        desk = self.desk
        while not desk.stop.is_set():
            run = run_id(desk.task.slot, writer, number)
            chance = random.Random(f"{desk.task.seed}-{desk.task.who}-{run}")
            desk.note("begin", run)
            attempts = 0
            while not self._write_to_its_end(run, f"{desk.task.who}/{run}/{attempts}", chance):
                attempts += 1
            number += 1

    def _write_to_its_end(self, run_id: str, by: str, chance: random.Random) -> bool:
        """Begin the run or go on with it; whether it has its end."""
        desk = self.desk
        how = chance.choice(("finish", "finish", "error", "abort", "hand over"))
        try:
            try:
                run = self.runs.start(run_id, timeout=10)
            except RunExistsError:
                run = self.runs.attach(run_id, timeout=10)
            self.open = run
            for n in range(chance.randint(5, 40)):
                run.text(f"{by} {n}\n").add_done_callback(partial(note_future, desk.note, run.topic, by, n))
                if not desk.stop.is_set():
                    desk.pause(chance)
            if how == "hand over":
                run.hand_over(timeout=10)
                return False
            if how == "error":
                run.error("meant", timeout=10)
            else:
                run.finish("stop" if how == "finish" else "abort", timeout=10)
        except RunEndedError:
            how = "found"
        except RunNotFoundError as error:
            desk.note("note", f"{by}: {error!r}")  # its start was not stored after all
            return False
        except S2PubSubError as error:
            if isinstance(error, StoreError) and error.code == "second_writer" and not self._may_have_had_another(by):
                desk.note("wrong", f"{by}: {error!r}")
            desk.note("note", f"{by}: {error!r}")
            return False
        desk.note("ended", run_id, by, how)
        return True

    def _may_have_had_another(self, by: str) -> bool:
        """Whether an earlier writer of the run may have had something on the wire: killed, or given up."""
        return self.desk.task.life > 0 or not by.endswith("/0")

    # -- observing -----------------------------------------------------------------------------------------------

    def _observe(self, other: int, writer: int) -> None:
        desk, number = self.desk, 0
        while True:
            run = run_id(other, writer, number)
            if desk.reading_until.is_set() and run_topic(run) not in desk.until:
                return
            sub = f"{desk.task.name}:{run}"
            if sub in self._over or self._follow(run, sub):
                number += 1

    def _follow(self, run: str, sub: str) -> bool:
        """Observe a run from where we stood; whether it has ended."""
        desk = self.desk
        start = self._positions.get(sub, 0)
        try:
            observed = self.runs.observe(run, start, wait_for_start=2, timeout=10)
        except RunNotFoundError:
            return False
        except S2PubSubError as error:
            desk.note("note", f"{sub}: {error!r}")
            return False
        desk.note("sub", sub, run_topic(run), start)
        with observed:
            for event in observed:
                desk.note("seen", sub, event.index, event.id)
                self._positions[sub] = (event.index or 0) + 1
        if observed.end is None:
            raise AssertionError(f"{sub}: the observation has ended before the run")
        desk.note("over", sub)
        return True

    def finish_reading(self) -> None:
        """Observers end with the runs."""

    def in_child(self, note: Callable[..., None]) -> None:
        run = self.open
        if run is not None and not run.ended:
            expect_closed(note, "a run", partial(run.text, "x"))
