"""Worker pools and web processes of the examples, all of them real: Redis, Celery, gunicorn."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.celery_worker import CeleryWorker
from tests.redis_server import has_redis, start_redis
from tests.servers import Server, ServerProcess, missing

MISSING = "the worker pools' tests need redis-server and the Python packages redis, celery, gunicorn and flask"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is marked `web`."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("web")


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    """A Redis of the tests' own, in memory, on a free port."""
    if not has_redis() or find_spec("celery") is None:
        missing(MISSING)
    with start_redis() as port:
        yield f"redis://127.0.0.1:{port}/0"


class Web(ServerProcess):
    """The example's web process on gunicorn."""

    def command(self) -> list[str]:
        app = "s2pubsub.examples.gunicorn_web:create_app()"
        options = ["--worker-class", "gthread", "--threads", "16", "--workers", "1", "--log-level", "warning"]
        return [sys.executable, "-m", "gunicorn", "--bind", f"127.0.0.1:{self.port}", *options, app]


@pytest.fixture
def env(server: Server, basin: str) -> dict[str, str]:
    """The environment of all processes of a test."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return {**server.endpoints_env(), "S2_BASIN": basin, "PYTHONPATH": path}


@pytest.fixture
def celery_env(env: dict[str, str], redis_url: str) -> dict[str, str]:
    """The same with a broker, emptied."""
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    return {**env, "CELERY_BROKER_URL": redis_url}


@pytest.fixture
def start_worker(celery_env: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., CeleryWorker]]:
    """Start Celery; stopped after the test."""
    with ExitStack() as stack:
        app, log = "s2pubsub.examples.celery_worker", tmp_path / "celery.log"
        yield lambda **more: stack.enter_context(CeleryWorker(app, {**celery_env, **more}, log))


@pytest.fixture
def start_web() -> Iterator[Callable[[Mapping[str, str]], Any]]:
    """Start the web process; stopped after the test."""
    with ExitStack() as stack:
        yield lambda env: stack.enter_context(Web(env=env))
