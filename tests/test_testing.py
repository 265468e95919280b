"""The pytest plugin that users of the library get."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytestmark = pytest.mark.embedded

_PASSING = """
import os
from s2pubsub import S2PubSub

basins = set()

def test_first(s2_pubsub, s2_server):
    s2_pubsub.publish("agent.stream.r", type="chunk", data=1)
    assert [event.data for event in s2_pubsub.get_history("agent.stream.r")] == [1]
    assert s2_server.url.startswith("http://")
    basins.add(s2_pubsub.basin)

def test_second_has_a_basin_of_its_own(s2_pubsub):
    assert s2_pubsub.topics() == []
    assert s2_pubsub.basin not in basins

def test_applications_find_it_in_the_environment(s2_environment):
    assert os.environ["S2_BASIN"] == s2_environment["S2_BASIN"]
    with S2PubSub() as mine:
        assert mine.publish("agent.stream.r", type="chunk", data=1).index == 0

def test_nothing_is_started_unasked():
    pass
"""

_LEAKING = """
import threading

def test_leak(s2_pubsub):
    stay = threading.Event()
    threading.Thread(target=stay.wait, name="s2pubsub-stray", daemon=True).start()
"""


def plugin() -> list[str]:
    """How to load the plugin: by itself where the package is installed, by name in a bare checkout."""
    installed = any(entry.value == "s2pubsub.testing" for entry in entry_points(group="pytest11"))
    return [] if installed else ["-p", "s2pubsub.testing"]


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_user.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", *plugin(), "-W", "error", str(folder)]
    root = Path(__file__).parent.parent
    measured = {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}
    environment = {"PATH": "", "PYTHONPATH": str(root), "HOME": str(folder), **measured}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.limit(70)
def test_users_get_a_server_and_clients(tmp_path: Path) -> None:
    """s2_server, s2_pubsub and s2_environment work in a project that configures nothing."""
    done = run(tmp_path, _PASSING)
    assert "4 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.limit(70)
def test_a_leak_fails_the_test(tmp_path: Path) -> None:
    """A thread of the library that outlives the client is named in the failure."""
    done = run(tmp_path, _LEAKING)
    assert "s2pubsub-stray" in done.stdout
    assert "1 error" in done.stdout
