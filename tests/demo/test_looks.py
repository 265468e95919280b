"""What the demo looks like, and how it is for those who do not look: pictures, contrast, keyboard, screen reader."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.demo.browser import LONG_QUESTION, Page

PICTURES = Path(__file__).parent / "screenshots"
NEW_PICTURES = bool(os.environ.get("S2PUBSUB_SCREENSHOTS"))
"""Take the pictures that the README shows anew; else they are taken and thrown away."""

# The contrast of every visible text with what is painted behind it, by WCAG's formula; the lowest first.
CONTRAST = """
function light(rgb) {
  const [r, g, b] = rgb.map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
const found = [];
for (const one of document.querySelectorAll("body *")) {
  const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!own || !one.checkVisibility() || one.closest(".hidden, .skip")) continue;
  let behind = one, ground = [0, 0, 0, 0];
  while (behind && (ground[3] ?? 1) === 0) {
    ground = numbers(getComputedStyle(behind).backgroundColor);
    behind = behind.parentElement;
  }
  const a = light(numbers(getComputedStyle(one).color).slice(0, 3)), b = light(ground.slice(0, 3));
  found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), one.textContent.trim().slice(0, 30)]);
}
return found.sort((a, b) => a[0] - b[0]);
"""


def check_looks(page: Page) -> None:
    """Nothing sticks out to the right, and all text can be read."""
    assert page.run("return document.documentElement.scrollWidth <= window.innerWidth")
    contrasts = page.run(CONTRAST)
    assert len(contrasts) > 3
    assert contrasts[0][0] >= 4.5, contrasts[:3]


def picture(page: Page, name: str, folder: Path) -> None:
    path = (PICTURES if NEW_PICTURES else folder) / f"{name}.png"
    page.save(path)
    assert 5_000 < path.stat().st_size < 150_000


@pytest.mark.parametrize(("dark", "name"), [(False, "desktop-light"), (True, "desktop-dark")])
def test_desktop(demo: Any, open_page: Callable[..., Page], tmp_path: Path, dark: bool, name: str) -> None:
    """On a desktop the pages are legible in light and dark."""
    page = open_page(demo.url, dark=dark)
    check_looks(page)
    page.ask(LONG_QUESTION)
    page.wait_for_words(40)
    check_looks(page)
    picture(page, name, tmp_path)
    page.driver.get(demo.url + "/chat/none")
    check_looks(page)


@pytest.mark.parametrize("dark", [False, True])
def test_phone(demo: Any, open_page: Callable[..., Page], tmp_path: Path, dark: bool) -> None:
    """On a phone the pages fit, and the field stays in view while the answer grows."""
    page = open_page(demo.url, width=390, height=760, dark=dark, phone=True)
    check_looks(page)
    if not dark:
        picture(page, "phone-home", tmp_path)
    page.ask(LONG_QUESTION)
    page.wait_for_words(75)
    check_looks(page)
    if dark:
        picture(page, "phone-dark", tmp_path)
    script = "const box = document.querySelector('#question').getBoundingClientRect(); return [box.top, box.bottom]"
    top, bottom = page.run(script)
    assert 0 < top < bottom < 760
    gap = "document.querySelector('.dock').getBoundingClientRect().top - arguments[0].getBoundingClientRect().bottom"
    # The state line is the last of the answer: the page follows it.
    assert -40 < page.run(f"return ((arguments) => {gap})([document.querySelector('.state')])") < 400
    page.click("#stop")
    page.wait_for_end(state="Stopped.")


def test_keyboard(demo: Any, open_page: Callable[..., Page]) -> None:
    """Everything can be done by keys: the first Tab skips to the content, and each control shows that it has focus."""
    page = open_page(demo.url + "/chat/none")
    page.driver.get(demo.url)
    seen = []
    for _ in range(9):
        page.driver.switch_to.active_element.send_keys("\ue004")
        seen.append(page.run("return document.activeElement.textContent.trim() || document.activeElement.id"))
    assert "Ask" in seen
    assert LONG_QUESTION in seen
    assert "Skip to the content" in seen
    page.run("document.querySelector('.examples button').focus()")
    style = page.run("return getComputedStyle(document.activeElement).outlineStyle")
    page.driver.switch_to.active_element.send_keys("\ue007")
    page.wait(lambda: page.path.startswith("/chat/"))
    page.wait_for_words(5)
    assert style == "solid"
    page.run("document.getElementById('stop').focus()")
    page.driver.switch_to.active_element.send_keys(" ")
    page.wait_for_end(state="Stopped.")
    assert page.run("return document.activeElement.id") == "question"


def test_screen_reader(demo: Any, open_page: Callable[..., Page]) -> None:
    """A screen reader is told the answer once, when it is complete, not word by word; all controls have names."""
    page = open_page(demo.url)
    page.ask("Which documents do you have?")
    page.wait(lambda: page.words() > 2)
    assert page.run("return document.querySelector('.answer').ariaBusy") == "true"
    assert page.run("return document.querySelector('.answer').closest('[aria-live]')") is None
    (answer,) = page.wait_for_end()
    page.wait(lambda: page.texts("[role=status]") == [f"{answer} Complete."])
    assert page.run("return document.querySelector('[role=status]').ariaLive") == "polite"
    unnamed = """return [...document.querySelectorAll("button, a, textarea")].filter((one) =>
        !one.textContent.trim() && !(one.labels && one.labels.length)).map((one) => one.outerHTML)"""
    assert page.run(unnamed) == []
    assert page.run("return document.querySelectorAll('h1').length") == 1
    assert page.run("return document.documentElement.lang") == "en"


def test_reduced_motion(demo: Any, open_page: Callable[..., Page]) -> None:
    """Nothing is animated for those who have asked for that."""
    page = open_page(demo.url)
    feature = {"name": "prefers-reduced-motion", "value": "reduce"}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    page.ask(LONG_QUESTION)
    page.wait_for_words(10)
    animations = "return document.getAnimations().filter((one) => one.playState === 'running').length"
    assert page.run(animations) == 0
    page.click("#stop")
    page.wait_for_end(state="Stopped.")
