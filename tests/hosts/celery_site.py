"""The Celery application that the tests run. Its client is made, and used, in the process that forks the pool."""

from __future__ import annotations

import os
import threading

from celery import Celery
from celery.signals import worker_process_shutdown

from s2pubsub import S2PubSub
from s2pubsub.runs import Runs

app = Celery("host", broker=os.environ["CELERY_BROKER_URL"])
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=1, task_acks_late=True)

pubsub = S2PubSub()
runs = Runs(pubsub)
kept = None
if os.environ.get("HOST_EARLY"):
    kept = pubsub.subscribe("agent.host.early")
    pubsub.publish("agent.host.early", type="ping", data=os.getpid())
publisher: list[object] = []


@worker_process_shutdown.connect
def close(**_: object) -> None:
    pubsub.close()


@app.task
def publish(number: int) -> None:
    """Publish, and receive it."""
    topic = f"agent.host.{os.getpid()}.{threading.get_ident()}"
    with pubsub.subscribe(topic, timeout=5) as events:
        pubsub.publish(topic, type="ping", data=number, timeout=5)
        if events.get(timeout=5).data != number:
            raise AssertionError("another event has come")
    pubsub.publish("agent.host.tasks", type="done", data=[number, os.getpid()], timeout=5)


@app.task
def publish_later(number: int) -> None:
    """Publish without waiting: what the process has promised is stored when it is shut down."""
    if not publisher:
        publisher.append(pubsub.publisher("agent.host.tasks"))
    publisher[0].publish(type="done", data=[number, os.getpid()], timeout=5)  # type: ignore[attr-defined]


@app.task
def write(run_id: str, count: int, pace: float) -> None:
    """Write a run that was started elsewhere."""
    waiting = threading.Event()
    with runs.attach(run_id) as run:
        for number in range(count):
            waiting.wait(pace)
            run.text(f"{number} ")
