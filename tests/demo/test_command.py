"""The command ``s2pubsub demo``."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from s2pubsub.demo.app import DEFAULT_BASIN
from tests.demo.browser import read_stream, read_turns, stored_text
from tests.servers import Server
from tests.waiting import LONG, eventually


def refuse(*options: str, env: dict[str, str] | None = None) -> str:
    """Run the command, which must fail at once, and return what it says."""
    command = [sys.executable, "-m", "s2pubsub", "demo", *options]
    done = subprocess.run(command, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def post(url: str, question: str) -> str:
    """Ask as a browser without JavaScript does; return the conversation's address."""
    request = urllib.request.Request(f"{url}/chat", f"question={question}".encode(), {"Origin": url})
    with urllib.request.urlopen(request, timeout=LONG) as response:
        return str(response.url)


def test_wrong_usage(tmp_path: Path) -> None:
    """A port that is taken, a folder without texts and ``--data`` for a foreign server are refused with the reason."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port}" in refuse("--port", port)
    assert str(tmp_path) in refuse("--folder", str(tmp_path))
    assert "--data" in refuse("--data", str(tmp_path), env={"S2_ACCESS_TOKEN": "x"})
    assert "--keep" in refuse("--keep", "0")


def test_says_which_server(start_demo: Callable[..., Any], tmp_path: Path) -> None:
    """It says that it uses an embedded server, and where the page is; Ctrl-C and SIGTERM end it with exit code 0."""
    for number in (signal.SIGINT, signal.SIGTERM):
        demo = start_demo()
        eventually(lambda demo=demo: "The demo is at" in demo.output())
        assert "using an embedded server at http://127.0.0.1:" in demo.output()
        os.kill(demo.pid, number)
        assert demo._process.wait(LONG) == 0
        assert "Traceback" not in demo.output()
        assert demo.output().endswith("The demo ends.\n")


def test_where_everybody_can_reach_it(start_demo: Callable[..., Any]) -> None:
    """It says so; and where it cannot open a browser it says that and goes on."""
    demo = start_demo("--host", "0.0.0.0", "--open", env={"BROWSER": "no-such-browser", "PATH": "", "DISPLAY": ""})
    eventually(lambda: "Everybody who can reach this address" in demo.output())
    eventually(lambda: "No browser could be opened" in demo.output())


def test_a_given_server(start_demo: Callable[..., Any], server: Server) -> None:
    """It uses the server that the environment names, says which, and makes its basin there."""
    demo = start_demo(env=server.endpoints_env())
    assert f"Using the S2 server that the environment names: {server.basin_url}" in demo.output()
    assert read_turns(post(demo.url, "Which documents do you have?"))
    server.remove_basin(DEFAULT_BASIN)


def test_opens_the_browser(start_demo: Callable[..., Any], tmp_path: Path) -> None:
    """With ``--open`` the user's browser is started with the page's address."""
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\necho $1 > {opened}\n")
    browser.chmod(0o755)
    demo = start_demo("--open", env={"BROWSER": f"{browser} %s"})
    eventually(lambda: opened.exists() and opened.read_text().strip() == f"{demo.url}/")


@pytest.mark.slow
def test_many_processes(server: Server, basin: str, start_gunicorn: Callable[..., Any]) -> None:
    """On gunicorn with two processes, which are all killed in mid-answer, the conversation is still there."""
    web = start_gunicorn({**server.endpoints_env(), "S2_BASIN": basin})
    url = post(web.url, "Which documents do you have?")
    (turn,) = read_turns(url)
    text = stored_text(url, turn["runId"])
    assert "The Light" in text
    cut = post(web.url, "What must a keeper do when the clockwork fails?")
    (turn,) = read_turns(cut)
    web.kill_all()
    web.start()
    assert stored_text(url, url.rpartition("/")[2]) == text
    messages = read_stream(f"{cut}/runs/{turn['runId']}/events")
    assert messages[-1].json["code"] == "idle"


def test_stop_ends_answers(start_demo: Callable[..., Any], tmp_path: Path) -> None:
    """A demo that is stopped ends the answers that it is writing; started again on its data, it shows them."""
    demo = start_demo("--data", str(tmp_path / "data"))
    url = post(demo.url, "What must a keeper do when the clockwork fails?")
    demo.restart()
    (turn,) = [read_turns(url)[0]]
    text = stored_text(url, turn["runId"])
    assert "two minutes, exactly" not in text
