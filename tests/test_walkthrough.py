"""The command ``s2pubsub walkthrough``: the main job as a check that a user can run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.servers import Server

pytestmark = [pytest.mark.slow, pytest.mark.limit(90)]


def walk(env: dict[str, str]) -> list[str]:
    """Do it, and return the lines that it prints."""
    command = [sys.executable, "-m", "s2pubsub", "walkthrough"]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=80)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_on_a_server(server: Server, basin: str) -> None:
    """On the server that the environment names: three cuts, three returns to a run, everything matched."""
    lines = walk({**server.endpoints_env(), "S2_BASIN": basin})
    assert sum(line.startswith("  cut off after index") for line in lines) == 3
    assert sum(line.startswith("  left after index") for line in lines) == 3
    assert "over 3 reconnects" in " ".join(lines)
    assert not any("MISMATCH" in line for line in lines)
    topics = server.request("GET", "/v1/streams", headers={"s2-basin": basin})["streams"]
    assert [topic for topic in topics if not topic.get("deleted_at")] == [], "it leaves nothing behind"


@pytest.mark.embedded
def test_without_a_server() -> None:
    """Without token and endpoints it starts the embedded server, and says so."""
    lines = walk({})
    assert "embedded server" in lines[0]
    assert lines[-1].startswith("Read the run's")
