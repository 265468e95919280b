"""Fixtures that all tests share: servers, basins, clients, and the guards against hanging and leaking."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests import raw, servers, waiting
from tests.faults import FaultProxy

GIVEN = servers.given_server()
for _name in ("S2_ACCESS_TOKEN", "S2_BASIN", "S2_ACCOUNT_ENDPOINT", "S2_BASIN_ENDPOINT"):
    os.environ.pop(_name, None)  # a test says itself where it connects

HANG_LIMIT = 20.0
LEAVE_LIMIT = 5.0
KINDS = [
    pytest.param("embedded", marks=pytest.mark.embedded),
    pytest.param("lite", marks=pytest.mark.lite),
]
if GIVEN is not None:
    KINDS = [pytest.param("given")]


# Guards.


def pytest_configure(config: pytest.Config) -> None:
    """Keep the real stderr: while tests run, pytest captures the other one. Take Ctrl-C, although a shell that starts
    something in the background lets it ignore that, and so all processes that the tests start.
    """
    config.stash[_STDERR] = os.dup(2)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Give it back."""
    os.close(config.stash[_STDERR])


_STDERR = pytest.StashKey[int]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End the run with every thread's stack when a test, its fixtures included, hangs."""
    marker = item.get_closest_marker("limit")
    limit = (float(marker.args[0]) if marker else HANG_LIMIT) * waiting.PATIENCE
    if sys.gettrace() is None:
        faulthandler.dump_traceback_later(limit, exit=True, file=item.config.stash[_STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses a server is marked with it."""
    for item in items:
        for kind in ("lite", "embedded"):
            if f"{kind}_server" in getattr(item, "fixturenames", ()):
                item.add_marker(kind)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests whose server is missing, or fail them with CI=true."""
    if item.get_closest_marker("lite") and servers.find_lite() is None:
        servers.missing(servers.MISSING_LITE)
    if item.get_closest_marker("embedded") and not servers.has_embedded():
        servers.missing(servers.MISSING_EMBEDDED)


_shared: set[threading.Thread] = set()
"""Threads of servers that the whole run shares."""


def _ours() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("s2pubsub-")} - _shared


@pytest.fixture(autouse=True)
def _no_thread_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test that leaves a thread of the library behind."""
    before = _ours()
    yield
    if "server" in request.fixturenames:
        # What was dropped unclosed shall complain in the test that dropped it.
        request.node.funcargs.clear()
        gc.collect()
    for thread in _ours() - before:
        thread.join(LEAVE_LIMIT)
    left = sorted(thread.name for thread in _ours() - before)
    if left:
        faulthandler.dump_traceback(file=request.config.stash[_STDERR])
        pytest.fail(f"threads left behind: {', '.join(left)}", pytrace=False)


# Servers.


@pytest.fixture(scope="session")
def lite_server() -> Iterator[servers.LiteServer]:
    """`s2 lite` in memory, shared by the whole run: restart or stop one of your own instead."""
    if servers.find_lite() is None:
        servers.missing(servers.MISSING_LITE)
    with servers.LiteServer() as server:
        yield server


@pytest.fixture(scope="session")
def embedded_server() -> Iterator[servers.Server]:
    """The embedded server in memory, shared by the whole run."""
    if not servers.has_embedded():
        servers.missing(servers.MISSING_EMBEDDED)
    before = _ours()
    with servers.start_embedded() as server:
        _shared.update(_ours() - before)
        yield server


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> servers.Server:
    """Each server in turn: the contract tests run on all. The user's endpoint, where one is set, instead."""
    if request.param == "given":
        assert GIVEN is not None
        return GIVEN
    found: servers.Server = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture
def make_basin(server: servers.Server) -> Iterator[Callable[..., str]]:
    """Make basins of the settings given, by default none; they are removed after the test."""
    with ExitStack() as stack:

        def make(**config: Any) -> str:
            name = server.make_basin(**config)
            stack.callback(server.remove_basin, name)
            return name

        yield make


@pytest.fixture
def basin(make_basin: Callable[..., str]) -> str:
    """A basin of the test's own which creates streams on append and on read."""
    return make_basin(**servers.CREATE_STREAMS)


@pytest.fixture
def proxy(server: servers.Server) -> Iterator[FaultProxy]:
    """A fault proxy in front of the server."""
    if server is GIVEN:
        pytest.skip("the proxy is for servers that the test run starts itself")
    with FaultProxy(server.port) as proxy:
        yield proxy


# Clients.


@pytest.fixture
def make_pubsub(server: servers.Server, basin: str) -> Iterator[Callable[..., Any]]:
    """Make clients of the server, or of ``endpoints=proxy.url``; they are closed after the test."""
    s2_sdk = pytest.importorskip("s2_sdk")
    from s2pubsub import S2PubSub

    with ExitStack() as stack:

        def make(**settings: Any) -> Any:
            if "client" not in settings:
                given = s2_sdk.Endpoints(account=server.url, basin=server.basin_url)
                settings = {"endpoints": given, "access_token": server.token, **settings}
            made = S2PubSub(**{"basin": basin, **settings})
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def pubsub(make_pubsub: Callable[..., Any]) -> Any:
    """A client on the test's own basin, closed after the test."""
    return make_pubsub()


@pytest.fixture
def through(make_pubsub: Callable[..., Any], proxy: FaultProxy) -> Any:
    """A client whose requests go through the proxy."""
    return make_pubsub(endpoints=proxy.url, access_token="test")


@pytest.fixture
def local() -> Iterator[Any]:
    """Local topics."""
    from s2pubsub import LocalPubSub

    with LocalPubSub() as local:
        yield local


@pytest.fixture
def leases(pubsub: Any) -> Any:
    """The leases of ``pubsub``."""
    return pubsub.get_lease_provider()


@pytest.fixture
def register(server: servers.Server, basin: str) -> Any:
    """The tests' lease as it is stored, seen from outside of the library."""
    from tests.leasing import Register

    return Register(server, basin)


@pytest.fixture
def switch_often() -> Iterator[None]:
    """Threads take turns after 10 µs, so that races show."""
    from tests.local_parts import switching_often

    with switching_often():
        yield


@pytest.fixture
def streams(server: servers.Server, basin: str) -> raw.Streams:
    """The streams of the test's own basin, past the library."""
    return raw.Streams(server, basin)


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """`tests.waiting.eventually`."""
    return waiting.eventually
