"""Fixtures of the tests of hosts: web servers, pools and other interpreters that run the library."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.processes import in_session
from tests.servers import Server
from tests.waiting import eventually
from tests.web.processes import WebServer

MODULE = "site_under_test"
"""What the host imports: a file of the test's own, which it may change to have it loaded anew."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder that needs a web framework is marked `web`."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("web")


class Host(WebServer):
    """A web server with the site, the leader of a session of its own."""

    own_session = True

    def __init__(self, kind: str, env: Mapping[str, str], folder: Path) -> None:
        django = kind.startswith("runserver")
        site = "django_site" if django else "flask_site"
        self.folder = folder
        self._file = folder / f"{MODULE}.py"
        self._file.write_text(f"from tests.hosts.{site} import *\n")
        more = {"DJANGO_SETTINGS_MODULE": MODULE} if django else {}
        super().__init__(kind, f"{MODULE}:app", {**env, **more})
        self._env["PYTHONPATH"] += f"{os.pathsep}{folder}"

    def touch(self) -> None:
        """Change the site's file."""
        with self._file.open("a") as file:
            file.write("# changed\n")
        os.utime(self._file, (0, self._file.stat().st_mtime + 10))

    def answers(self) -> bool:
        """Whether it serves at this moment."""
        try:
            return self.get("/health")[0] == 200
        except OSError:
            return False

    def round_trip(self) -> dict[str, Any]:
        """Publish, subscribe and receive in the host."""
        status, body = self.get("/round-trip")
        assert status == 200, self.output()
        found: dict[str, Any] = json.loads(body)
        return found

    def ask(self, count: int, pace: float) -> str:
        """Let the host write a run, and return its id."""
        status, body = self.get(f"/ask?count={count}&pace={pace}")
        assert status == 200, self.output()
        return body.decode()

    def pids(self) -> set[int]:
        """Its processes."""
        return in_session(self.pid)

    def end(self, number: signal.Signals, limit: float) -> int:
        """Send the signal to all of its processes, as a terminal does with Ctrl-C, or for SIGTERM to the first alone.

        Returns its status once all of them are gone.
        """
        process = self._process
        assert process is not None
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        status = process.wait(limit)
        eventually(lambda: not in_session(process.pid), limit, "a process has stayed")
        return status


@pytest.fixture
def env(server: Server, basin: str) -> dict[str, str]:
    """The environment of a host."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return {**server.endpoints_env(), "S2_BASIN": basin, "PYTHONPATH": path}


@pytest.fixture
def start(env: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Host]]:
    """Start a web server; ended with all of its processes after the test."""
    with ExitStack() as stack:
        yield lambda kind, **more: stack.enter_context(Host(kind, {**env, **more}, tmp_path))
