"""What a worker does: takes over a run that was started elsewhere, writes the answer and ends it.

While it writes it holds a lease. Whoever watches can tell by it whether a silent run is slow or its worker is dead; and
a task that is delivered twice is written by one worker at a time.
"""

from __future__ import annotations

import os
import re
import threading
import uuid
from collections.abc import Iterator

from s2pubsub.chunks import delta_text
from s2pubsub.demo.documents import Library, shipped_documents, terms
from s2pubsub.errors import RunEndedError
from s2pubsub.runs import Run, Runs

LEASE = 3.0
"""Seconds after which a killed worker's run is known to be dead."""

PACE = float(os.environ.get("ANSWER_PACE", "0.02"))
"""Seconds between two words."""

_library = Library(shipped_documents())


def write_answer(runs: Runs, run_id: str, question: str) -> None:
    """Write the answer to a run that was started and handed over. May be called again for the same run.

    Raises:
        RunNotFoundError: it was deleted meanwhile.
        LeaseUnavailableError: another worker writes it.
    """
    attempt = str(uuid.uuid4())  # not the run's id: two deliveries of a task must not share a lease
    with runs.pubsub.leases.hold(run_id, attempt, LEASE, timeout=2 * LEASE) as lease:
        try:
            run = runs.attach(run_id)
        except RunEndedError:
            return  # it was all done; only the word of it was lost
        stop = threading.Event()
        with run:
            run.on_abort(stop.set)  # heard at once, and also if it was asked for while the task waited in a queue
            for word in _left(answer(question), _written(runs, run)):
                if stop.wait(PACE):
                    run.abort()
                    return
                lease.check()
                run.text(word)


def answer(question: str) -> Iterator[str]:
    """The words of the answer. Here stands your agent."""
    found = _library.search(terms(question), limit=1)
    yield from re.findall(r"\S+\s*", found[0].text if found else "I know nothing about that.")


def _written(runs: Runs, run: Run) -> str:
    """What a killed worker has written of it already."""
    return "".join(delta_text(event) or "" for event in runs.pubsub.iter_history(run.topic))


def _left(words: Iterator[str], written: str) -> Iterator[str]:
    """The words behind what is written: this agent says the same again. One that does not would begin a new run."""
    for word in words:
        if written.startswith(word):
            written = written[len(word) :]
        else:
            yield word


def is_alive(runs: Runs, run_id: str) -> bool:
    """Whether a worker writes the run, or it waits for one: then nothing stands in it but its start."""
    return runs.active_run(run_id) is not None or runs.pubsub.tail(f"agent.stream.{run_id}") <= 1
