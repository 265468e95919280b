"""A Node process that runs ``main.mjs``: commands go in as lines of JSON, answers come back."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tests.waiting import LONG

_STOP = 5.0


class NodeError(Exception):
    """A command failed in Node; the text has JavaScript's error."""


class Node:
    """The process, running ``main.mjs`` of the folder ``scripts``.

    Thread-safe; commands of several threads run side by side.
    """

    def __init__(self, program: str, scripts: Path, env: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [program, "--no-warnings", "main.mjs"],
            cwd=scripts,
            env={**os.environ, "TZ": "UTC", **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self._lock = threading.Lock()
        self._ids = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._reader = threading.Thread(target=self._read, name="interop-node", daemon=True)
        self._reader.start()

    def start(self, do: str, /, **arguments: Any) -> Future[Any]:
        """Begin a command and return the future of its value."""
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._ids)
            self._waiting[number] = future
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"id": number, "do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        return future

    def call(self, do: str, /, *, timeout: float = LONG, **arguments: Any) -> Any:
        """Run a command and return its value."""
        try:
            return self.start(do, **arguments).result(timeout)
        except TimeoutError:
            problem = f"Node did not answer {do!r} within {timeout} s; it printed:\n{self.output()}"
            raise AssertionError(problem) from None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            future = self._waiting.pop(answer["id"])
            if "error" in answer:
                future.set_exception(NodeError(answer.get("stack") or answer["error"]))
            else:
                future.set_result(answer["value"])
        for future in list(self._waiting.values()):
            future.set_exception(NodeError(f"Node has ended; it printed:\n{self.output()}"))

    def output(self) -> str:
        """The last of what it printed."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 10_000))
        return self._log.read().decode(errors="replace")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_STOP)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_STOP)
        self._reader.join(_STOP)
        self._process.stdout.close()
        self._log.close()


class Peer:
    """The TypeScript side on one basin."""

    def __init__(self, node: Node, basin: str) -> None:
        self.node = node
        self.basin = basin
        self._handles = itertools.count()

    def call(self, do: str, /, **arguments: Any) -> Any:
        """``Node.call`` on the basin."""
        return self.node.call(do, basin=self.basin, **arguments)

    def start(self, do: str, /, **arguments: Any) -> Future[Any]:
        """``Node.start`` on the basin."""
        return self.node.start(do, basin=self.basin, **arguments)

    def handle(self, do: str, /, **arguments: Any) -> str:
        """Begin something that goes on in Node, and return the name by which later commands ask for it."""
        handle = f"{self.basin} {next(self._handles)}"
        self.call(do, handle=handle, **arguments)
        return handle
