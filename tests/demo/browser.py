"""What the tests do in a browser's tab, in the words of somebody who uses the demo."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.waiting import eventually
from tests.web.event_source import Message, Parser

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
PATIENCE = 20.0
"""Seconds that an answer may take."""

LONG_QUESTION = "What must a keeper do when the clockwork fails?"


class Page:
    """A tab."""

    def __init__(self, driver: Any, handle: str) -> None:
        self.driver = driver
        self.handle = handle

    def look(self, width: int = 1100, height: int = 760, *, dark: bool = False, phone: bool = False) -> None:
        """Choose the window's size and the colours."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def front(self) -> None:
        """Bring the tab to the front."""
        if self.driver.current_window_handle != self.handle:
            self.driver.switch_to.window(self.handle)

    def run(self, script: str, *args: Any) -> Any:
        """The value of some JavaScript."""
        self.front()
        return self.driver.execute_script(script, *args)

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements that match."""
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent.trim())"
        found: list[str] = self.run(script, selector)
        return found

    def answers(self) -> list[str]:
        """The texts of the answers, without tools and states."""
        script = """return [...document.querySelectorAll(".answer")].map(
            (one) => [...one.querySelectorAll(".text")].map((part) => part.textContent).join(""))"""
        found: list[str] = self.run(script)
        return found

    def words(self) -> int:
        """How many words the last answer has."""
        answers = self.answers()
        return len(answers[-1].split()) if answers else 0

    def ask(self, question: str) -> None:
        """Type a question and press Enter."""
        self.front()
        field = self.driver.find_element("id", "question")
        field.send_keys(question)
        field.send_keys("\ue007")

    def click(self, selector: str) -> None:
        """Press a button."""
        self.front()
        self.driver.find_element("css selector", selector).click()

    def wait(self, condition: Callable[[], Any], message: str = "") -> Any:
        """Wait until something is true."""
        return eventually(condition, PATIENCE, message or f"not in time; the page shows {self.texts('main')}")

    def wait_for_words(self, count: int) -> None:
        """Wait until the last answer has so many words and goes on."""
        self.wait(lambda: self.words() >= count)
        assert self.run("return document.querySelector('.answer:last-of-type').ariaBusy") == "true"

    def wait_for_end(self, answers: int = 1, state: str = "Complete.") -> list[str]:
        """Wait until so many answers are there and the last one has ended like that; return their texts."""
        self.wait(
            lambda: (
                len(states := self.texts(".state")) == answers
                and states[-1].startswith(state)
                and not self.run("return document.querySelector('[aria-busy=true]')")
            )
        )
        return self.answers()

    @property
    def path(self) -> str:
        """The path of the address."""
        self.front()
        return str("/" + self.driver.current_url.split("/", 3)[3])

    def save(self, path: Path) -> None:
        """Take a picture."""
        self.front()
        self.driver.save_screenshot(str(path))


def read_stream(url: str, last_event_id: int | None = None, timeout: float = PATIENCE) -> list[Message]:
    """Everything that an event stream sends, up to its end."""
    request = urllib.request.Request(url)
    if last_event_id is not None:
        request.add_header("Last-Event-ID", str(last_event_id))
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return Parser().feed(response.read())


def read_turns(url: str) -> list[dict[str, Any]]:
    """The turns that a conversation has at this moment."""
    found = []
    parser = Parser()
    with urllib.request.urlopen(f"{url}/turns", timeout=PATIENCE) as response:
        while not found:
            found += [message.json for message in parser.feed(response.readline())]
    return found


def stored_text(url: str, run_id: str) -> str:
    """The text of an answer as it is stored."""
    messages = read_stream(f"{url}/runs/{run_id}/events")
    assert messages[-1].type == "end", messages[-1]
    chunks = [json.loads(message.data) for message in messages if message.type == "chunk"]
    return "".join(chunk["payload"]["text"] for chunk in chunks if chunk["type"] == "text-delta")
