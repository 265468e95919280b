"""The TypeScript SDK from npm, unmodified, on the embedded server over both of its transports.

``S2_TS_MODULES`` names a ``node_modules`` folder with ``@s2-dev/streamstore`` and, where the installed Node is older
than the SDK wants, the package ``node``; by default it is the one beside this repository's files.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from s2pubsub.server import LocalServer
from s2pubsub.server.command import ensure_basin

HERE = Path(__file__).parent
MODULES = Path(os.environ.get("S2_TS_MODULES", HERE.parent.parent / "node_modules"))
ENTRY = MODULES / "@s2-dev" / "streamstore" / "dist" / "esm" / "index.js"
NODE = shutil.which("node", path=str(MODULES / ".bin")) or shutil.which("node")

pytestmark = [
    pytest.mark.embedded,
    pytest.mark.interop,
    pytest.mark.limit(60),
    pytest.mark.skipif(NODE is None or not ENTRY.exists(), reason="needs node and the TypeScript SDK"),
]


@pytest.mark.parametrize("kept", [False, True], ids=["memory", "data"])
@pytest.mark.parametrize("transport", ["s2s", "fetch"])
def test_the_typescript_sdk_appends_reads_and_tails(tmp_path: Path, transport: str, kept: bool) -> None:
    """Appends, pipelined sessions, live reading, tails and errors come out in TypeScript as they should."""
    with LocalServer(data=tmp_path if kept else None) as server:
        ensure_basin(server, "typescript")
        script = [
            str(HERE / "typescript_check.mjs"),
            str(ENTRY),
            server.url,
            server.token,
            "typescript",
            "s/1",
            transport,
        ]
        run = subprocess.run([str(NODE), *script], capture_output=True, text=True, timeout=45, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {
        "emptyTail": 0,
        "unary": 2,
        "acks": list(range(2, 42, 2)),
        "live": [f"{number}:{number}:{number}" for number in range(42)],
        "tail": 42,
        "read": ["39", "40"],
        "bytes": list(b"40"),
        "mismatch": ["SeqNumMismatchError", 412, 42],
        "streams": ["nope", "s/1"],
    }
