"""Runs written by Celery: ``celery --app s2pubsub.examples.celery_worker worker``.

The broker is ``CELERY_BROKER_URL``. The client is made once, at import; each process of the pool has connections and
threads of its own from its first use on.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from celery import Celery

from s2pubsub import S2PubSub
from s2pubsub.examples.writing import write_answer
from s2pubsub.runs import Runs

app = Celery("s2pubsub-examples", broker=os.environ.get("CELERY_BROKER_URL", "redis://localhost:6379/0"))
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    # A task whose process was killed is delivered again, and goes on with the run where that process stopped.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    # Longer than that no answer may take: SoftTimeLimitExceeded ends the run as failed. The limits travel with a task,
    # so that those of the process which sends it count.
    task_soft_time_limit=float(os.environ.get("ANSWER_LIMIT", "300")),
    task_time_limit=float(os.environ.get("ANSWER_LIMIT", "300")) + 30,
)


@cache
def runs() -> Runs:
    """The process's runs. Not made at import: a web process imports this module, too, and has its own."""
    return Runs(S2PubSub())


def write(run_id: str, question: str) -> None:
    """The task: write the answer to a run that the web process has started."""
    write_answer(runs(), run_id, question)


_task: Any = app.task(write, name="s2pubsub.write")


def submit(run_id: str, question: str) -> None:
    """Hand a run to the workers."""
    _task.delay(run_id, question)
