"""A real Celery worker for tests, in a session of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.processes import in_session
from tests.waiting import LONG, eventually

START = 20.0


class CeleryWorker:
    """``celery worker`` with two processes or threads."""

    def __init__(self, app: str, env: Mapping[str, str], log: Path, pool: str = "prefork", *options: str) -> None:
        self._log = log
        command = [sys.executable, "-m", "celery", "--app", app, "worker", "--pool", pool, "--concurrency", "2"]
        quiet = ["--loglevel", "info", "--without-mingle", "--without-gossip"]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, *quiet, *options], env={**os.environ, **env}, stdout=out, stderr=out, start_new_session=True
            )

    def __enter__(self) -> Self:
        eventually(self._ready, START, "celery did not start")
        return self

    def _ready(self) -> bool:
        assert self.process.poll() is None, self.output()
        return " ready." in self.output()

    def output(self) -> str:
        """What it has logged."""
        return self._log.read_text(errors="replace")

    def children(self) -> list[int]:
        """The pool's processes."""
        return sorted(in_session(self.process.pid) - {self.process.pid})

    def kill(self) -> None:
        """End it and its children at once, as a lost machine would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(LONG)

    def end(self, limit: float) -> int:
        """Tell it to finish its tasks and end. Its status, once all of its processes are gone."""
        self.process.terminate()
        status = self.process.wait(limit)
        eventually(lambda: not in_session(self.process.pid), LONG, "a process has stayed")
        return status

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(LONG)
            except subprocess.TimeoutExpired:
                self.kill()
