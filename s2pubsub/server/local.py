"""A server in a thread of this process.

`LocalServer` is what tests, demos and the command line use. Its event loop runs in one daemon thread called
``s2pubsub-server``; `close` ends live sessions in good order and joins the thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from pathlib import Path
from types import TracebackType

from s2pubsub.server.application import Application
from s2pubsub.server.listener import Listener
from s2pubsub.server.store import MemoryStore, Store
from s2pubsub.server.upkeep import keep_up

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_START_TIMEOUT = 30.0


class LocalServer:
    """An S2-compatible server on this machine, started on entering the context or by `start`.

    Args:
        data: a directory to keep the data in; None keeps it in memory, until `close`.
        port: the TCP port; 0 takes a free one, which `port` tells after the start.
        token: the access token that requests must carry; None lets any in.
        host: the address to listen on. Other addresses than the loopback need a token.

    May be used from any thread. A closed server can be started again; in memory it is then empty.
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        port: int = 0,
        token: str | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        if token == "":
            raise ValueError("token is empty: leave it out to let any token in")
        if token is None and host not in _LOOPBACK:
            raise ValueError(
                f"listening on {host!r} needs a token: anybody who reaches this machine could use the server"
            )
        self._data = None if data is None else Path(data)
        self._required_token = token
        self._wanted_port = port
        # By name there could be two addresses, and a free port taken on each.
        self._host = "127.0.0.1" if host == "localhost" else host
        self._port = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._running: _Running | None = None

    def start(self) -> None:
        """Listen, or raise what prevents it (`OSError` when the port is taken). Does nothing when started already."""
        with self._lock:
            if self._thread is not None:
                return
            running = _Running(self._data, self._required_token, self._host, self._wanted_port)
            thread = threading.Thread(target=running.run, name="s2pubsub-server", daemon=True)
            thread.start()
            try:
                if not running.started.wait(_START_TIMEOUT):
                    raise RuntimeError("the embedded server did not start in time")
            except BaseException:  # Ctrl-C, too
                running.request_stop(0.0)
                raise
            if running.failure is not None:
                thread.join()
                raise running.failure
            self._thread, self._running, self._port = thread, running, running.port

    def close(self, timeout: float = 5.0) -> None:
        """Stop: live sessions end with a last word, then connections are closed; at most ``timeout`` seconds."""
        with self._lock:
            thread, running = self._thread, self._running
            self._thread = self._running = None
        if thread is None or running is None:
            return
        running.request_stop(max(0.0, timeout))
        thread.join(timeout + 1.0)
        if thread.is_alive():
            warnings.warn(f"the thread {thread.name} did not end within {timeout} s", ResourceWarning, stacklevel=2)

    @property
    def closed(self) -> bool:
        """Whether the server is not running."""
        return self._thread is None

    @property
    def port(self) -> int:
        """The port it listens on; 0 before the first start."""
        return self._port

    @property
    def url(self) -> str:
        """The URL of the server, without a path."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def endpoints(self) -> str:
        """What a client takes as its endpoints: the URL, for the account and for every basin."""
        return self.url

    @property
    def token(self) -> str:
        """An access token that the server accepts."""
        return self._required_token or "local"

    def __enter__(self) -> LocalServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else self.url
        return f"<LocalServer {state} data={str(self._data) if self._data else None!r}>"


class _Running:
    """One run of a server: what its thread executes, and how to stop it."""

    def __init__(self, data: Path | None, token: str | None, host: str, port: int) -> None:
        self.started = threading.Event()
        self.failure: BaseException | None = None
        self.port = port
        self._data = data
        self._token = token
        self._host = host
        self._grace = 0.0
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    def run(self) -> None:
        """Serve until `request_stop`."""
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self.failure = error
            if self.started.is_set():
                raise
        finally:
            self.started.set()

    def request_stop(self, grace: float) -> None:
        """Make `run` end within about ``grace`` seconds. From any thread."""
        self._grace = grace
        self._stopped = True
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            try:
                loop.call_soon_threadsafe(stop.set)
            except RuntimeError:
                pass  # the loop has ended by itself

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        if self._stopped:  # before it had begun
            return
        store = self._open_store()
        try:
            application = Application(store, self._token)
            application.catalog.load()
            listener = Listener(application.serve)
            self.port = await listener.open(self._host, self.port)
            upkeep = self._loop.create_task(keep_up(application.catalog, store))
            self.started.set()
            try:
                await self._stop.wait()
            finally:
                upkeep.cancel()
                await asyncio.gather(upkeep, return_exceptions=True)
                listener.stop_listening()
                await application.stop(self._grace * 0.6)
                await listener.close(self._grace * 0.3)
        finally:
            store.close()

    def _open_store(self) -> Store:
        if self._data is None:
            return MemoryStore()
        from s2pubsub.server.sqlite import SqliteStore

        return SqliteStore(self._data)
