"""The demo in real Chromium: what a user does to a page must not cost a word of the answer."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.demo.browser import LONG_QUESTION, Page, stored_text
from tests.waiting import eventually


@pytest.mark.slow
def test_refresh_in_mid_stream(demo: Any, open_page: Callable[..., Page]) -> None:
    """A page that is reloaded three times in mid-answer shows what it showed before, and each word once."""
    page = open_page(demo.url)
    page.ask(LONG_QUESTION)
    for words in (10, 30, 50):
        page.wait_for_words(words)
        before = page.answers()[0]
        page.driver.refresh()
        page.wait_for_words(words)
        assert page.answers()[0].startswith(before)
    (answer,) = page.wait_for_end()
    assert answer == stored_text(demo.url + page.path, page.path.rpartition("/")[2])
    assert "turn the lens by hand" in answer


@pytest.mark.slow
def test_two_tabs(demo: Any, open_page: Callable[..., Page]) -> None:
    """A second tab shows the same answer from its beginning; what is asked there appears in the first."""
    first = open_page(demo.url)
    first.ask(LONG_QUESTION)
    first.wait_for_words(10)
    second = open_page(demo.url + first.path)
    second.wait_for_words(10)
    assert second.wait_for_end() == first.wait_for_end()
    second.front()
    second.ask("Tell me more")
    more = second.wait_for_end(2)
    assert more[1] != more[0]
    assert first.wait_for_end(2) == more
    assert first.texts(".question") == [LONG_QUESTION, "Tell me more"]


@pytest.mark.slow
def test_offline_and_back(
    demo: Any, open_page: Callable[..., Page], link_to: Callable[[Any], Any], tmp_path: Path
) -> None:
    """A page that is cut off says so, comes back by itself behind the last event it saw, and misses nothing."""
    link = link_to(demo)
    page = open_page(f"http://127.0.0.1:{link.port}")
    page.ask(LONG_QUESTION)
    page.wait_for_words(20)
    link.refuse()
    link.cut()
    page.wait(lambda: page.texts("#link") == ["Reconnecting…"])
    kept = page.answers()[0]
    page.ask("While offline?")  # an answer is being written, so that this does nothing
    link.accept()
    page.wait(lambda: page.texts("#link") == ["Connected"])
    (answer,) = page.wait_for_end()
    assert answer.startswith(kept)
    assert answer == stored_text(demo.url + page.path, page.path.rpartition("/")[2])
    assert "came back once" in page.texts(".state")[0]
    link.refuse()
    link.cut()
    page.click("#send")
    page.wait(lambda: "cannot be reached" in page.texts("#problem")[0])
    assert page.run("return document.getElementById('question').value") == "While offline?", "the question is kept"
    link.accept()
    page.wait(lambda: page.texts("#link") == ["Connected"])
    page.click("#send")
    page.wait_for_end(2)


def test_stop(demo: Any, open_page: Callable[..., Page]) -> None:
    """The stop button, or Escape, ends the answer at once; what there is of it stays, and one can go on asking."""
    page = open_page(demo.url)
    page.ask(LONG_QUESTION)
    page.wait_for_words(15)
    page.click("#stop")
    (answer,) = page.wait_for_end(state="Stopped.")
    assert answer == stored_text(demo.url + page.path, page.path.rpartition("/")[2])
    assert len(answer.split()) < 100
    assert page.run("return document.activeElement.id") == "question"
    page.ask(LONG_QUESTION)
    page.wait(lambda: len(page.answers()) == 2 and page.words() > 10)
    page.run("document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true}))")
    page.wait_for_end(2, state="Stopped.")


@pytest.mark.slow
def test_killed_web_server(start_demo: Callable[..., Any], open_page: Callable[..., Page], tmp_path: Path) -> None:
    """After kill -9 of the web server and a restart the open page resumes by itself.

    It keeps what it has, says that the answer was interrupted, and the question can be asked again.
    """
    demo = start_demo("--data", str(tmp_path / "data"))
    page = open_page(demo.url)
    page.ask("Which documents do you have?")
    (contents,) = page.wait_for_end()
    page.ask(LONG_QUESTION)
    page.wait(lambda: len(page.answers()) == 2 and page.words() > 20)
    demo.kill()
    page.wait(lambda: page.texts("#link") == ["Reconnecting…"])
    kept = page.answers()[1]
    demo.start()
    page.wait(lambda: page.texts("#link") == ["Connected"])
    before, interrupted = page.wait_for_end(2, state="Interrupted")
    assert before == contents
    assert interrupted.startswith(kept)
    page.click(".state button")
    answers = page.wait_for_end(3)
    assert answers[:2] == [contents, interrupted]
    assert "turn the lens by hand" in answers[2]
    page.driver.refresh()
    assert page.wait_for_end(3) == answers
    assert page.texts(".state")[1].startswith("Interrupted"), "whoever goes on has ended the killed one's run"


@pytest.mark.slow
def test_cleaned_up(start_demo: Callable[..., Any], open_page: Callable[..., Page]) -> None:
    """After the clean-up the link answers 404, with a page that says so; an open page keeps what it shows."""
    demo = start_demo("--keep", "1")
    page = open_page(demo.url)
    page.ask("Which documents do you have?")
    answers = page.wait_for_end()
    url = demo.url + page.path

    def status() -> int:
        try:
            with urllib.request.urlopen(url) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    eventually(lambda: status() == 404)
    assert page.answers() == answers
    page.ask("More?")
    page.wait(lambda: "cleaned up" in page.texts("#problem")[0])
    page.driver.get(url)
    assert "no such conversation" in page.texts("main")[0]


def test_nothing_is_html(start_demo: Callable[..., Any], open_page: Callable[..., Page], tmp_path: Path) -> None:
    """Neither a question nor a document nor its title can put an element or a script into the page."""
    attack = "<img src=x onerror=\"document.title='caught'\"><script>document.title='caught'</script>"
    (tmp_path / "evil.md").write_text(f"# {attack}\n\nThe lamp {attack} burns. It burns well. {attack}\n")
    page = open_page(start_demo("--folder", str(tmp_path)).url)
    page.ask(f"What burns? {attack}")
    (answer,) = page.wait_for_end()
    assert attack.split(">")[0] in answer
    assert page.run("return document.querySelectorAll('main img, main script').length") == 0
    assert page.run("return document.title").startswith("What burns? <img")


@pytest.mark.slow
def test_many_tabs(demo: Any, open_page: Callable[..., Page]) -> None:
    """Eight tabs of a conversation do not block each other, though browsers allow six connections to a server."""
    first = open_page(demo.url)
    first.ask("Which documents do you have?")
    first.wait_for_end()
    tabs = [first, *(open_page(demo.url + first.path) for _ in range(7))]
    tabs[-1].wait_for_end()
    tabs[-1].ask("List the documents")
    tabs[-1].wait_for_end(2)
    for tab in tabs:
        tab.front()
        tab.wait_for_end(2)
