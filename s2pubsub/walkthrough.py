"""The main job, on real input, as a check: ``s2pubsub walkthrough``.

One process streams a text of three thousand words into a run topic. This process reads it, cuts its own connections
three times while it does (the sockets are shut down under the SDK, as a broken network would), and goes on from the
next index each time. Then it compares, index by index, what was read with what was written and with the stored log.

Then the same in the form of a run, as a browser sees it: an observer leaves three times in mid-answer and comes back.
"""

from __future__ import annotations

import itertools
import os
import socket
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

import s2_sdk

from s2pubsub.client import S2PubSub
from s2pubsub.event import Event
from s2pubsub.runs import Runs
from s2pubsub.topic import run_topic

CUTS = 3
_WORDS_AT_ONCE = 10
_WORDS_A_SECOND = 1000
_WORDS_OF_RUN = 800
_QUEUE = 32
_SILENCE = 60.0
"""Seconds without an event after which the walkthrough gives up."""

_WRITER = "from s2pubsub import walkthrough; walkthrough.write()"


def run(*, basin: str | None = None, endpoint: str | None = None) -> int:
    """Do it, print an account, and return 0 if everything matched, else 1."""
    with ExitStack() as stack:
        environment = dict(os.environ)
        if endpoint is not None:
            environment |= {"S2_ACCOUNT_ENDPOINT": endpoint, "S2_BASIN_ENDPOINT": endpoint}
        if not any(environment.get(name) for name in ("S2_ACCESS_TOKEN", "S2_ACCOUNT_ENDPOINT", "S2_BASIN_ENDPOINT")):
            environment |= stack.enter_context(_embedded_server())
        environment.setdefault("S2_ACCESS_TOKEN", "")
        environment["S2_BASIN"] = basin or environment.get("S2_BASIN") or "s2pubsub-walkthrough"
        pubsub = stack.enter_context(
            S2PubSub(
                basin=environment["S2_BASIN"],
                access_token=environment["S2_ACCESS_TOKEN"],
                endpoints=_endpoints(environment),
                queue_size=_QUEUE,  # small, so that the reader stays close behind the writer
            )
        )
        pubsub.ensure_basin()
        return 0 if _walk(pubsub, environment) and _walk_run(pubsub) else 1


@contextmanager
def _embedded_server() -> Iterator[dict[str, str]]:
    from s2pubsub.server import LocalServer

    with LocalServer() as server:
        print(f"No S2 token or endpoint is set: using an embedded server at {server.url}, in memory.")
        yield {
            "S2_ACCESS_TOKEN": "local",
            "S2_ACCOUNT_ENDPOINT": server.url,
            "S2_BASIN_ENDPOINT": server.url,
        }


def _endpoints(environment: dict[str, str]) -> s2_sdk.Endpoints | None:
    account, basin = environment.get("S2_ACCOUNT_ENDPOINT"), environment.get("S2_BASIN_ENDPOINT")
    return s2_sdk.Endpoints(account, basin) if account and basin else None


def _walk(pubsub: S2PubSub, environment: dict[str, str]) -> bool:
    run_id = str(uuid.uuid4())
    topic = run_topic(run_id)
    expected = chunks()
    print(f"Writing {len(expected) - 1} words from a second process to topic {topic}.")
    began = time.monotonic()
    with pubsub.subscribe_from_offset(topic, 0) as events:
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER], env={**environment, "S2PUBSUB_WALKTHROUGH_RUN": run_id}
        )
        try:
            read = _read(events, len(expected), environment)
        finally:
            writer_failed = _end(writer)
    seconds = time.monotonic() - began
    stored = pubsub.get_history(topic)
    problems = _compare("the reader", read, expected) + _compare("the log", stored, expected)
    reconnects = pubsub.stats().reconnects
    if writer_failed:
        problems.append("the writer has failed")
    if reconnects < CUTS:
        problems.append(f"the connection was cut {CUTS} times, but reopened {reconnects} times")
    pubsub.clear_topic(topic)
    for problem in problems:
        print(f"MISMATCH: {problem}")
    if not problems:
        print(
            f"Read {len(read)} events in {seconds:.1f} s over {reconnects} reconnects: each index once, in order, "
            f"equal to what was written and to the stored log."
        )
    return not problems


def _walk_run(pubsub: S2PubSub) -> bool:
    words = [f"{word} " for word in text().split()[:_WORDS_OF_RUN]]
    with Runs(pubsub, cleanup_timeout=0) as runs:
        run = runs.run(_paced(words), background=True)
        print(f"Writing {len(words)} words as run {run.id}.")
        seen: list[Event] = []
        problems: list[str] = []
        for leave_after in [*(len(words) * part // (CUTS + 1) for part in range(1, CUTS + 1)), None]:
            # What a reloaded page does: it replays the run from its beginning, and goes on.
            with runs.observe(run.id, idle_timeout=_SILENCE) as observation:
                again = list(itertools.islice(observation, leave_after))
            if again[: len(seen)] != seen:
                problems.append(f"the replay of the first {len(seen)} events of the run differs")
            if leave_after is not None:
                print(f"  left after index {again[-1].index}, after a replay of {len(seen)} events that matched")
            seen = again
        if observation.end != "finish" or observation.result().text != "".join(words):
            problems.append("the answer differs from what was written")
        runs.delete(run.id)
    for problem in problems:
        print(f"MISMATCH: {problem}")
    if not problems:
        print(f"Read the run's {len(seen)} events to its end; every replay was the same, and the answer is whole.")
    return not problems


def _paced(words: list[str]) -> Iterator[str]:
    pace = threading.Event()
    for word in words:
        pace.wait(1 / _WORDS_A_SECOND)
        yield word


def _read(events: Any, count: int, environment: dict[str, str]) -> list[Event]:
    """Read ``count`` events, cutting the connection after a quarter, half and three quarters of them."""
    cut_after = [count * part // (CUTS + 1) for part in range(1, CUTS + 1)]
    port = _port(environment.get("S2_BASIN_ENDPOINT") or "https://s2.dev")
    read: list[Event] = []
    while len(read) < count:
        event = events.get(timeout=_SILENCE)
        read.append(event)
        # While the reader waits before it reconnects there is nothing to cut: then it is cut after a later event.
        if cut_after and len(read) >= cut_after[0] and cut_connections(port):
            cut_after.pop(0)
            print(f"  cut off after index {event.index}; it will go on from index {events.next_index}")
    return read


def cut_connections(port: int) -> int:
    """Shut down every TCP connection that this process has made to ``port``; return their number."""
    cut = 0
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    for name in os.listdir(folder):
        with suppress(OSError):  # closed meanwhile, or not a connected socket
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as twin:
                    peer = twin.getpeername()
                    if isinstance(peer, tuple) and peer[1] == port:
                        twin.shutdown(socket.SHUT_RDWR)
                        cut += 1
    return cut


def _port(url: str) -> int:
    parts = urlsplit(url if "://" in url else f"https://{url}")
    return parts.port or (80 if parts.scheme == "http" else 443)


def _end(writer: subprocess.Popen[bytes]) -> bool:
    try:
        return writer.wait(timeout=10) != 0
    except subprocess.TimeoutExpired:
        writer.kill()
        writer.wait()
        return True


def _compare(who: str, events: list[Event], expected: list[dict[str, Any]]) -> list[str]:
    if len(events) != len(expected):
        return [f"{who} has {len(events)} events, {len(expected)} were written"]
    for index, (event, data) in enumerate(zip(events, expected, strict=True)):
        if event.index != index:
            return [f"{who} has index {event.index} where {index} belongs"]
        if event.data != data:
            return [f"{who} has {event.data!r} at index {index}, {data!r} was written"]
    return []


def text() -> str:
    """The shipped text."""
    folder = resources.files("s2pubsub") / "texts"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name[0].isdigit())
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def chunks() -> list[dict[str, Any]]:
    """The data of the run's events: one word each, with the white space behind it, then the end."""
    words = text().replace("\n", "\n ").split(" ")
    deltas = [{"type": "text-delta", "from": "AGENT", "payload": {"id": "text", "text": f"{word} "}} for word in words]
    return [*deltas, {"output": {"text": ""}, "stepResult": {"reason": "stop", "warnings": [], "isContinued": False}}]


def write() -> None:
    """What the second process does."""
    run_id = os.environ["S2PUBSUB_WALKTHROUGH_RUN"]
    *deltas, finish = chunks()
    with S2PubSub() as pubsub:
        events = iter([{"type": "chunk", "data": data, "run_id": run_id} for data in deltas])
        pace = threading.Event()
        while batch := list(itertools.islice(events, _WORDS_AT_ONCE)):
            pubsub.publish_many(run_topic(run_id), batch)
            pace.wait(_WORDS_AT_ONCE / _WORDS_A_SECOND)
        pubsub.publish(run_topic(run_id), type="finish", data=finish, run_id=run_id)


__all__ = ["chunks", "cut_connections", "run", "text", "write"]
