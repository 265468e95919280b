"""The guide to worker pools: each of its examples is a file that runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import s2pubsub
from s2pubsub.runs import Runs
from tests.celery_worker import CeleryWorker
from tests.redis_server import has_redis, start_redis
from tests.servers import ON_EMBEDDED, missing
from tests.waiting import LONG

pytestmark = pytest.mark.limit(90)

GUIDE = Path(s2pubsub.__file__).parent / "docs" / "workers.md"
EXAMPLES = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", GUIDE.read_text(), re.DOTALL))


@pytest.fixture
def example(tmp_path: Path) -> Callable[[str], Path]:
    """Write an example to its file."""

    def write(name: str) -> Path:
        path = tmp_path / name
        path.write_text(EXAMPLES[name])
        return path

    return write


def test_all_are_run() -> None:
    """The tests here, and one of gunicorn's, know every example."""
    assert sorted(EXAMPLES) == ["gunicorn.conf.py", "processes.py", "tasks.py", "threads.py"]


@ON_EMBEDDED
@pytest.mark.parametrize(
    ("name", "printed"),
    [("threads.py", "['one two three ', 'four five six ']"), ("processes.py", str(list(range(20))))],
)
def test_programs(example: Any, env: dict[str, str], name: str, printed: str) -> None:
    """The pools of threads and of processes do their work and end."""
    command = [sys.executable, "-W", "error", example(name)]
    ended = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{printed}\n", "")


@ON_EMBEDDED
@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_celery(example: Any, env: dict[str, str], pubsub: Any, tmp_path: Path, pool: str) -> None:
    """The tasks write runs that another process has started."""
    if not has_redis() or find_spec("celery") is None:
        missing("Celery's tests need redis-server and the Python packages redis and celery")
    example("tasks.py")
    with start_redis() as port:
        env = {**os.environ, **env, "CELERY_BROKER_URL": f"redis://127.0.0.1:{port}/0"}
        env["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
        ask = "import tasks; print(tasks.ask('What burns in the lamp?')); tasks.pubsub.close()"
        started = [
            subprocess.run([sys.executable, "-c", ask], env=env, capture_output=True, text=True, timeout=60, check=True)
            for _ in range(3)
        ]
        with CeleryWorker("tasks", env, tmp_path / "celery.log", pool) as worker:
            for each in started:
                with Runs(pubsub).observe(each.stdout.strip(), wait_for_start=LONG) as observation:
                    assert observation.result().text == "What burns in the lamp? "
            assert worker.end(LONG) == 0
            assert "Traceback" not in worker.output()
