"""The shared fixtures themselves: servers that start, die and come back, and the guards against hangs and leaks."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.waiting import LONG, eventually

ROOT = Path(__file__).parent.parent


def run_pytest(folder: Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` as a test file under the shared fixtures."""
    file = folder / "test_inner.py"
    file.write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(
        [*command, "-p", "no:cacheprovider", str(file)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def records(server: servers.Server, basin: str, stream: str) -> list[str]:
    found = server.request("GET", f"/v1/streams/{stream}/records?seq_num=0", headers={"s2-basin": basin})
    return [record.get("body", "") for record in found["records"]]


def append(server: servers.Server, basin: str, stream: str, body: str) -> None:
    wanted = {"records": [{"body": body}]}
    server.request("POST", f"/v1/streams/{stream}/records", wanted, headers={"s2-basin": basin})


def test_basin_is_there_and_creates_streams(server: servers.Server, basin: str) -> None:
    """The basin is the test's own; an append and a read create streams in it."""
    append(server, basin, "made-by-append", "x")
    assert records(server, basin, "made-by-append") == ["x"]
    tail = server.request("GET", "/v1/streams/made-by-read/records/tail", headers={"s2-basin": basin})
    assert tail["tail"]["seq_num"] == 0


def test_other_basins(server: servers.Server, make_basin: Callable[..., str]) -> None:
    """Basins of other settings can be had: this one creates no streams."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        append(server, make_basin(), "s", "x")
    assert caught.value.code == 404
    caught.value.close()


def test_clients(pubsub: Any, make_pubsub: Callable[..., Any], basin: str) -> None:
    """Two clients on the test's basin see each other's events."""
    event = pubsub.publish("agent.stream.a", type="chunk", data={"n": 1})
    assert make_pubsub().get_history("agent.stream.a") == [event]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda folder: servers.LiteServer(local_root=folder), marks=pytest.mark.lite, id="lite"),
        pytest.param(lambda folder: servers.EmbeddedServer(data=folder), marks=pytest.mark.embedded, id="embedded"),
    ],
)
def test_server_survives_a_crash(make: Callable[[Path], servers.ServerProcess], tmp_path: Path) -> None:
    """A durable server killed by SIGKILL comes back on its port with what was acknowledged."""
    with make(tmp_path) as server:
        basin = server.make_basin(**servers.CREATE_STREAMS)
        append(server, basin, "s", "kept")
        port, pid = server.port, server.pid
        server.kill()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        server.restart()
        assert server.port == port
        assert server.pid != pid
        assert records(server, basin, "s") == ["kept"]


@pytest.mark.embedded
def test_embedded_server_in_a_thread() -> None:
    """The embedded server in this process serves, and leaves no thread."""
    with servers.ThreadServer() as server:
        basin = server.make_basin(**servers.CREATE_STREAMS)
        append(server, basin, "s", "x")
        assert records(server, basin, "s") == ["x"]


@pytest.mark.lite
def test_lite_paused_answers_later() -> None:
    """A paused server accepts connections and answers when it goes on."""
    with servers.LiteServer(flush="1ms") as server:
        server.pause()
        answers: list[bool] = []
        asking = threading.Thread(target=lambda: answers.append(server._answers()))
        asking.start()
        asking.join(0.2)
        assert asking.is_alive()
        server.resume()
        asking.join(LONG)
        assert answers == [True]


@pytest.mark.lite
def test_server_dies_with_its_starter(tmp_path: Path) -> None:
    """A test process that is killed leaves no server behind."""
    code = (
        "import os, signal\n"
        "from tests.servers import LiteServer\n"
        "server = LiteServer().start()\n"
        "print(server.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, timeout=60, check=False
    )
    pid = int(done.stdout)

    def gone() -> bool:
        with contextlib.suppress(FileNotFoundError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return True

    eventually(gone)


def test_hang_ends_the_run(tmp_path: Path) -> None:
    """A test that hangs ends the run with the stacks of all threads, uncaptured."""
    done = run_pytest(
        tmp_path,
        "import threading, pytest\n"
        "@pytest.mark.limit(0.5)\n"
        "def test_hang():\n"
        "    threading.Event().wait(30)\n",
    )  # fmt: skip
    assert done.returncode == 1
    assert "Timeout (0:00:00.500000)!" in done.stderr
    assert "in test_hang" in done.stderr


def test_thread_left_behind_fails_the_test(tmp_path: Path) -> None:
    """A thread of the library that outlives its test fails it, by name; other tests are not blamed."""
    done = run_pytest(
        tmp_path,
        "import threading, tests.conftest\n"
        "tests.conftest.LEAVE_LIMIT = 0.1\n"
        "stop = threading.Event()\n"
        "def test_leak():\n"
        "    threading.Thread(target=stop.wait, args=(30,), name='s2pubsub-sub-x').start()\n"
        "def test_fine():\n"
        "    pass\n"
        "def test_last():\n"
        "    stop.set()\n",
    )  # fmt: skip
    assert "threads left behind: s2pubsub-sub-x" in done.stdout
    assert "3 passed, 1 error" in done.stdout


def test_thread_exception_fails_the_test(tmp_path: Path) -> None:
    """An exception in a thread fails the test that started it."""
    done = run_pytest(
        tmp_path,
        "import threading\n"
        "def test_thread():\n"
        "    thread = threading.Thread(target=lambda: 1 / 0)\n"
        "    thread.start()\n"
        "    thread.join()\n",
    )  # fmt: skip
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stdout


def test_missing_server(tmp_path: Path) -> None:
    """Without the real server its tests are skipped in one line; with CI=true they fail."""
    code = (
        "import pytest\n"
        "@pytest.mark.lite\n"
        "def test_one(): pass\n"
        "def test_two(lite_server): pass\n"
        "@pytest.mark.parametrize('server', [pytest.param('lite', marks=pytest.mark.lite)], indirect=True)\n"
        "def test_three(server): pass\n"
    )
    home = run_pytest(tmp_path, code, S2_BIN="/nowhere/s2", CI="")
    assert home.returncode == 0
    assert home.stdout.count("the real server is missing") == 1
    assert "3 skipped" in home.stdout
    ci = run_pytest(tmp_path, code, S2_BIN="/nowhere/s2", CI="true")
    assert ci.returncode == 1
    assert "3 errors" in ci.stdout


@pytest.mark.lite
def test_given_endpoint(tmp_path: Path, lite_server: servers.LiteServer) -> None:
    """With endpoints and token set by the user the contract tests run there, in a basin that is removed."""
    code = (
        "import os\n"
        "def test_contract(server, basin, pubsub):\n"
        "    print('at', server.url, 'in', basin)\n"
        "    assert 'S2_ACCESS_TOKEN' not in os.environ\n"
        "    assert pubsub.publish('agent.stream.a', type='c', data=1).index == 0\n"
    )
    done = run_pytest(tmp_path, code, **lite_server.endpoints_env())
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert "test_contract[given]" in done.stdout
    at, basin = done.stdout.partition("at ")[2].splitlines()[0].split(" in ")
    assert at == lite_server.url
    found = lite_server.request("GET", f"/v1/basins?prefix={basin}")["basins"]
    assert all(one["deleted_at"] for one in found)
