"""Pools of workers write runs, a gunicorn process streams them: the examples, with everything real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from s2pubsub import RunEndedError, StoreError
from s2pubsub.examples.writing import answer
from s2pubsub.runs import Runs
from tests.demo.browser import read_stream
from tests.servers import ON_EMBEDDED
from tests.waiting import LONG, eventually
from tests.web.event_source import Message

pytestmark = [ON_EMBEDDED, pytest.mark.limit(60)]
QUESTION = "What burns in the lamp?"
WORDS = list(answer(QUESTION))
PATIENCE = 30.0


def ask(web: Any, question: str = QUESTION) -> str:
    """Ask, and return the run's id."""
    body = urllib.parse.urlencode({"question": question}).encode()
    request = urllib.request.Request(f"{web.url}/answers", body, {"X-Requested-With": "test"})
    with urllib.request.urlopen(request, timeout=LONG) as response:
        return str(json.load(response)["runId"])


def read(web: Any, run_id: str) -> list[Message]:
    """Everything that a browser gets of the run."""
    return read_stream(f"{web.url}/answers/{run_id}/events", timeout=PATIENCE)


def text(messages: list[Message]) -> str:
    chunks = [message.json for message in messages if message.type == "chunk"]
    return "".join(chunk["payload"]["text"] for chunk in chunks if chunk["type"] == "text-delta")


def reason(messages: list[Message]) -> str:
    assert [message.type for message in messages].count("finish") == 1
    assert messages[-1].type == "end"
    return str(messages[-2].json["stepResult"]["reason"])


def wait_for_words(runs: Runs, run_id: str, count: int) -> None:
    """Wait until the run has so many words, and goes on."""
    with runs.observe(run_id, wait_for_start=LONG) as observation:
        seen = 0
        while seen < count:
            event = observation.get(PATIENCE)
            seen += isinstance(event.data, dict) and event.data.get("type") == "text-delta"


@pytest.fixture
def runs(pubsub: Any) -> Runs:
    return Runs(pubsub)


def test_hand_over(runs: Runs) -> None:
    """A run that was handed over goes on in another writer, where the first one stopped; the first one is done."""
    first = runs.start()
    first.text("one ")
    first.hand_over()
    with pytest.raises(RunEndedError):
        first.text("more")
    with pytest.raises(RunEndedError):
        first.hand_over()
    first.close()
    with runs.attach(first.id) as second:
        second.text("two")
    observation = runs.observe(first.id)
    kinds = [event.data["type"] for event in observation if event.type == "chunk"]
    assert kinds == ["start", "text-start", "text-delta", "text-end", "text-start", "text-delta", "text-end"]
    assert observation.result().text == "one two"


def test_hand_over_with_lost_events(runs: Runs) -> None:
    """What could not be stored is raised by the hand-over: another writer was faster."""
    first = runs.start()
    second = runs.attach(first.id)
    second.text("two")
    second.flush()
    first.text("one ")
    with pytest.raises(StoreError):
        first.hand_over()
    second.finish()


@pytest.mark.slow
def test_celery(start_web: Callable[..., Any], start_worker: Callable[..., Any], celery_env: dict[str, str]) -> None:
    """C19: Ten runs that wait in the queue before there is a worker are streamed from their start, each whole."""
    web = start_web(celery_env)
    started = [ask(web) for _ in range(10)]
    found: dict[str, list[Message]] = {}
    readers = [
        threading.Thread(target=lambda run_id=run_id: found.update({run_id: read(web, run_id)})) for run_id in started
    ]
    for reader in readers:
        reader.start()
    start_worker()
    for reader in readers:
        reader.join(PATIENCE)
    for run_id in started:
        assert text(found[run_id]) == "".join(WORDS)
        assert reason(found[run_id]) == "stop"


@pytest.mark.slow
def test_celery_stop_and_time_limit(
    start_web: Callable[..., Any], start_worker: Callable[..., Any], celery_env: dict[str, str], runs: Runs
) -> None:
    """A stop ends a run with what it has, also one that waits in the queue; a soft time limit ends it as failed."""
    limit = {"ANSWER_LIMIT": "1", "ANSWER_PACE": "0.1"}
    web = start_web({**celery_env, **limit})

    def stop(run_id: str) -> None:
        request = urllib.request.Request(f"{web.url}/answers/{run_id}/stop", b"", {"X-Requested-With": "test"})
        with urllib.request.urlopen(request, timeout=LONG) as response:
            assert response.status == 202

    queued = ask(web)
    stop(queued)
    worker = start_worker(**limit)
    messages = read(web, queued)
    assert reason(messages) == "abort"
    assert len(text(messages).split()) <= 1
    written = ask(web)
    wait_for_words(runs, written, 2)
    stop(written)
    messages = read(web, written)
    assert reason(messages) == "abort"
    assert 2 <= len(text(messages).split()) < len(WORDS)
    limited = ask(web)
    messages = read(web, limited)
    assert reason(messages) == "error", worker.output()[-3000:]
    assert len(text(messages).split()) < len(WORDS)


@pytest.mark.slow
def test_killed_celery_process(
    start_web: Callable[..., Any], start_worker: Callable[..., Any], celery_env: dict[str, str], runs: Runs
) -> None:
    """C16: a task whose process is killed is delivered again and goes on: one run, each word once, one end."""
    web = start_web(celery_env)
    worker = start_worker()
    run_id = ask(web)
    wait_for_words(runs, run_id, 10)
    for child in worker.children():
        os.kill(child, signal.SIGKILL)
    messages = read(web, run_id)
    assert text(messages) == "".join(WORDS), worker.output()[-3000:]
    assert reason(messages) == "stop"


@pytest.mark.slow
def test_killed_celery(
    start_web: Callable[..., Any], start_worker: Callable[..., Any], celery_env: dict[str, str], runs: Runs
) -> None:
    """C16: when the whole worker is killed, its lease runs out and the run ends for its observers: 'idle'."""
    web = start_web(celery_env)
    worker = start_worker()
    run_id = ask(web)
    wait_for_words(runs, run_id, 10)
    worker.kill()
    messages = read(web, run_id)
    assert messages[-1].type == "failure"
    assert messages[-1].json["code"] == "idle"
    assert "".join(WORDS).startswith(text(messages))
    assert len(text(messages).split()) >= 10


def test_broker_down(start_web: Callable[..., Any], env: dict[str, str], runs: Runs, pubsub: Any) -> None:
    """When the run cannot be handed to the workers it ends as failed, and the request with 500: nobody waits."""
    web = start_web({**env, "CELERY_BROKER_URL": "redis://127.0.0.1:9/0"})
    with pytest.raises(urllib.error.HTTPError) as info:
        ask(web)
    info.value.close()
    assert info.value.code == 500
    (topic,) = pubsub.topics("agent.stream.")
    assert runs.status(topic.removeprefix("agent.stream.")) == "failed"


def test_threads(start_web: Callable[..., Any], env: dict[str, str]) -> None:
    """Threads of the web process write runs: two readers of each get the whole of it."""
    web = start_web({**env, "POOL": "threads"})
    started = [ask(web) for _ in range(4)]
    for run_id in started:
        first, second = read(web, run_id), read(web, run_id)
        assert text(first) == text(second) == "".join(WORDS)
        assert reason(first) == "stop"


@pytest.mark.slow
def test_killed_threads(start_web: Callable[..., Any], env: dict[str, str], runs: Runs) -> None:
    """C16: when the process with the threads is killed, another one tells the observers: 'idle'."""
    writing, watching = start_web({**env, "POOL": "threads"}), start_web({**env, "POOL": "threads"})
    run_id = ask(writing)
    wait_for_words(runs, run_id, 10)
    (worker,) = _children(writing.pid)
    writing.kill()
    os.kill(worker, signal.SIGKILL)
    messages = read(watching, run_id)
    assert messages[-1].json["code"] == "idle"
    assert len(text(messages).split()) >= 10


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def test_thread_pool_program(env: dict[str, str]) -> None:
    """The thread pool as a program answers all its questions."""
    command = [sys.executable, "-m", "s2pubsub.examples.thread_pool", QUESTION, "Who reads the log?"]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "".join(WORDS).strip() in done.stdout
    assert done.stdout.count("?\n") >= 2


def test_one_writer_at_a_time(runs: Runs) -> None:
    """C23: A task that is delivered twice is written once; one that was done already is left alone."""
    from s2pubsub.examples.writing import write_answer

    run = runs.start()
    run.hand_over()
    threads = [threading.Thread(target=write_answer, args=(runs, run.id, QUESTION)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    write_answer(runs, run.id, QUESTION)
    assert runs.observe(run.id).result().text == "".join(WORDS)
    eventually(lambda: runs.active_run(run.id) is None)
