"""Real S2 servers for tests: `s2 lite`, the embedded server, or the endpoint that the user has set.

Each has ``url``, ``port``, ``endpoints_env()`` and makes and removes basins by plain HTTP, so that a test's basin
does not depend on the library under test. Not for: faults on the wire (`tests.faults`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from tests.waiting import eventually

ON_LITE = pytest.mark.parametrize("server", [pytest.param("lite", marks=pytest.mark.lite)], indirect=True)
"""For a test that uses the ``server`` fixture and is meant for the real server only."""

ON_EMBEDDED = pytest.mark.parametrize("server", [pytest.param("embedded", marks=pytest.mark.embedded)], indirect=True)
"""For a test that uses the ``server`` fixture and is meant for the embedded server only."""

CREATE_STREAMS = {"create_stream_on_append": True, "create_stream_on_read": True}
_START = 20.0
_STOP = 5.0


class Server:
    """An S2 endpoint. ``account_url`` and ``basin_url`` differ only for an endpoint of the user's."""

    def __init__(self, url: str, *, token: str = "test", basin_url: str | None = None) -> None:
        self.url = url
        self.basin_url = basin_url or url
        self.token = token

    @property
    def port(self) -> int:
        """The TCP port, for a proxy in front of it."""
        return int(self.url.rpartition(":")[2])

    def endpoints_env(self) -> dict[str, str]:
        """The environment that points the library and the SDK at this server."""
        return {
            "S2_ACCOUNT_ENDPOINT": self.url,
            "S2_BASIN_ENDPOINT": self.basin_url,
            "S2_ACCESS_TOKEN": self.token,
        }

    def request(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """One JSON request over HTTP/1.1; `urllib.error.HTTPError` on a status of 400 and above."""
        base = self.url if "://" in self.url else f"https://{self.url}"
        fields = {"authorization": f"Bearer {self.token}", "content-type": "application/json", **(headers or {})}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(base + path, data, fields, method=method)
        with urllib.request.urlopen(request, timeout=10) as response:
            text = response.read()
        return json.loads(text) if text else None

    def make_basin(self, **config: Any) -> str:
        """Create a basin with a name of its own and return the name."""
        name = f"t-{uuid.uuid4().hex[:24]}"
        self.request("POST", "/v1/basins", {"basin": name, "config": config})
        return name

    def remove_basin(self, name: str) -> None:
        """Delete a basin; nothing happens if it is gone already."""
        try:
            self.request("DELETE", f"/v1/basins/{name}")
        except urllib.error.HTTPError as error:
            error.close()


def given_server() -> Server | None:
    """The endpoint that the user has set by all three variables, or None."""
    names = ("S2_ACCOUNT_ENDPOINT", "S2_BASIN_ENDPOINT", "S2_ACCESS_TOKEN")
    account, basin, token = (os.environ.get(name) for name in names)
    if not (account and basin and token):
        return None
    return Server(account.rstrip("/"), token=token, basin_url=basin.rstrip("/"))


def free_port() -> int:
    """A port that nothing listens on at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def find_lite() -> str | None:
    """The program `s2`, from S2_BIN, the path or cargo's folder."""
    given = os.environ.get("S2_BIN")
    if given:
        return given if os.access(given, os.X_OK) else None
    return shutil.which("s2") or shutil.which(str(Path.home() / ".cargo" / "bin" / "s2"))


class ServerProcess(Server):
    """A server in a process of its own, on a port that it keeps over restarts.

    A watchdog kills it when this process ends without having stopped it. With ``own_session`` it is the leader of a
    session, and its children are ended with it.
    """

    own_session = False
    folder: Path | None = None  # where it runs, if not here

    def __init__(self, *, port: int | None = None, env: Mapping[str, str] | None = None) -> None:
        super().__init__(f"http://127.0.0.1:{port or free_port()}")
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server

    def command(self) -> list[str]:
        """The command line that serves on ``port``."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        """The process id; RuntimeError while it does not run."""
        if self._process is None:
            raise RuntimeError("the server does not run")
        return self._process.pid

    def start(self) -> Self:
        """Start, and return when it answers. Does nothing while it runs."""
        if self._process is not None:
            return self
        process = self._process = subprocess.Popen(
            self.command(),
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=self.own_session,
            cwd=self.folder,
        )
        script = f"read nothing; kill -9 {'-' if self.own_session else ''}{process.pid}"
        self._watchdog = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, start_new_session=True)
        try:
            eventually(self._answers, _START, "the server did not start")
        except BaseException:
            self.kill()
            raise
        return self

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"the server ended at once:\n{self.output()}")
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def output(self) -> str:
        """The last of what it printed."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 10_000))
        return self._log.read().decode(errors="replace")

    def stop(self) -> None:
        """End it by SIGTERM; by SIGKILL if it stays."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it by SIGKILL, as a crash would."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.kill()
            watchdog.communicate()
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
            try:
                process.wait(_STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_STOP)
            if self.own_session:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def restart(self) -> None:
        """Stop it if it runs, and start it on the same port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stop the process as by SIGSTOP: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """End `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop it for good."""
        self.stop()
        self._log.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()


class LiteServer(ServerProcess):
    """`s2 lite`. In memory, or durable with ``local_root``; ``flush`` is its flush interval, such as ``"1ms"``."""

    def __init__(
        self,
        *,
        local_root: Path | None = None,
        flush: str | None = None,
        port: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        more = {"SL8_FLUSH_INTERVAL": flush} if flush else {}
        super().__init__(port=port, env={"S2LITE_NO_DASHBOARD": "true", **more, **(env or {})})
        self._local_root = local_root

    def command(self) -> list[str]:
        """See `ServerProcess`."""
        program = find_lite()
        if program is None:
            raise RuntimeError(MISSING_LITE)
        root = [] if self._local_root is None else ["--local-root", str(self._local_root)]
        return [program, "lite", "--port", str(self.port), *root]


class EmbeddedServer(ServerProcess):
    """`s2pubsub serve` in a process of its own; in memory, or durable with ``data``."""

    def __init__(
        self, *, data: Path | None = None, port: int | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        found = importlib.util.find_spec("s2pubsub")
        assert found is not None
        assert found.origin is not None
        # The package under test, wherever this process has it from and whatever the folder it runs in.
        path = str(Path(found.origin).parent.parent)
        super().__init__(port=port, env={"PYTHONPATH": path, **(env or {})})
        self._data = data

    def command(self) -> list[str]:
        """See `ServerProcess`."""
        data = [] if self._data is None else ["--data", str(self._data)]
        return [sys.executable, "-m", "s2pubsub", "serve", "--port", str(self.port), *data]


class ThreadServer(Server):
    """The embedded server in a thread of this process, by `s2pubsub.server.LocalServer`."""

    def __init__(self, *, data: Path | None = None) -> None:
        from s2pubsub.server import LocalServer

        self._server = LocalServer(data=data)
        self._server.__enter__()
        super().__init__(self._server.url)

    def close(self) -> None:
        """Stop it."""
        self._server.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


MISSING_LITE = "the real server is missing: install `s2-cli` from crates.io, or name the program in S2_BIN"
MISSING_EMBEDDED = "the embedded server is missing: it needs the extra `server`"


def has_embedded() -> bool:
    """Whether the embedded server can be imported."""
    try:
        importlib.import_module("s2pubsub.server")
    except ImportError:
        return False
    return True


def start_embedded() -> EmbeddedServer | ThreadServer:
    """The embedded server, in a process of its own; in a thread if the command does not work.

    The command has a test of its own; broken, it must not take all others with it.
    """
    server = EmbeddedServer()
    try:
        return server.start()
    except RuntimeError:
        server.close()
        return ThreadServer()


def missing(reason: str) -> None:
    """Skip the test for want of something; fail it where nothing may be wanting (CI=true)."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
