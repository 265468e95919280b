"""One process of a campaign: ``python -m tests.stress.campaign.worker '<json of Task>'``.

Its main thread obeys the lines on its standard input: ``fork``, ``stop`` (write no more, then make the file
``<name>.stopped``) and ``{"until": …}`` (read up to there and end). The end of the input ends it at once.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import attrs

from s2pubsub import S2PubSub, S2PubSubError
from tests.stress.campaign.notes import Notebook

LONG = 90.0
"""Seconds in which everything must come to its end once the faults are over."""

CHILD_LIMIT = 60.0


@attrs.frozen(kw_only=True)
class Task:
    """What a process is to do. ``life`` counts its incarnations, ``pace`` are the seconds between a writer's events."""

    role: str
    slot: int
    life: int
    url: str
    token: str
    basin: str
    folder: str
    seed: int
    pace: float
    topics: list[str]
    keys: list[str] = attrs.field(factory=list)
    runners: int = 0

    @property
    def name(self) -> str:
        """The same in each life."""
        return f"{self.role}{self.slot}"

    @property
    def who(self) -> str:
        return f"{self.name}.{self.life}"


class Desk:
    """What every role needs: the client, the notebook, chance, and the ends of writing and reading."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.random = random.Random(f"{task.seed}-{task.who}")
        self.notebook = Notebook(Path(task.folder) / f"{task.name}.jsonl")
        self.note = self.notebook.note
        self.stop = threading.Event()
        self.until: dict[str, int] = {}
        self.reading_until = threading.Event()
        small = {"queue_size": 16} if task.slot % 2 else {}
        self.pubsub = S2PubSub(basin=task.basin, access_token=task.token, endpoints=task.url, **small)

    def pause(self, chance: random.Random) -> None:
        """Wait as long as a writer waits between two events."""
        self.stop.wait(self.task.pace * 2 * chance.random())

    def thread(self, work: Callable[..., None], *args: Any) -> threading.Thread:
        """Run ``work`` on a thread; what it raises must not happen."""

        def guarded() -> None:
            try:
                work(*args)
            except BaseException as error:
                self.note("wrong", f"{self.task.who}: {work.__name__}: {type(error).__name__}: {error}")
                sys.excepthook(*sys.exc_info())

        made = threading.Thread(target=guarded, name=f"{work.__name__}-{args[:1]}", daemon=True)
        made.start()
        return made


class Role(Protocol):
    """What a process does."""

    writers: list[threading.Thread]
    readers: list[threading.Thread]

    def finish_reading(self) -> None:
        """See that readers end; called when ``desk.until`` says where."""

    def in_child(self, note: Callable[..., None]) -> None:
        """What a forked child tries with what it has inherited."""


def make_role(desk: Desk) -> Role:
    from tests.stress.campaign.leasing import Leasing
    from tests.stress.campaign.publishing import Exact, Publishing
    from tests.stress.campaign.reading import Reading
    from tests.stress.campaign.running import Running

    kinds: dict[str, Callable[[Desk], Role]] = {
        "publisher": Publishing,
        "exact": Exact,
        "reader": Reading,
        "lease": Leasing,
        "runner": Running,
    }
    return kinds[desk.task.role](desk)


def fork(desk: Desk, role: Role, number: int) -> None:
    """Fork, let the child publish over the inherited client, and see that it ends."""
    pid = os.fork()
    if pid == 0:
        faulthandler.dump_traceback_later(CHILD_LIMIT, exit=True)
        note = Notebook(Path(desk.task.folder) / f"{desk.task.who}-child{number}.jsonl").note
        try:
            _publish_in_child(desk, number, note)
            role.in_child(note)
        except BaseException as error:
            note("wrong", f"{desk.task.who}, child {number}: {type(error).__name__}: {error}")
            sys.excepthook(*sys.exc_info())
        os._exit(0)
    desk.note("forked")

    def reap() -> None:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status:
            desk.note("wrong", f"{desk.task.who}: its child {number} ended with {status}")

    role.writers.append(desk.thread(reap))  # what the child publishes comes before the end of writing


def _publish_in_child(desk: Desk, number: int, note: Callable[..., None]) -> None:
    by, topic = f"{desk.task.who}/child{number}", desk.task.topics[0]
    for n in range(3):
        try:
            event = desk.pubsub.publish(topic, type="b", data={"by": by, "n": n}, timeout=10)
        except S2PubSubError as error:
            note("fail", topic, by, n, error.outcome, repr(error))
        else:
            note("ack", topic, by, n, event.index, event.id)
    with contextlib.suppress(S2PubSubError):
        desk.pubsub.close()


def expect_closed(note: Callable[..., None], what: str, work: Callable[[], object]) -> None:
    """What was opened before a fork is closed in the child, unless it had failed before."""
    try:
        work()
    except TimeoutError:
        pass
    except S2PubSubError:
        return
    note("wrong", f"{what} works in a forked child")


def main() -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    desk = Desk(Task(**json.loads(sys.argv[1])))
    role = make_role(desk)
    threading.Thread(target=_report_stopped, args=(desk, role), daemon=True).start()
    forks = 0
    for line in sys.stdin:
        if line == "fork\n":
            forks += 1
            fork(desk, role, forks)
        elif line == "stop\n":
            desk.stop.set()
        else:
            desk.until = json.loads(line)["until"]
            desk.reading_until.set()
            role.finish_reading()
            for thread in role.readers:
                thread.join(LONG)
                if thread.is_alive():
                    desk.note("wrong", f"{desk.task.who}: {thread.name} does not end")
            desk.pubsub.close()
            return
    os._exit(1)  # whoever started us is gone


def _report_stopped(desk: Desk, role: Role) -> None:
    desk.stop.wait()
    for thread in role.writers:
        thread.join()
    (Path(desk.task.folder) / f"{desk.task.name}.stopped").touch()


if __name__ == "__main__":
    main()
