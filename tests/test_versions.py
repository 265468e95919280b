"""The package on every other Python of this machine that it promises to run on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_packaging import ROUND_TRIP, run, wheel  # noqa: F401 - a fixture
from tests.waiting import LONG

pytestmark = [pytest.mark.slow, pytest.mark.limit(280)]

LOWEST = (3, 11)
ASK = "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"


def interpreters() -> dict[str, str]:
    """Pythons on the path, of pyenv and named in S2PUBSUB_PYTHONS, one for each version: ``"3.13t"`` → the program."""
    found: dict[str, str] = {}
    given = os.environ.get("S2PUBSUB_PYTHONS", "").split(os.pathsep)
    on_path = [shutil.which(f"python3.{minor}{kind}") for minor in range(11, 20) for kind in ("", "t")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    of_pyenv = sorted(
        map(str, pyenv.glob("3.*/bin/python")), key=lambda name: [int(n) for n in re.findall(r"\d+", name)]
    )
    for program in filter(None, [*given, *on_path, *reversed(of_pyenv)]):
        try:
            answer = subprocess.run(
                [program, "-c", ASK], capture_output=True, text=True, timeout=LONG, check=True
            ).stdout
        except (OSError, subprocess.SubprocessError):
            continue  # such as pyenv's stand-in for a version that is not chosen
        major, minor, free = map(int, answer.split())
        if (major, minor) >= LOWEST and (major, minor) != sys.version_info[:2]:
            found.setdefault(f"{major}.{minor}{'t' if free else ''}", program)
    return found


FOUND = interpreters()


@pytest.mark.parametrize("version", sorted(FOUND) or [None])
def test_another_python(wheel: Path, tmp_path: Path, version: str | None) -> None:  # noqa: F811 - the fixture
    """The wheel installs there, and does its main job over connections that are cut, in development mode and with
    warnings as errors; in a free-threaded one without the global lock.
    """
    if version is None:
        pytest.skip("there is no other Python from 3.11 on here: name some in S2PUBSUB_PYTHONS")
    run(FOUND[version], "-m", "venv", "--without-pip", tmp_path / "env")  # which some Pythons have apart
    python = tmp_path / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check"]
    run(*pip, "install", f"{wheel}[server]")
    strict = ["-X", "dev", "-W", "error"]
    env = {"PYTHON_GIL": "0"} if version.endswith("t") else {}
    printed = run(python, *strict, "-m", "s2pubsub", "walkthrough", cwd=tmp_path, env=env)
    assert "over 3 reconnects" in " ".join(printed.split())
    ours = "from s2pubsub.server import LocalServer\nimport os\nserver = LocalServer().__enter__()\n"
    ours += "os.environ.update(S2_ACCOUNT_ENDPOINT=server.url, S2_BASIN_ENDPOINT=server.url, S2_BASIN='agent-runs', "
    ours += "S2_ACCESS_TOKEN='any')\nfrom s2pubsub import S2PubSub\nS2PubSub().ensure_basin()\n"
    ours += ROUND_TRIP + "\nserver.__exit__(None, None, None)\n"
    if version.endswith("t"):
        ours += "assert not sys._is_gil_enabled()\n"
    assert run(python, "-X", "dev", "-c", ours, cwd=tmp_path, env=env) == "passed\n"
