"""A real Redis for tests, in memory, on a free port."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from tests.servers import free_port
from tests.waiting import LONG, eventually


def has_redis() -> bool:
    """Whether the program and its Python package are installed."""
    return shutil.which("redis-server") is not None and find_spec("redis") is not None


@contextmanager
def start_redis() -> Iterator[int]:
    """Start it; gives its port when it answers."""
    import redis

    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with redis.Redis(host="127.0.0.1", port=port) as client:

            def ping() -> bool:
                try:
                    return bool(client.ping())
                except redis.ConnectionError:
                    return False

            eventually(ping)
        yield port
    finally:
        process.terminate()
        process.wait(LONG)
