"""The commands, as processes of their own, on real servers: what they do, and how they say what is wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from s2pubsub import S2PubSub
from tests.servers import Server, free_port
from tests.waiting import LONG

TOPIC = "agent.stream.shell"
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environment(server: Server, basin: str) -> dict[str, str]:
    measured = {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}
    return {**server.endpoints_env(), "S2_BASIN": basin, "PATH": "", **measured}


@pytest.fixture
def command(environment: dict[str, str]) -> Command:
    """Run a command; ``env`` changes the environment, a None in it takes the variable away."""

    def run(*arguments: str, given: str = "", env: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
        merged = {name: value for name, value in {**environment, **(env or {})}.items() if value is not None}
        line = [sys.executable, "-m", "s2pubsub", *arguments]
        return subprocess.run(line, env=merged, input=given, capture_output=True, text=True, timeout=LONG)

    return run


def test_a_topic_from_the_shell(command: Command, pubsub: S2PubSub) -> None:
    """Publish from an option and from lines, list, read back as text and as JSON, and clear."""
    done = command("publish", TOPIC, "--data", '{"n": 1}', "--type", "chunk", "--run-id", "r", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["index"] == 0
    done = command("publish", TOPIC, given='1\n\n"two"\n[3]\n')
    assert len(done.stdout.splitlines()) == 3
    assert [event.data for event in pubsub.get_history(TOPIC)] == [{"n": 1}, 1, "two", [3]]
    assert command("topics").stdout == f"{TOPIC}\n"
    assert command("topics", "agent.control").stdout == ""
    lines = command("history", TOPIC, "--offset", "1", "--json").stdout.splitlines()
    assert [json.loads(line)["data"] for line in lines] == [1, "two", [3]]
    assert re.fullmatch(r'0\t\d\d:\d\d:\d\d\tchunk\t{"n": 1}', command("history", TOPIC).stdout.splitlines()[0])
    assert command("clear", TOPIC).returncode == 0
    assert command("history", TOPIC).stdout == ""


def test_lines_of_a_slow_pipe(environment: dict[str, str], pubsub: S2PubSub) -> None:
    """Each line is published when it comes, the last one without its end, too; a wrong one is named by its number."""
    line = [sys.executable, "-m", "s2pubsub", "publish", TOPIC]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(line, env=environment, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number, text in enumerate((b"1\n", b'\n"t', b'wo"\n[3]\n')):
            process.stdin.write(text)
            process.stdin.flush()
            if number != 1:
                assert process.stdout.readline().endswith((b"1\n", b'"two"\n'))
        _, said = process.communicate(b"4\n\xff{\n", LONG)
    assert process.returncode == 1
    assert b"line 6 is not JSON" in said
    assert [event.data for event in pubsub.get_history(TOPIC)][:3] == [1, "two", [3]]
    with subprocess.Popen(line, env=environment, **pipes) as process:
        out, said = process.communicate(b"5", LONG)
    assert (process.returncode, said) == (0, b"")
    assert out.endswith(b"\t5\n")


def test_following_a_topic(command: Command, pubsub: S2PubSub) -> None:
    """``tail --offset --count`` prints so many events from there and ends; ``check`` and ``ensure-basin`` say yes."""
    for number in range(4):
        pubsub.publish(TOPIC, type="t", data=number)
    done = command("tail", TOPIC, "--offset", "1", "--count", "2", "--json")
    assert [json.loads(line)["index"] for line in done.stdout.splitlines()] == [1, 2]
    assert command("check").stdout == f"basin {pubsub.basin} is ready\n"
    assert command("ensure-basin", "--retention", "3600").stdout == f"basin {pubsub.basin} is ready\n"


def test_ctrl_c_ends_it(environment: dict[str, str], pubsub: S2PubSub) -> None:
    """A ``tail`` that waits ends by Ctrl-C in silence, with status 130."""
    pubsub.publish(TOPIC, type="t", data=1)
    line = [sys.executable, "-m", "s2pubsub", "tail", TOPIC, "--offset", "0"]
    with subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("0\t")
        process.send_signal(signal.SIGINT)
        assert process.wait(LONG) == 130
        assert process.stderr.read() == ""


@pytest.mark.parametrize("count", ["0", "-1", "x", "1.5"])
def test_a_count_of_nothing(command: Command, count: str) -> None:
    """``tail --count`` takes whole numbers from 1 on; anything else is wrong usage, told at once."""
    done = command("tail", TOPIC, "--count", count)
    assert done.returncode == 2
    assert "--count" in done.stderr
    assert "at least 1" in done.stderr or "whole number" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "env", "expected"),
    [
        (["check"], {"S2_BASIN": None}, "the basin is not set: give --basin or set S2_BASIN"),
        (["check"], {"S2_ACCESS_TOKEN": None}, "the access token is not set: set S2_ACCESS_TOKEN"),
        (["check"], {"S2_ACCOUNT_ENDPOINT": None}, "S2_ACCOUNT_ENDPOINT is not set .* or give --endpoint"),
        (["check"], {"S2_BASIN": "No Basin"}, "S2_BASIN: 'No Basin' is no name of a basin"),
        (["check", "--basin", "short"], {}, "--basin: 'short' is no name of a basin"),
        (["check", "--endpoint", "localhost"], {}, "--endpoint: 'localhost' .* write http://localhost or"),
        (["check", "--basin", "absent-basin"], {}, "create it with `s2pubsub ensure-basin`, or correct --basin or S2"),
        (["publish", TOPIC, "--data", "{"], {}, "--data is not JSON"),
        (["publish", "jobs", "--data", "1"], {}, "topic 'jobs' is local"),
        (["ensure-basin", "--retention", "0"], {}, "--retention must be at least 1"),
        (["history", TOPIC, "--timeout", "-1"], {}, "--timeout must"),
        (["check"], {"S2_ACCESS_TOKEN": "a b"}, "S2_ACCESS_TOKEN must be printable"),
    ],
)
def test_what_is_wrong_is_said_in_the_shells_words(
    command: Command, arguments: list[str], env: dict[str, Any], expected: str
) -> None:
    """One line on stderr names the option, variable or command that mends it, nothing of Python; the status is 1."""
    done = command(*arguments, env=env)
    assert done.returncode == 1
    assert re.match(
        f"s2pubsub: .*{expected}" if ".*" in expected else f"s2pubsub: .*{re.escape(expected)}", done.stderr
    )
    assert not re.search(r"\w=|\w\(\)|Traceback", done.stderr)
    assert done.stderr.count("\n") == 1


def test_a_basin_that_makes_no_streams(command: Command, make_basin: Callable[..., str]) -> None:
    """``check`` names the command that turns on what is off, and that command does."""
    bare = make_basin()
    done = command("check", "--basin", bare)
    assert "`s2pubsub ensure-basin` turns them on" in done.stderr
    assert command("ensure-basin", "--basin", bare).returncode == 0
    assert command("check", "--basin", bare).returncode == 0


def test_nobody_listens(command: Command) -> None:
    """A server that cannot be reached is one line and status 1, within the time given."""
    done = command("check", "--endpoint", f"http://127.0.0.1:{free_port()}", "--timeout", "1")
    assert done.returncode == 1
    assert "could not be reached" in done.stderr
    assert "Traceback" not in done.stderr
