"""Fixtures of the demo's tests: the demo in a process of its own, and a real browser."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.demo.browser import FLAGS, Page
from tests.faults import FaultProxy
from tests.servers import ServerProcess

MISSING = "the browser's tests need chromium, chromedriver and the Python package selenium"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is marked `web`; what needs the browser gets time for it."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("web")
            if "open_page" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.limit(60))


class Demo(ServerProcess):
    """``s2pubsub demo``, with an S2 server of its own."""

    def __init__(self, *options: str, env: Mapping[str, str] | None = None) -> None:
        super().__init__(env=env)
        self.options = options

    def command(self) -> list[str]:
        return [sys.executable, "-m", "s2pubsub", "demo", "--port", str(self.port), *self.options]


@pytest.fixture
def start_demo() -> Iterator[Callable[..., Demo]]:
    """Start a demo with these options; stopped after the test."""
    with ExitStack() as stack:
        yield lambda *options, **more: stack.enter_context(Demo(*options, **more))


class Gunicorn(ServerProcess):
    """The demo's application on gunicorn with two processes."""

    def command(self) -> list[str]:
        options = ["--worker-class", "gthread", "--threads", "16", "--workers", "2", "--log-level", "warning"]
        bind = ["--bind", f"127.0.0.1:{self.port}"]
        return [sys.executable, "-m", "gunicorn", *bind, *options, "s2pubsub.demo.app:create_app()"]

    def kill_all(self) -> None:
        """Kill the processes, the master first, so that it does not replace the others."""
        workers = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        self.kill()
        for worker in workers:
            os.kill(int(worker), signal.SIGKILL)


@pytest.fixture
def start_gunicorn() -> Iterator[Callable[[Mapping[str, str]], Gunicorn]]:
    """Start the demo on gunicorn; stopped after the test."""
    root = str(Path(__file__).parents[2])
    with ExitStack() as stack:
        yield lambda env: stack.enter_context(Gunicorn(env={"PYTHONPATH": root, **env}))


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """A demo that a module's tests share."""
    with Demo() as demo:
        yield demo


@pytest.fixture
def link_to() -> Iterator[Callable[[Demo], FaultProxy]]:
    """A connection to a demo that can be cut."""
    with ExitStack() as stack:
        yield lambda demo: stack.enter_context(FaultProxy(demo.port, http2=False))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless Chromium, shared by the whole run."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        servers.missing(MISSING)
    if chromium is None or driver is None:
        servers.missing(MISSING)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    started.set_page_load_timeout(20)
    started.set_script_timeout(20)
    try:
        yield started
    finally:
        started.quit()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Page]]:
    """Open addresses, each in a tab of its own; closed after the test, which fails if a script has raised."""
    first = browser.current_window_handle
    tabs: list[str] = []

    def open(url: str, **look: Any) -> Page:
        browser.switch_to.new_window("tab")
        tabs.append(browser.current_window_handle)
        page = Page(browser, tabs[-1])
        page.look(**look)
        browser.get(url)
        return page

    yield open
    for tab in tabs:
        browser.switch_to.window(tab)
        browser.close()
    browser.switch_to.window(first)
    raised = [entry["message"] for entry in browser.get_log("browser") if entry["source"] in ("javascript", "security")]
    assert not raised
