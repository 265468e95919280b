"""The server as a command: `serve` listens until it is told to stop, and says how to reach it."""

from __future__ import annotations

import json
import signal
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from types import FrameType
from typing import TextIO

from s2pubsub.server.local import LocalServer

_GRACE = 5.0
DEFAULT_PORT = 4242


def environment(server: LocalServer) -> Mapping[str, str]:
    """The environment variables with which clients find ``server``."""
    return {
        "S2_ACCESS_TOKEN": server.token,
        "S2_ACCOUNT_ENDPOINT": server.url,
        "S2_BASIN_ENDPOINT": server.url,
    }


def serve(
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    data: str | None = None,
    basin: str | None = None,
    token: str | None = None,
    *,
    out: TextIO | None = None,
) -> None:
    """Run a server until SIGINT or SIGTERM. Call it from the main thread.

    Args:
        host: the address to listen on; other addresses than the loopback need a token.
        port: the port; 0 takes a free one.
        data: a directory to keep the data in; None keeps it in memory.
        basin: a basin to create where it is missing, with streams that come into being when used.
        token: the access token that clients must send; None lets any in.
        out: where the environment lines are written, standard output by default.

    `OSError` when the port is taken or the directory is in use, `ValueError` for a wrong argument.
    """
    out = sys.stdout if out is None else out
    stop = threading.Event()

    def request_stop(number: int, frame: FrameType | None) -> None:
        stop.set()

    server = LocalServer(data=data, port=port, token=token, host=host)
    handlers = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.start()
        if basin is not None:
            ensure_basin(server, basin)
        kept = f"data in {data}" if data is not None else "in memory: its data ends with it"
        out.write(f"# S2-compatible server on {server.url}, {kept}. Stop it with Ctrl-C.\n")
        for name, value in environment(server).items():
            out.write(f"export {name}={value}\n")
        if basin is not None:
            out.write(f"export S2_BASIN={basin}\n")
        out.flush()
        stop.wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        server.close(_GRACE)


def ensure_basin(server: LocalServer, basin: str) -> None:
    """Create ``basin`` where it is missing; an existing one is left as it is. `ValueError` for a wrong name."""
    document = {"basin": basin, "config": {"create_stream_on_append": True, "create_stream_on_read": True}}
    request = urllib.request.Request(
        f"{server.url}/v1/basins",
        data=json.dumps(document).encode(),
        headers={"content-type": "application/json", "authorization": f"Bearer {server.token}"},
    )
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy reaches a server of this machine
    try:
        with directly.open(request, timeout=_GRACE):
            pass
    except urllib.error.HTTPError as error:
        with error:
            if error.code != 409:
                raise ValueError(f"the basin {basin!r} cannot be created: {error.read().decode()}") from None
