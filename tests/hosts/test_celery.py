"""Celery with its pools, on a real broker: tasks publish and write runs; recycled, ended and started anew."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from s2pubsub.runs import Runs
from tests.celery_worker import CeleryWorker
from tests.redis_server import has_redis, start_redis
from tests.servers import ON_EMBEDDED, missing
from tests.waiting import LONG, eventually

pytestmark = [ON_EMBEDDED, pytest.mark.slow, pytest.mark.limit(90)]

POOLS = ["prefork", "threads"]
DONE = "agent.host.tasks"


@pytest.fixture
def broker(env: dict[str, str]) -> Iterator[dict[str, str]]:
    """The environment with a broker of the test's own."""
    if not has_redis() or find_spec("celery") is None:
        missing("Celery's tests need redis-server and the Python packages redis and celery")
    with start_redis() as port:
        yield {**env, "CELERY_BROKER_URL": f"redis://127.0.0.1:{port}/0", "HOST_EARLY": "1"}


@pytest.fixture
def start(broker: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., CeleryWorker]]:
    """Start a worker; ended after the test."""
    with ExitStack() as stack:

        def start(pool: str, *options: str) -> CeleryWorker:
            log = tmp_path / f"celery-{len(list(tmp_path.iterdir()))}.log"
            return stack.enter_context(CeleryWorker("tests.hosts.celery_site", broker, log, pool, *options))

        yield start


@pytest.fixture
def send(broker: dict[str, str]) -> Iterator[Callable[..., None]]:
    """Send a task."""
    from celery import Celery

    with Celery("sender", broker=broker["CELERY_BROKER_URL"]) as app:
        yield lambda name, *args: app.send_task(f"tests.hosts.celery_site.{name}", args)


def done(pubsub: Any) -> list[list[int]]:
    return [event.data for event in pubsub.get_history(DONE)] if pubsub.exists(DONE) else []


@pytest.mark.parametrize("pool", POOLS)
def test_tasks_publish(start: Any, send: Any, pubsub: Any, pool: str) -> None:
    """C40: with a client that was used before the fork, twenty tasks publish and receive, each once."""
    worker = start(pool)
    for number in range(20):
        send("publish", number)
    eventually(lambda: len(done(pubsub)) == 20, 3 * LONG, "tasks are missing")
    assert sorted(number for number, _ in done(pubsub)) == list(range(20))
    processes = {process for _, process in done(pubsub)}
    assert processes <= (set(worker.children()) if pool == "prefork" else {worker.process.pid})
    assert worker.end(LONG) == 0
    assert "Traceback" not in worker.output()


def test_processes_that_are_replaced(start: Any, send: Any, pubsub: Any) -> None:
    """A pool that replaces each process after two tasks loses nothing, also of what was not waited for: the signal
    `worker_process_shutdown` closes the client.
    """
    worker = start("prefork", "--max-tasks-per-child", "2")
    for number in range(12):
        send("publish_later", number)
    eventually(lambda: len(done(pubsub)) == 12, 3 * LONG, "tasks are missing")
    assert sorted(number for number, _ in done(pubsub)) == list(range(12))
    assert len({process for _, process in done(pubsub)}) >= 6
    assert worker.end(LONG) == 0
    assert "Traceback" not in worker.output()


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_ends_in_the_middle_of_a_run(start: Any, send: Any, pubsub: Any, pool: str) -> None:
    """SIGTERM: the task is finished, so its run is whole; what was queued waits for the next worker. Nobody is left."""
    runs = Runs(pubsub)
    started = []
    for _ in range(4):  # two for the worker, two that wait
        run = runs.start()
        run.hand_over()
        started.append(run.id)
    worker = start(pool)
    for run_id in started:
        send("write", run_id, 100, 0.02)
    with runs.observe(started[0], wait_for_start=LONG) as events:
        for _ in range(5):
            events.get(timeout=LONG)
        assert worker.end(3 * LONG) == 0
    assert "Traceback" not in worker.output()
    second = start(pool)
    for run_id in started:
        text = runs.observe(run_id, wait_for_start=LONG).result().text
        assert text == "".join(f"{number} " for number in range(100))
        history = pubsub.get_history(f"agent.stream.{run_id}")
        assert [event.type for event in history if event.type != "chunk"] == ["finish"]
    assert os.getpgid(second.process.pid) == second.process.pid
    assert second.end(LONG) == 0
