"""``s2pubsub demo``: an S2 server where none is configured, the web server, and the browser."""

from __future__ import annotations

import logging
import os
import signal
import sys
import webbrowser
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any

from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from s2pubsub.client import S2PubSub
from s2pubsub.demo.app import DEFAULT_BASIN, DEFAULT_KEEP, create_app

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_SETTINGS = ("S2_ACCESS_TOKEN", "S2_ACCOUNT_ENDPOINT", "S2_BASIN_ENDPOINT")


def run(
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    folder: str | None = None,
    data: str | None = None,
    keep: int = DEFAULT_KEEP,
    open_browser: bool = False,
) -> int:
    """Serve the demo until Ctrl-C or SIGTERM; return the exit code.

    Raises:
        ValueError: an argument or the environment does not fit, or the port is taken.
        S2PubSubError: the S2 server cannot be reached.
    """
    if keep < 1:
        raise ValueError("--keep must be at least one second")
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    with ExitStack() as stack:
        config: dict[str, Any] = {"S2_BASIN": os.environ.get("S2_BASIN") or DEFAULT_BASIN}
        config |= _embedded_server(stack, data)
        app = create_app(config, folder=folder, keep=keep)
        server = _listen(host, port, app)
        stack.callback(server.server_close)
        with S2PubSub(
            basin=config["S2_BASIN"], access_token=config.get("S2_ACCESS_TOKEN"), endpoints=config.get("S2_ENDPOINTS")
        ) as pubsub:
            pubsub.ensure_basin()
        stack.callback(app.extensions["s2pubsub"].close)
        stack.callback(app.extensions["answers"].stop)
        url = f"http://{f'[{host}]' if ':' in host else host}:{server.port}/"
        print(f"The demo is at {url} - end it with Ctrl-C.", flush=True)
        if host not in _LOOPBACK:
            print("Everybody who can reach this address can ask, and read what they have the link of.", flush=True)
        if open_browser and not webbrowser.open(url):
            print("No browser could be opened.", flush=True)
        _serve(server)
    return 0


def _embedded_server(stack: ExitStack, data: str | None) -> dict[str, Any]:
    """Settings for a server of our own, if neither a token nor an endpoint is set."""
    if any(os.environ.get(name) for name in _SETTINGS):
        if data is not None:
            raise ValueError(f"--data is for the embedded server; one of {', '.join(_SETTINGS)} is set")
        where = os.environ.get("S2_BASIN_ENDPOINT") or "the S2 cloud"
        print(f"Using the S2 server that the environment names: {where}.", flush=True)
        return {}
    from s2pubsub.server import LocalServer

    server = stack.enter_context(LocalServer(data))
    kept = "in memory, so that conversations end with it" if data is None else f"its data in {data}"
    print(f"No S2 token or endpoint is set: using an embedded server at {server.url}, {kept}.", flush=True)
    return {"S2_ENDPOINTS": server.url, "S2_ACCESS_TOKEN": server.token}


def _listen(host: str, port: int, app: Any) -> BaseWSGIServer:
    try:
        return make_server(host, port, app, threaded=True, request_handler=_QuietHandler)
    except (OSError, SystemExit) as error:  # Werkzeug exits where the port is taken
        raise ValueError(f"port {port} of {host} cannot be used; choose another one by --port") from error


def _serve(server: BaseWSGIServer) -> None:
    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous: Callable[..., Any] | int | None = signal.signal(signal.SIGTERM, end)
    try:
        server.serve_forever()  # Werkzeug lets a KeyboardInterrupt end it
    finally:
        signal.signal(signal.SIGTERM, previous)
    print("The demo ends.", file=sys.stderr)


class _QuietHandler(WSGIRequestHandler):
    """Logs errors, not every request."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass
