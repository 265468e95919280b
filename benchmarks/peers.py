"""The peers' real servers, started on free ports and stopped again; what is missing is said and left out.

Redis from Debian's packages, nats-server from the Go proxy, the reference server of durable-streams from npm.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measuring import Missing, note_version, versions
from tests.servers import free_port

CACHE = Path(os.environ.get("S2PUBSUB_BENCH_CACHE", Path.home() / ".cache" / "s2pubsub-benchmarks"))

_DURABLE_STREAMS = """
import { DurableStreamTestServer } from "@durable-streams/server"
const server = new DurableStreamTestServer({ port: Number(process.argv[2]), host: "127.0.0.1" })
await server.start()
console.log("ready")
"""


@contextlib.contextmanager
def _running(command: list[str], port: int, cwd: str | None = None) -> Iterator[int]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=cwd)
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        if process.poll() is not None:
            raise Missing(f"{process.args} ended with {process.returncode}")
        time.sleep(0.05)
    raise Missing(f"{process.args} does not listen")


@contextlib.contextmanager
def redis() -> Iterator[int]:
    """Redis that writes each command to disk before it answers."""
    program = shutil.which("redis-server")
    if program is None:
        raise Missing("redis-server is missing: apt-get install redis-server")
    port = free_port()
    note_version("redis-server", [program, "--version"])
    with tempfile.TemporaryDirectory() as folder:
        options = ["--port", str(port), "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", folder]
        with _running([program, *options], port):
            yield port


@contextlib.contextmanager
def nats() -> Iterator[int]:
    """nats-server with JetStream on files."""
    program = shutil.which("nats-server") or shutil.which(str(Path.home() / "go" / "bin" / "nats-server"))
    if program is None:
        raise Missing("nats-server is missing: go install github.com/nats-io/nats-server/v2@latest")
    port = free_port()
    note_version("nats-server", [program, "--version"])
    with (
        tempfile.TemporaryDirectory() as folder,
        _running([program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", folder], port),
    ):
        yield port


@contextlib.contextmanager
def durable_streams() -> Iterator[int]:
    """The reference server of durable-streams, in memory."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise Missing("node and npm are missing")
    folder = CACHE / "durable-streams"
    if not (folder / "node_modules" / "@durable-streams" / "server").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([npm, "init", "-y"], cwd=folder, check=True, capture_output=True)
        done = subprocess.run([npm, "install", "@durable-streams/server"], cwd=folder, capture_output=True, check=False)
        if done.returncode:
            raise Missing("npm install @durable-streams/server failed")
    manifest = json.loads((folder / "node_modules" / "@durable-streams" / "server" / "package.json").read_text())
    versions["@durable-streams/server"] = manifest["version"]
    note_version("its node", [node, "--version"])
    (folder / "server.mjs").write_text(_DURABLE_STREAMS, encoding="utf-8")
    port = free_port()
    with _running([node, "server.mjs", str(port)], port, cwd=str(folder)):
        yield port
