"""Pools of processes, by every way Python starts them: their children publish, lose nothing, and leave nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from s2pubsub.runs import Runs
from tests.processes import in_session
from tests.servers import ON_EMBEDDED
from tests.waiting import LONG, eventually

pytestmark = [ON_EMBEDDED, pytest.mark.limit(90)]

TOPIC = "agent.stream.pool"
METHODS = ["fork", "spawn", "forkserver"]

POOL = '''
import concurrent.futures, faulthandler, multiprocessing, os, signal, sys, threading, time
from s2pubsub import S2PubSub
faulthandler.register(signal.SIGUSR1)
TOPIC = "agent.stream.pool"
pubsub = S2PubSub()  # at import, as applications do: in the parent and, where that imports anew, in the children
kept = []

def publish(number):
    return pubsub.publish(TOPIC, type="chunk", data=number, timeout=10).data

def publish_later(number):
    """Does not wait, and does not close: what it has promised is stored when its process ends."""
    if not kept:
        kept.append(pubsub.publisher(TOPIC))
    kept[0].publish(type="chunk", data=number, timeout=10)
    return os.getpid()

def threads():
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("s2pubsub-"))
'''


@pytest.fixture
def run(env: dict[str, str], tmp_path: Path) -> Callable[..., str]:
    """Run a script in a session of its own: it ends with 0, in silence, and no process is left."""

    def run(script: str, limit: float = 60) -> str:
        path = tmp_path / "script.py"
        path.write_text(POOL + textwrap.dedent(script))
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", path],
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGUSR1)
            process.poll()
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"it did not end: {process.communicate()}")
        assert (process.returncode, errors) == (0, ""), output
        eventually(lambda: not in_session(process.pid), LONG, "a process has stayed")
        return output

    return run


def stored(pubsub: Any) -> list[Any]:
    return sorted(event.data for event in pubsub.get_history(TOPIC))


@pytest.mark.parametrize("method", METHODS)
def test_an_executor(run: Callable[..., str], pubsub: Any, method: str) -> None:
    """C40: a ProcessPoolExecutor whose children use the module's client: all is stored once, and the parent goes on."""
    run(
        f"""
        if __name__ == "__main__":
            publish(-1)
            context = multiprocessing.get_context({method!r})
            with concurrent.futures.ProcessPoolExecutor(3, mp_context=context) as pool:
                assert list(pool.map(publish, range(30))) == list(range(30))
            publish(30)
            pubsub.close()
            assert threads() == [], threads()
        """
    )
    assert stored(pubsub) == list(range(-1, 31))


@pytest.mark.parametrize("method", METHODS)
def test_children_that_forget_to_close(run: Callable[..., str], pubsub: Any, method: str) -> None:
    """C46: a child of multiprocessing ends without Python's exit handlers; what its publisher has taken is stored."""
    run(
        f"""
        if __name__ == "__main__":
            context = multiprocessing.get_context({method!r})
            with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
                list(pool.map(publish_later, range(40)))
            child = context.Process(target=publish_later, args=(40,))
            child.start()
            child.join(20)
            assert child.exitcode == 0
            pubsub.close()
        """
    )
    assert stored(pubsub) == list(range(41))


@pytest.mark.parametrize("method", METHODS)
def test_children_that_are_replaced(run: Callable[..., str], pubsub: Any, method: str) -> None:
    """A Pool that replaces each child after three tasks, and one that is terminated in the middle."""
    run(
        f"""
        if __name__ == "__main__":
            context = multiprocessing.get_context({method!r})
            pool = context.Pool(2, maxtasksperchild=3)
            assert sorted(pool.imap_unordered(publish, range(12))) == list(range(12))
            pool.close()
            pool.join()
            with context.Pool(2) as pool:  # ends its children by SIGTERM
                pool.map(publish, range(12, 14))
            pool.join()
            pubsub.close()
        """
    )
    assert stored(pubsub) == list(range(14))


def test_forking_in_threads_with_publishers_in_flight(run: Callable[..., str], pubsub: Any) -> None:
    """C40, C41: threads fork while others' publishers are full of events: each child works and leaves, by either exit,
    and all that the parent was promised is stored, in order and once.
    """
    run(
        """
        over = threading.Event()
        promised = {}

        def busy(name):
            futures = []
            with pubsub.publisher(TOPIC) as publisher:
                while not over.is_set() and len(futures) < 3000:
                    futures.append(publisher.publish(type="chunk", data=[name, len(futures)]))
                publisher.flush(timeout=30)
            promised[name] = [future.result(30).index for future in futures]

        statuses = []

        def fork(name):
            for number in range(3):
                pid = os.fork()
                if pid == 0:
                    try:
                        publish([name, number])
                        with pubsub.publisher(TOPIC) as own:
                            own.publish(type="chunk", data=[name, number + 10]).result(10)
                        if number % 2:
                            pubsub.close()
                    except BaseException:
                        sys.excepthook(*sys.exc_info())
                        os._exit(1)
                    os._exit(0)
                statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

        busy_ones = [threading.Thread(target=busy, args=(f"busy-{n}",)) for n in range(2)]
        forking = [threading.Thread(target=fork, args=(f"fork-{n}",)) for n in range(3)]
        for thread in busy_ones + forking:
            thread.start()
        for thread in forking:
            thread.join()
        over.set()
        for thread in busy_ones:
            thread.join()
        assert statuses == [0] * 9, statuses
        assert len(promised) == 2
        for indices in promised.values():
            assert indices == sorted(indices)
        pubsub.close()
        assert threads() == [], threads()
        """
    )
    found = [tuple(event.data) for event in pubsub.get_history(TOPIC)]
    assert max(Counter(found).values()) == 1
    assert {(f"fork-{n}", m) for n in range(3) for m in (0, 1, 2, 10, 11, 12)} <= set(found)
    for n in range(2):
        mine = [number for name, number in found if name == f"busy-{n}"]
        assert mine == list(range(len(mine)))


def test_an_agent_made_before_a_fork(run: Callable[..., str], pubsub: Any) -> None:
    """C40: it works in the child, and when that ends the run it was writing gets its end, as anywhere."""
    run_id = run(
        """
        from s2pubsub.agent import DurableAgent
        from s2pubsub.runs import Runs

        def words():
            while True:
                yield "more "
                time.sleep(0.01)

        agent = DurableAgent(words, Runs(pubsub))
        publish(0)
        pid = os.fork()
        if pid == 0:
            with agent.stream() as events:
                print(events.run_id)
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        pubsub.close()
        """
    ).strip()
    assert Runs(pubsub).status(run_id) == "failed"


def test_a_fork_behind_pythons_back(run: Callable[..., str], pubsub: Any) -> None:
    """C40: where no hook of a fork is called, a client that was used before says that it is dead; one that was only
    made works.
    """
    run(
        """
        import ctypes
        from s2pubsub import ClosedError
        fresh = S2PubSub()
        publish(0)
        pid = ctypes.PyDLL(None).fork()  # holds the global lock, as a host would
        if pid == 0:
            try:
                publish(1)
            except ClosedError as error:
                assert "--lazy-apps" in str(error)
                fresh.publish(TOPIC, type="chunk", data=2, timeout=10)
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        publish(3)
        pubsub.close()
        fresh.close()
        """
    )
    assert stored(pubsub) == [0, 2, 3]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="interpreters are in the standard library from 3.14 on")
def test_subinterpreters_are_refused(run: Callable[..., str]) -> None:
    """The SDK's compiled parts do not load in a subinterpreter: the import there says so, and nothing hangs."""
    run(
        """
        from concurrent import interpreters
        other = interpreters.create()
        try:
            other.exec("import s2pubsub.client")
        except interpreters.ExecutionFailed as error:
            assert "ImportError" in str(error) and "subinterpreters" in str(error), error
        else:
            raise AssertionError("it can be imported: say so in the guide")
        other.close()
        publish(0)
        pubsub.close()
        """
    )
