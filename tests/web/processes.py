"""Web servers in processes of their own, with the test applications: gunicorn, Werkzeug, waitress, uvicorn, others."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.servers import ServerProcess, missing

ROOT = Path(__file__).parents[2]
FLASK = "tests.web.flask_app:app"
DJANGO = "tests.web.django_app:application"
DJANGO_ASGI = "tests.web.django_app:asgi_application"

SERVERS = [
    ("gthread", FLASK),
    ("werkzeug", FLASK),
    ("waitress", FLASK),
    ("uwsgi", FLASK),
    ("gevent", FLASK),
    ("gthread", DJANGO),
    ("runserver", DJANGO),
    ("uvicorn", DJANGO_ASGI),
    ("hypercorn", DJANGO_ASGI),
    ("daphne", DJANGO_ASGI),
]
"""Each kind of server with an application that it can serve."""


class WebServer(ServerProcess):
    """A web server. ``config`` are settings of the binding, without their prefix."""

    def __init__(self, kind: str, app: str, env: Mapping[str, str], *, threads: int = 32, **config: Any) -> None:
        self.kind = kind
        self.app = app
        self.threads = threads
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        mine = {"PYTHONPATH": path, "WEB_CONFIG": json.dumps(config), "PYTHONUNBUFFERED": "1"}
        if app in (DJANGO, DJANGO_ASGI):
            mine["DJANGO_SETTINGS_MODULE"] = "tests.web.django_settings"
        super().__init__(env={**env, **mine})

    def command(self) -> list[str]:
        here, port, threads = "127.0.0.1", str(self.port), str(self.threads)
        python = sys.executable
        quiet = ["--log-level", "warning"]
        gunicorn = [python, "-m", "gunicorn", "-b", f"{here}:{port}", "-w", "1", *quiet]
        uwsgi = ["uwsgi", "--master", "--die-on-term", "--http-socket", f"{here}:{port}", "--module", self.app]
        if self.kind.startswith("uwsgi"):
            program = Path(python).with_name("uwsgi")
            if not program.exists():
                missing("the tests of uWSGI need the program `uwsgi`")
            uwsgi[0] = str(program)
            if program.read_bytes().startswith(b"#!"):  # pyuwsgi: loaded anew, it would run a Python that knows no venv
                uwsgi += ["--binary-path", python]
        found = {
            "gthread": [*gunicorn, "-k", "gthread", "--threads", threads, self.app],
            "preload": [*gunicorn, "-k", "gthread", "--threads", threads, "--preload", self.app],
            "gevent": [*gunicorn, "-k", "gevent", self.app],
            "preload gevent": [*gunicorn, "-k", "gevent", "--preload", self.app],
            "sync": [*gunicorn, "-k", "sync", "-w", "3", self.app],
            "werkzeug": [python, "-m", "flask", "--app", self.app, "run", "-h", here, "-p", port],
            "werkzeug reload": [python, "-m", "flask", "--app", self.app, "run", "--reload", "-h", here, "-p", port],
            "uwsgi": [*uwsgi, "--threads", threads],
            "uwsgi lazy": [*uwsgi, "--threads", threads, "--processes", "2", "--lazy-apps"],
            "uwsgi without threads": uwsgi,
            "waitress": [python, "-m", "waitress", f"--listen={here}:{port}", f"--threads={threads}", self.app],
            "runserver": [python, "-m", "django", "runserver", "--noreload", f"{here}:{port}"],
            "runserver reload": [python, "-m", "django", "runserver", f"{here}:{port}"],
            "uvicorn": [python, "-m", "uvicorn", "--host", here, "--port", port, *quiet, self.app],
            "hypercorn": [python, "-m", "hypercorn", "-b", f"{here}:{port}", self.app],
            "daphne": [python, "-m", "daphne", "-b", here, "-p", port, self.app],
        }
        return found[self.kind]

    def get(self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> tuple[int, bytes]:
        """One plain request: status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, headers=dict(headers or {}))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def state(self) -> dict[str, Any]:
        """What the application holds: its streams, subscriptions and threads of the library."""
        status, body = self.get("/state")
        assert status == 200, body
        found: dict[str, Any] = json.loads(body)
        return found

    def terminate(self) -> subprocess.Popen[bytes]:
        """Send SIGTERM and return the process, to see how long it takes."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process

    def hang_up(self) -> None:
        """Send SIGHUP: gunicorn replaces its workers."""
        os.kill(self.pid, signal.SIGHUP)
