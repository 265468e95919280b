"""The end of the interpreter and signals: scripts that forget to close end by themselves, and Ctrl-C interrupts.

Each test runs a script in a process of its own, in Python's development mode, which shows what is left unclosed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from s2pubsub import S2PubSub
from tests.faults import READ_SESSION, FaultProxy
from tests.servers import ON_LITE, Server

pytestmark = ON_LITE

TOPIC = "agent.stream.run-7"
ROOT = Path(__file__).parent.parent
EXIT = 3.0
"""Seconds within which a process must end, from its last statement."""

BEFORE = """\
import atexit, faulthandler, os, signal, sys, threading, time
faulthandler.dump_traceback_later(25, exit=True)
import s2_sdk
from s2pubsub import ClosedError, S2PubSub, S2PubSubError
TOPIC = "agent.stream.run-7"

def last():
    print("last", time.monotonic(), flush=True)
"""


@attrs.frozen
class Ended:
    """How a script ended. ``seconds``: from its call of ``last()`` to its end."""

    status: int
    output: str
    errors: str
    seconds: float


Run = Callable[..., Ended]


@pytest.fixture
def run(server: Server, basin: str, tmp_path: Path) -> Run:
    """Run a script, whose client finds the server in the environment."""

    def run(script: str, *, endpoint: Any = server, stdin: int | None = None) -> Ended:
        path = tmp_path / "script.py"
        path.write_text(BEFORE + textwrap.dedent(script))
        process = subprocess.Popen(
            [sys.executable, "-X", "dev", path],
            env={**os.environ, **endpoint.endpoints_env(), "S2_BASIN": basin, "PYTHONPATH": str(ROOT)},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            output, errors = process.communicate(timeout=30)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        end = time.monotonic()
        lines = output.splitlines()
        began = next((float(line.split()[1]) for line in lines if line.startswith("last ")), None)
        seconds = float("nan") if began is None else end - began
        rest = "\n".join(line for line in lines if not line.startswith("last "))
        return Ended(process.returncode, rest, errors, seconds)

    return run


@pytest.fixture
def by_name(server: Server) -> Any:
    """The server under its host's name, which has to be resolved."""

    class ByName:
        def endpoints_env(self) -> dict[str, str]:
            return {key: value.replace("127.0.0.1", "localhost") for key, value in server.endpoints_env().items()}

    return ByName()


# C45: exit handlers.


@pytest.mark.parametrize("named", [False, True], ids=["address", "host name"])
def test_an_exit_handler_closes_and_publishes(
    run: Run, pubsub: S2PubSub, by_name: Any, server: Any, named: bool
) -> None:
    """C45: a handler that publishes on a client in use, reads its history, and closes it, works in silence."""
    ended = run(
        """
        pubsub = S2PubSub()
        pubsub.publish(TOPIC, type="chunk", data=0)

        @atexit.register
        def handler():
            pubsub.publish(TOPIC, type="late", data=1, timeout=5)
            assert len(pubsub.get_history(TOPIC, timeout=5)) == 2
            pubsub.close()

        last()
        """,
        endpoint=by_name if named else server,
    )
    assert (ended.status, ended.errors) == (0, "")
    assert ended.seconds < EXIT
    assert [event.type for event in pubsub.get_history(TOPIC)] == ["chunk", "late"]


@pytest.mark.parametrize(
    "action",
    [
        "fresh.publish(TOPIC, type='late', data=0, timeout=5)",
        "used.subscribe(TOPIC, timeout=5).close()",
        "used.subscribe_with_replay(TOPIC, print, timeout=5).close()",
        "opened(used.publisher(TOPIC)).publish(type='late', data=0).result(5)",
        "used.get_history(TOPIC, timeout=5)",
        "fresh.get_history(TOPIC, timeout=5)",
        "used.leases.hold('key', 'owner', 30).release()",
    ],
)
def test_an_exit_handler_begins_something(run: Run, by_name: Any, action: str) -> None:
    """C45: in a handler, a new client, subscription, publisher or lease works or raises ClosedError, at once."""
    ended = run(
        f"""
        used, fresh = S2PubSub(), S2PubSub()
        kept = []
        opened = lambda made: kept.append(made) or made
        used.publish(TOPIC, type="chunk", data=0)

        @atexit.register
        def handler():
            began = time.monotonic()
            try:
                {action}
            except ClosedError as error:
                print("refused", error)
            else:
                print("done")
            assert time.monotonic() - began < 2

        last()
        """,
        endpoint=by_name,
    )
    assert (ended.status, ended.errors) == (0, "")
    assert ended.seconds < 5
    assert ended.output.startswith(("done", "refused"))
    if sys.version_info < (3, 12):
        assert ended.output == "done"


def test_a_handler_that_runs_after_ours(run: Run) -> None:
    """C45: a handler registered before the import runs after the library's own: it finds the client closed, plainly."""
    ended = run(
        """
        import subprocess
        script = '''
        import atexit

        @atexit.register
        def handler():
            try:
                pubsub.publish("agent.a", type="late", data=0)
            except ClosedError as error:
                print(error)
            pubsub.close()

        from s2pubsub import ClosedError, S2PubSub
        pubsub = S2PubSub()
        pubsub.publish("agent.a", type="chunk", data=0)
        '''
        import textwrap
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), done
        print(done.stdout)
        """
    )
    assert (ended.status, ended.errors) == (0, "")
    assert ended.output.strip() == "the client is closed"


def test_a_connection_that_is_made_while_the_interpreter_ends(run: Run, pubsub: S2PubSub) -> None:
    """C46: what a publisher has taken is stored, although from Python 3.12 on no thread can be started any more for
    looking up the host.
    """
    ended = run(
        """
        token, account, basin = (os.environ[f"S2_{name}"].replace("127.0.0.1", "localhost") for name in
                                 ("ACCESS_TOKEN", "ACCOUNT_ENDPOINT", "BASIN_ENDPOINT"))

        def make():
            time.sleep(0.5)  # the interpreter begins to end meanwhile
            return s2_sdk.S2(token, endpoints=s2_sdk.Endpoints(account=account, basin=basin))

        pubsub = S2PubSub(client=make)
        publisher = pubsub.publisher(TOPIC)
        for n in range(100):
            publisher.publish(type="chunk", data=n)
        """
    )
    assert (ended.status, ended.errors) == (0, "")
    assert [event.data for event in pubsub.get_history(TOPIC)] == list(range(100))


# C46: scripts that forget to close.

FORGETS = {
    "idle subscription": "kept = pubsub.subscribe(TOPIC)",
    "waiting thread": """
        kept = pubsub.subscribe(TOPIC)
        threading.Thread(target=lambda: list(kept), daemon=True).start()
    """,
    "full buffer": """
        pubsub = S2PubSub(queue_size=5)
        pubsub.publish_many(TOPIC, [{"type": "chunk", "data": n} for n in range(500)])
        kept = pubsub.subscribe_from_offset(TOPIC, 0)
        kept.get(timeout=5)
    """,
    "callback": """
        seen = threading.Event()
        pubsub.subscribe(TOPIC, lambda event: seen.set())
        pubsub.publish(TOPIC, type="chunk", data=0)
        assert seen.wait(5)
    """,
    "busy callback": """
        seen = threading.Event()
        def work(event):
            seen.set()
            threading.Event().wait(0.5)
        pubsub.subscribe(TOPIC, work)
        pubsub.publish_many(TOPIC, [{"type": "chunk", "data": n} for n in range(50)])
        assert seen.wait(5)
    """,
    "history half read": """
        pubsub.publish_many(TOPIC, [{"type": "chunk", "data": "x" * 500} for n in range(1000)])
        pubsub.publish_many(TOPIC, [{"type": "chunk", "data": "x" * 500} for n in range(1000)])
        history = pubsub.iter_history(TOPIC)
        for _ in range(1001):
            next(history)
    """,
    "publisher": """
        publisher = pubsub.publisher(TOPIC)
        stored = publisher.publish(type="chunk", data=0)
        stored.result(5)
    """,
    "lease": "lease = pubsub.leases.hold('key', 'owner', 30)",
    "run with a clean-up": """
        from s2pubsub.runs import Runs
        runs = Runs(pubsub, cleanup_timeout=60)
        with runs.start("forgotten") as done:
            done.text("all")
    """,
    "two clients": """
        others = [S2PubSub() for _ in range(5)]
        for other in others:
            other.publish(TOPIC, type="chunk", data=0)
        kept = [other.subscribe(TOPIC) for other in others]
    """,
    "dropped client": """
        S2PubSub().publish(TOPIC, type="chunk", data=0)
        pubsub.publish(TOPIC, type="chunk", data=0)
    """,
}

ENDINGS = {
    "falls off": ("", 0, ""),
    "raises": ("raise KeyError('own')", 1, "KeyError: 'own'"),
    "exits": ("sys.exit(3)", 3, ""),
}


@pytest.mark.parametrize("forgets", FORGETS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_that_forgets_to_close(run: Run, forgets: str, ending: str) -> None:
    """C46: whatever is still open, the process ends by itself, with its own status and only its own traceback."""
    how, status, complaint = ENDINGS[ending]
    ended = run(
        'import warnings; warnings.filterwarnings("ignore", "unclosed <S2PubSub")\npubsub = S2PubSub()\n'
        + textwrap.dedent(FORGETS[forgets])
        + f"\nlast()\n{how}\n"
    )
    assert ended.status == status, ended
    assert ended.seconds < EXIT
    check_errors(ended, complaint)


def check_errors(ended: Ended, complaint: str = "") -> None:
    if complaint:
        assert ended.errors.startswith("Traceback"), ended.errors
        assert ended.errors.rstrip().endswith(complaint)
        assert ended.errors.count("Traceback") == 1
    else:
        assert ended.errors == ""


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("outage", ["refuse", "silent", "stalled"])
def test_a_script_that_ends_in_an_outage(run: Run, proxy: FaultProxy, ending: str, outage: str) -> None:
    """C46: the same with the server away or mute, subscriptions in backoff, and calls in flight on daemon threads."""
    how, status, complaint = ENDINGS[ending]
    script = f"""
        import logging
        logging.getLogger("s2pubsub").addHandler(logging.NullHandler())
        logging.getLogger("s2pubsub").propagate = False
        pubsub = S2PubSub()
        pubsub.publish(TOPIC, type="chunk", data=0)
        kept = pubsub.subscribe(TOPIC)
        pubsub.subscribe("agent.stream.called", print)
        sys.stdin.readline()

        def call(action):
            try:
                action()
            except S2PubSubError:
                pass

        for action in (
            lambda: pubsub.publish(TOPIC, type="chunk", data=1),
            lambda: pubsub.get_history(TOPIC),
            lambda: pubsub.tail(TOPIC),
            lambda: pubsub.subscribe("agent.stream.other"),
        ):
            threading.Thread(target=call, args=(action,), daemon=True).start()
        time.sleep(0.5)
        last()
        {how}
        """
    process_ended = run_with_fault(run, proxy, outage, script)
    assert process_ended.status == status, process_ended
    assert process_ended.seconds < EXIT
    check_errors(process_ended, complaint)


def run_with_fault(run: Run, proxy: FaultProxy, outage: str, script: str) -> Ended:
    """Let the fault strike once the subscriptions are open; then the script gets a line on its standard input."""
    reading, writing = os.pipe()

    def strike() -> None:
        with os.fdopen(writing, "w") as pipe:
            proxy.wait_for(READ_SESSION, 2, timeout=15)
            if outage == "refuse":
                proxy.refuse()
                proxy.cut()
            elif outage == "silent":
                proxy.silent()
                proxy.cut()
            else:
                proxy.stall(scope="all")
            pipe.write("go\n")

    striker = threading.Thread(target=strike)
    striker.start()
    try:
        return run(script, endpoint=proxy, stdin=reading)
    finally:
        striker.join(20)
        os.close(reading)
        proxy.clear()


@pytest.mark.limit(60)
def test_ending_while_a_client_is_being_made(run: Run) -> None:
    """C46: a script that ends in the moment in which a client loads its certificates ends in an orderly way: left
    alone inside OpenSSL, that thread crashed one process in twenty.
    """
    for _ in range(20):
        ended = run(
            """
            pubsub = S2PubSub()
            kept = pubsub.subscribe(TOPIC)
            sys.exit(3)
            """
        )
        assert (ended.status, ended.errors) == (3, "")


def test_a_client_callable_that_never_returns(run: Run) -> None:
    """C46: the user's callable that makes clients hangs; a call times out, and the process ends all the same."""
    ended = run(
        """
        pubsub = S2PubSub(client=lambda: threading.Event().wait())
        try:
            pubsub.publish(TOPIC, type="chunk", data=0, timeout=0.5)
        except TimeoutError:
            pass
        else:
            raise AssertionError("published")
        last()
        """
    )
    assert (ended.status, ended.errors) == (0, "")
    assert ended.seconds < EXIT


def test_a_name_server_that_does_not_answer(run: Run) -> None:
    """C46: name resolution hangs (its function is replaced by one that does); the process ends all the same."""
    ended = run(
        """
        import socket
        socket.getaddrinfo = lambda *args, **kwargs: threading.Event().wait()
        pubsub = S2PubSub(endpoints="http://somewhere.example")
        try:
            pubsub.publish(TOPIC, type="chunk", data=0, timeout=0.5)
        except TimeoutError:
            pass
        else:
            raise AssertionError("published")
        last()
        """
    )
    assert (ended.status, ended.errors) == (0, "")
    assert ended.seconds < EXIT


# C47: signals.

INTERRUPTED = """
class Ended(Exception):
    pass

def end(number, frame):
    raise Ended(number)

signal.signal(signal.SIGTERM, end)

def interrupted(action, number, kind):
    \"\"\"Run ``action``; a signal half a second later must end it within a second.\"\"\"
    sent = []
    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)
    timer = threading.Timer(0.5, send)
    timer.start()
    try:
        action()
    except kind:
        took = time.monotonic() - sent[0]
        assert took < 1, took
    else:
        raise AssertionError("it was not interrupted")
    timer.join()
""".replace('\\"', '"')

WAITS = {
    "iteration": "lambda: list(events)",
    "get": "lambda: events.get()",
    "get with a limit": "lambda: events.get(timeout=20)",
    "batches": "lambda: list(events.batches(10, 1.0))",
    "wait": "lambda: events.wait()",
    "callback wait": "lambda: pubsub.subscribe(TOPIC, print).wait(20)",
}

CALLS = {
    "publish": "lambda: pubsub.publish(TOPIC, type='chunk', data=0)",
    "publish_many": "lambda: pubsub.publish_many(TOPIC, [{'type': 'chunk', 'data': 0}])",
    "history": "lambda: pubsub.get_history(TOPIC)",
    "subscribe": "lambda: pubsub.subscribe(TOPIC)",
    "tail": "lambda: pubsub.tail(TOPIC)",
    "acquire": "lambda: pubsub.leases.acquire_lease('key', 'owner', 30)",
    "hold": "lambda: pubsub.leases.hold('key', 'owner', 30, timeout=20)",
    "ensure_basin": "lambda: pubsub.ensure_basin()",
    "publisher flush": "lambda: [publisher.publish(type='chunk', data=0), publisher.flush()]",
    "publisher full": "lambda: [publisher.publish(type='chunk', data=0) for _ in range(2000)]",
}

SIGNALS = {"SIGINT": ("signal.SIGINT", "KeyboardInterrupt"), "SIGTERM": ("signal.SIGTERM", "Ended")}


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("waiting", WAITS)
def test_a_signal_interrupts_a_reader(run: Run, waiting: str, number: str) -> None:
    """C47: Ctrl-C, or a handler that raises, ends the wait of a reader within a second; then close works."""
    ended = run(
        INTERRUPTED
        + textwrap.dedent(
            f"""
            pubsub = S2PubSub()
            events = pubsub.subscribe(TOPIC)
            interrupted({WAITS[waiting]}, {", ".join(SIGNALS[number])})
            pubsub.publish(TOPIC, type="chunk", data=0, timeout=5)
            assert events.get(timeout=5).data == 0
            began = time.monotonic()
            pubsub.close()
            assert time.monotonic() - began < 1
            last()
            """
        )
    )
    assert (ended.status, ended.errors) == (0, "")
    assert ended.seconds < EXIT


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("waiting", CALLS)
def test_a_signal_interrupts_a_call(run: Run, proxy: FaultProxy, waiting: str, number: str) -> None:
    """C47: the same for calls to a server that does not answer."""
    proxy.silent()
    publisher = "publisher = pubsub.publisher(TOPIC)" if "publisher" in waiting else ""
    end = (
        "try:\n    pubsub.close(timeout=1.5)\nexcept S2PubSubError:\n    pass"
        if publisher
        else "pubsub.close(timeout=1)"
    )
    ended = run(
        INTERRUPTED
        + textwrap.dedent(
            f"""
            pubsub = S2PubSub()
            {publisher}
            interrupted({CALLS[waiting]}, {", ".join(SIGNALS[number])})
            """
        )
        + f"began = time.monotonic()\n{end}\nassert time.monotonic() - began < 2\nlast()\n",
        endpoint=proxy,
    )
    assert (ended.status, ended.errors) == (0, "")
    assert ended.seconds < EXIT


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("what", ["pubsub.close", "subscription.close", "lambda: pubsub.unsubscribe(TOPIC, slow)"])
def test_a_signal_interrupts_a_close(run: Run, number: str, what: str) -> None:
    """C47: the same for a close that waits for a callback; a second close completes it."""
    ended = run(
        INTERRUPTED
        + textwrap.dedent(
            f"""
            pubsub = S2PubSub()
            entered, leave = threading.Event(), threading.Event()
            def slow(event):
                entered.set()
                leave.wait(20)
            subscription = pubsub.subscribe(TOPIC, slow)
            pubsub.publish(TOPIC, type="chunk", data=0)
            assert entered.wait(5)
            interrupted({what}, {", ".join(SIGNALS[number])})
            leave.set()
            pubsub.close()
            assert subscription.ended
            assert [thread.name for thread in threading.enumerate()] == ["MainThread"], threading.enumerate()
            last()
            """
        )
    )
    assert (ended.status, ended.errors) == (0, "")
    assert ended.seconds < EXIT


@pytest.mark.parametrize("waiting", ["iteration", "get", "wait"])
def test_ctrl_c_ends_a_script(run: Run, waiting: str) -> None:
    """C47: a script that does not catch it ends with KeyboardInterrupt's traceback and status, inside `with` or not."""
    for block in ("with S2PubSub() as pubsub, pubsub.subscribe(TOPIC) as events:\n    ", "if True:\n    "):
        setup = "" if "with" in block else "pubsub = S2PubSub()\nevents = pubsub.subscribe(TOPIC)\n"
        ended = run(
            setup
            + block
            + "threading.Timer(0.3, lambda: [last(), os.kill(os.getpid(), signal.SIGINT)]).start()"
            + f"\n    ({WAITS[waiting]})()\n"
        )
        assert ended.status == -signal.SIGINT
        check_errors(ended, "KeyboardInterrupt")
        assert ended.seconds < EXIT


@pytest.mark.parametrize("what", ["pubsub.close()", "events.close()"])
def test_a_handler_that_closes(run: Run, what: str) -> None:
    """C47: a SIGTERM handler that closes, on the very thread that iterates, ends the loop in an orderly way."""
    ended = run(
        f"""
        pubsub = S2PubSub()
        events = pubsub.subscribe(TOPIC)
        signal.signal(signal.SIGTERM, lambda *_: {what})
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
        assert list(events) == []
        pubsub.close()
        last()
        """
    )
    assert (ended.status, ended.errors) == (0, "")
    assert ended.seconds < EXIT


def handlers_that_close(run: Run, rounds: int, seed: int) -> None:
    ended = run(
        f"""
        import random
        chance = random.Random({seed})
        faulthandler.cancel_dump_traceback_later()
        sys.setswitchinterval(1e-5)
        pubsub = S2PubSub()
        pubsub.publish(TOPIC, type="chunk", data=0)
        events = None
        signals = 0

        def handler(number, frame):
            global signals
            signals += 1
            if events is not None:
                events.close()

        signal.signal(signal.SIGALRM, handler)
        for number in range({rounds}):
            faulthandler.dump_traceback_later(15, exit=True)
            events = pubsub.subscribe_from_offset(TOPIC, 0)
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.02))
            if number % 2:
                for event in events:
                    pass
            else:
                try:
                    while True:
                        events.get(timeout=chance.choice([None, 0.001, 0.01]))
                except ClosedError:
                    pass
                except TimeoutError:
                    events.close()
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert events.closed
        print(signals > {rounds} / 4)
        pubsub.close()
        last()
        """
    )
    assert (ended.status, ended.errors, ended.output) == (0, "", "True")


@pytest.mark.limit(60)
def test_handlers_that_close_at_any_moment(run: Run) -> None:
    """C47: a handler that closes the subscription which its own thread waits on, at random moments, never hangs it."""
    handlers_that_close(run, 200, seed=1)


@pytest.mark.stress
@pytest.mark.slow
@pytest.mark.limit(60)
def test_handlers_that_close_for_long(run: Run) -> None:
    """C47: the same, many times."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    handlers_that_close(run, 1000, seed)
