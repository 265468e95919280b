"""A Flask application under gunicorn, for the tests of forked workers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Server, free_port
from tests.waiting import LONG, eventually

ROOT = Path(__file__).parent.parent


def get(url: str) -> str:
    """The text of a page."""
    with urllib.request.urlopen(url, timeout=LONG) as response:
        return str(response.read().decode())


@contextlib.contextmanager
def gunicorn(folder: Path, source: str, server: Server, basin: str, *options: str) -> Iterator[str]:
    """The address of ``app`` in ``source``, whose page ``/`` answers; it must end well on SIGTERM.

    Its clients find the server and the basin in the environment.
    """
    pytest.importorskip("gunicorn")
    pytest.importorskip("flask")
    (folder / "served.py").write_text(textwrap.dedent(source))
    url = f"http://127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", *options, "-b", url.removeprefix("http://"), "served:app"],
        cwd=folder,
        env={**os.environ, **server.endpoints_env(), "S2_BASIN": basin, "PYTHONPATH": f"{ROOT}:{folder}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    def answers() -> bool:
        assert process.poll() is None, process.communicate()[0]
        try:
            return bool(get(url))
        except OSError:
            return False

    try:
        eventually(answers, 20)
        yield url
        process.terminate()
        output = process.communicate(timeout=LONG)[0]
        assert process.returncode == 0, output
        assert "Traceback" not in output
        assert "SIGKILL" not in output
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
