"""Fixtures of the interoperation tests: the packages, a Node process for each server, and the table of what passed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.interop import packages
from tests.interop.node import Node, Peer

_FOUND = pytest.StashKey[dict[Path, Path | packages.UnavailableError]]()
_VERSIONS = pytest.StashKey[dict[str, Any]]()
_PASSED = pytest.StashKey[dict[tuple[str, str], dict[str, int]]]()


def pytest_configure(config: pytest.Config) -> None:
    """Register what the table is made of."""
    config.addinivalue_line("markers", "shows(what, way): a row of the table of what interoperates, and its direction")
    config.stash[_PASSED] = {}
    config.stash[_VERSIONS] = {}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install the packages before the first test, whose time limit is not for that."""
    if session.config.option.collectonly or not any(item.get_closest_marker("interop") for item in session.items):
        return
    found: dict[Path, Path | packages.UnavailableError] = {}
    try:
        for manifest in (packages.HERE, packages.BROWSER):
            found[manifest] = packages.install(manifest)
    except packages.UnavailableError as error:
        found = {packages.HERE: error, packages.BROWSER: error, **found}
    session.config.stash[_FOUND] = found


def _installed(config: pytest.Config, manifest: Path) -> Path:
    """Where the packages are; the test is skipped without them, and fails with CI=true."""
    found = config.stash[_FOUND][manifest]
    if isinstance(found, packages.UnavailableError):
        servers.missing(str(found))
    assert isinstance(found, Path)
    return found


@pytest.fixture(scope="session")
def installed(request: pytest.FixtureRequest) -> Path:
    """The folder of Node and the packages of Mastra and S2."""
    return _installed(request.config, packages.HERE)


@pytest.fixture(scope="session")
def scripts(installed: Path) -> Iterator[Path]:
    """The folder that Node runs in."""
    with packages.scripts(installed) as folder:
        yield folder


@pytest.fixture(scope="session")
def fast_lite_server() -> Iterator[servers.LiteServer]:
    """`s2 lite` that acknowledges at once: agents append their events one by one."""
    if servers.find_lite() is None:
        servers.missing(servers.MISSING_LITE)
    with servers.LiteServer(flush="1ms") as server:
        yield server


@pytest.fixture(
    params=[pytest.param("fast_lite", marks=pytest.mark.lite), pytest.param("embedded", marks=pytest.mark.embedded)]
)
def server(request: pytest.FixtureRequest) -> servers.Server:
    """The real server and the embedded one."""
    started: servers.Server = request.getfixturevalue(f"{request.param}_server")
    return started


@pytest.fixture(scope="session")
def nodes() -> Iterator[dict[str, Node]]:
    """The Node processes of the run, by the URL of their server."""
    started: dict[str, Node] = {}
    yield started
    for node in started.values():
        node.close()


@pytest.fixture
def node(
    request: pytest.FixtureRequest, server: servers.Server, nodes: dict[str, Node], installed: Path, scripts: Path
) -> Node:
    """A Node process that talks to the server."""
    if server.url not in nodes:
        env = {"INTEROP_TRANSPORT": packages.transport(installed), **server.endpoints_env()}
        nodes[server.url] = Node(packages.program(installed), scripts, env)
        _note_versions(request.config, nodes[server.url])
    return nodes[server.url]


def _note_versions(config: pytest.Config, node: Node) -> None:
    config.stash[_VERSIONS].update(node.call("versions", timeout=15.0))


@pytest.fixture(scope="session")
def browser(request: pytest.FixtureRequest, installed: Path) -> Iterator[Node]:
    """A headless browser, driven by a Node process."""
    folder = _installed(request.config, packages.BROWSER)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        servers.missing("Chromium is missing: install Debian's package `chromium`, or name the program in CHROMIUM")
    assert chromium is not None
    with packages.scripts(folder, packages.BROWSER) as run:
        driver = Node(packages.program(installed), run, {"CHROMIUM": chromium})
        try:
            _note_versions(request.config, driver)
            yield driver
        finally:
            driver.close()


@pytest.fixture
def peer(node: Node, basin: str) -> Peer:
    """The TypeScript side on the test's basin."""
    return Peer(node, basin)


@pytest.fixture
def core(node: Node) -> tuple[int, ...]:
    """Version of ``@mastra/core``."""
    text: str = node.call("versions")["@mastra/core"]
    return tuple(int(part) for part in text.split("-")[0].split("."))


# The table.


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Count what passed for each row."""
    report: Any = yield
    if report.when == "call" or (report.when == "setup" and not report.passed):
        for marker in item.iter_markers("shows"):
            row = item.config.stash[_PASSED].setdefault(marker.args, {})
            row[report.outcome] = row.get(report.outcome, 0) + 1
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the table, and write it to the file that ``INTEROP_TABLE`` names."""
    versions, rows = config.stash[_VERSIONS], config.stash[_PASSED]
    if not versions or not rows:
        return
    lines = [", ".join(f"{name} {version}" for name, version in versions.items() if version), ""]
    lines += ["| what | way | tests |", "| --- | --- | --- |"]
    for (what, way), counts in sorted(rows.items()):
        lines.append(f"| {what} | {way} | {', '.join(f'{n} {outcome}' for outcome, n in sorted(counts.items()))} |")
    terminalreporter.section("interoperation with TypeScript")
    for line in lines:
        terminalreporter.line(line)
    if path := os.environ.get("INTEROP_TABLE"):
        Path(path).write_text("\n".join(lines) + "\n")
