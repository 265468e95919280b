"""The TypeScript packages' own end-to-end tests have the same outcome on the embedded server as on the real one.

``S2_TS_TESTS`` names a checkout of the TypeScript repository with its dependencies installed; ``S2_TS_MODULES`` a
``node_modules`` folder with the package ``node``, where the installed Node is too old. Skipped without the first.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from s2pubsub.server import LocalServer
from tests.servers import LiteServer

CHECKOUT = os.environ.get("S2_TS_TESTS", "")
LIMIT = 240.0

pytestmark = [
    pytest.mark.embedded,
    pytest.mark.lite,
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.limit(2 * LIMIT + 20),
    pytest.mark.skipif(not CHECKOUT, reason="S2_TS_TESTS names no checkout of the TypeScript SDK"),
]


def outcomes(url: str, report: Path) -> dict[tuple[str, str], str]:
    """Run the suite on a server; the outcome of each test by its file and name."""
    modules = os.environ.get("S2_TS_MODULES")
    path = os.environ["PATH"] if modules is None else f"{modules}/.bin{os.pathsep}{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": path,
        "S2_ACCESS_TOKEN": "local",
        "S2_ACCOUNT_ENDPOINT": url,
        "S2_BASIN_ENDPOINT": url,
        "S2_LITE": "1",  # leaves out what only the cloud has
    }
    npx = shutil.which("npx", path=path)
    assert npx is not None
    command = [npx, "vitest", "--run", "e2e", "--testTimeout", "20000", "--reporter=json", f"--outputFile={report}"]
    subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, timeout=LIMIT, check=False)
    found: dict[tuple[str, str], str] = {}
    for file in json.loads(report.read_text())["testResults"]:
        for test in file["assertionResults"]:
            found[Path(file["name"]).name, test["fullName"]] = test["status"]
    return found


def test_the_same_tests_pass(tmp_path: Path) -> None:
    """Every test that passes on the real server passes here, and none fails on one of them only."""
    with LiteServer() as lite:
        wanted = outcomes(lite.url, tmp_path / "lite.json")
    with LocalServer() as server:
        given = outcomes(server.url, tmp_path / "embedded.json")
    assert sum(outcome == "passed" for outcome in given.values()) > 150
    assert given == wanted
