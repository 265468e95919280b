"""The official Python SDK's own tests, run on the embedded server.

They are not part of this repository: ``S2_SDK_TESTS`` names a checkout of the SDK, ``S2_SDK_PYTHON`` an interpreter
with ``s2-sdk``, ``pytest-asyncio`` and ``pytest-timeout``. Without them the tests are skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from s2pubsub.server import LocalServer

CHECKOUT = os.environ.get("S2_SDK_TESTS", "")
PYTHON = os.environ.get("S2_SDK_PYTHON", sys.executable)
EXPECTED = 138
LIMIT = 240.0

# What upstream runs on the real embedded server, and the two correctness tests beside it.
SELECTED = "((account or basin or stream) and not access_tokens and not locations) or correctness"

pytestmark = [
    pytest.mark.embedded,
    pytest.mark.slow,
    pytest.mark.limit(LIMIT + 10),
    pytest.mark.skipif(not CHECKOUT, reason="S2_SDK_TESTS names no checkout of the Python SDK"),
]


def copy_tests(checkout: Path, target: Path) -> None:
    """Copy the SDK's tests, in the form that newer releases of the SDK need as well."""
    shutil.copytree(checkout / "tests", target / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(checkout / "pytest.ini", target)
    for unit in ("test_client.py", "test_s2s_protocol.py"):  # they test private parts of one release
        (target / "tests" / unit).unlink(missing_ok=True)
    for path in (target / "tests").glob("*.py"):
        # Newer releases take storage classes as text.
        text = re.sub(r"^ *StorageClass,\n", "", path.read_text(), flags=re.MULTILINE)
        text = re.sub(r"StorageClass\.(\w+)", lambda match: repr(match[1].lower()), text)
        path.write_text(text)


@pytest.mark.parametrize("kept", [False, True], ids=["memory", "data"])
@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_the_sdks_own_tests_pass(tmp_path: Path, compression: str, kept: bool) -> None:
    """All tests that the SDK has for an embedded server pass, with every compression, in memory and on disk."""
    copy_tests(Path(CHECKOUT), tmp_path)
    with LocalServer(data=tmp_path / "data" if kept else None) as server:
        environment = {
            **os.environ,
            "S2_ACCESS_TOKEN": server.token,
            "S2_ACCOUNT_ENDPOINT": server.url,
            "S2_BASIN_ENDPOINT": server.url,
        }
        command = [PYTHON, "-m", "pytest", "tests", "-q", "-m", SELECTED, "-p", "no:cacheprovider"]
        command += ["--compression", compression, "--timeout", "30", "--timeout-method", "signal"]
        run = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    passed = re.search(r"(\d+) passed", run.stdout)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert passed is not None
    assert int(passed[1]) == EXPECTED
