"""A browser on the AI SDK's `useChat` shows a run through the endpoint that Python serves."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from s2pubsub import S2PubSub
from s2pubsub.runs import Run, Runs
from tests.interop.node import Node, Peer
from tests.waiting import LONG, eventually

flask = pytest.importorskip("flask")

from werkzeug.serving import make_server  # noqa: E402 - Flask brings it

from s2pubsub.contrib.flask import S2PubSubFlask  # noqa: E402

pytestmark = [pytest.mark.interop, pytest.mark.web, pytest.mark.limit(60)]

WAY = "Python serves, useChat shows"
PAGE = '<!doctype html><title>chat</title><div id="root"></div><script src="/chat.js"></script>'


@pytest.fixture
def site(browser: Node, pubsub: S2PubSub, server: Any) -> Iterator[str]:
    """The URL of an application with the page and the routes of runs."""
    app = flask.Flask("site")
    account, basin_url = server.url, server.basin_url
    app.config.update(
        S2_BASIN=pubsub.basin, S2_ACCESS_TOKEN=server.token, S2_ACCOUNT_ENDPOINT=account, S2_BASIN_ENDPOINT=basin_url
    )
    s2 = S2PubSubFlask(app)
    app.register_blueprint(s2.blueprint(authorize=lambda run_id: True, heartbeat=0.5), url_prefix="/runs")
    script = browser.call("script")
    app.add_url_rule("/chat.js", view_func=lambda: flask.Response(script, mimetype="text/javascript"))
    app.add_url_rule("/chat/<run_id>", endpoint="page", view_func=lambda run_id: PAGE)
    served = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=served.serve_forever, name="interop-site")
    thread.start()
    yield f"http://127.0.0.1:{served.port}"
    s2.close(app)
    served.shutdown()
    thread.join(LONG)
    served.server_close()


class Page:
    """A page of the browser."""

    _numbers = itertools.count()

    def __init__(self, browser: Node, url: str) -> None:
        self._browser = browser
        self._handle = f"page {next(self._numbers)}"
        self.call("open", url=url)

    def call(self, do: str, **arguments: Any) -> Any:
        return self._browser.call(do, handle=self._handle, **arguments)

    def until(self, expression: str) -> Any:
        """The chat as soon as the JavaScript expression about ``chat`` is true."""
        return self.call("until", expression=expression)

    def answers(self, path: str) -> list[int]:
        """Statuses of the answers to requests of ``path``."""
        return [status for asked, status in self.call("answers") if asked == path]


@pytest.fixture
def open_page(browser: Node, site: str) -> Iterator[Any]:
    pages: list[Page] = []

    def open_it(run_id: str) -> Page:
        pages.append(Page(browser, f"{site}/chat/{run_id}"))
        return pages[-1]

    yield open_it
    for page in pages:
        page.call("close")


def parts_of(chat: Any) -> list[dict[str, Any]]:
    """The parts of the only message."""
    [message] = chat["messages"]
    assert message["role"] == "assistant"
    return list(message["parts"])


def text_of(chat: Any) -> str:
    return "".join(part["text"] for part in parts_of(chat) if part["type"] == "text")


def has_text(text: str) -> str:
    return f'JSON.stringify(chat.messages).includes("{text}")'


def begin(run: Run) -> None:
    """A step with a tool, reasoning, and the beginning of the answer."""
    run.step_start()
    run.tool_call("c1", "add", {"a": 1, "b": 2})
    run.tool_result("c1", "add", {"a": 1, "b": 2}, {"sum": 3})
    run.step_finish("tool-calls")
    run.step_start()
    run.chunk("reasoning-start", {"id": "r1"})
    run.chunk("reasoning-delta", {"id": "r1", "text": "hm"})
    run.chunk("reasoning-end", {"id": "r1"})
    run.data("progress", {"pct": 40}, id="p")
    run.text("Es ist ")


@pytest.mark.shows("resumed in the middle, after a reload and after the end", WAY)
def test_a_run_of_python_resumes(pubsub: S2PubSub, open_page: Any) -> None:
    """The page shows the run so far, goes on live, and shows all of it again after a reload."""
    run_id = str(uuid.uuid4())
    with Runs(pubsub, cleanup_timeout=0).start(run_id, message_id="m1") as run:
        begin(run)
        page = open_page(run_id)
        chat = page.until(has_text("Es ist "))
        assert chat["status"] == "streaming"
        page.call("reload")
        assert text_of(page.until(has_text("Es ist "))) == "Es ist "
        run.text("3 \U0001f44b")
        page.until(has_text("3 \U0001f44b"))
        run.data("progress", {"pct": 100}, id="p")
        run.chunk("source", {"id": "s1", "sourceType": "url", "title": "E", "url": "https://example.com/"})
        run.step_finish("stop")
    chat = page.until('chat.status === "ready"')
    assert chat["error"] is None
    assert chat["messages"][0]["id"] == "m1"
    parts = parts_of(chat)
    assert [part["type"] for part in parts] == [
        *["step-start", "tool-add", "step-start", "reasoning", "data-progress", "text", "source-url"]
    ]
    tool = parts[1]
    assert (tool["state"], tool["input"], tool["output"]) == ("output-available", {"a": 1, "b": 2}, {"sum": 3})
    assert parts[4]["data"] == {"pct": 100}
    assert text_of(chat) == "Es ist 3 \U0001f44b"
    page.call("reload")
    chat = page.until('chat.status === "ready"')
    eventually(lambda: 204 in page.answers(f"/runs/{run_id}/stream"))
    assert (chat["messages"], chat["error"]) == ([], None)


@pytest.mark.shows("an error and an abort", WAY)
def test_a_failure_and_an_abort_of_python(pubsub: S2PubSub, open_page: Any) -> None:
    """A failed run ends as an error of the page; a stop from the page ends the run with its partial text."""
    runs = Runs(pubsub, cleanup_timeout=0)
    failing, stopped = str(uuid.uuid4()), str(uuid.uuid4())
    with pytest.raises(ValueError, match="secret"), runs.start(failing) as run:
        run.text("so far")
        page = open_page(failing)
        page.until(has_text("so far"))
        raise ValueError("secret")
    chat = page.until('chat.status === "error"')
    assert text_of(chat) == "so far"
    assert "secret" not in chat["error"]
    asked = threading.Event()
    with runs.start(stopped) as run:
        run.on_abort(asked.set)
        run.text("Before.")
        page = open_page(stopped)
        page.until(has_text("Before."))
        stop = f'fetch("/runs/{stopped}/stop", {{method: "POST"}}).then((answer) => answer.status)'
        assert page.call("run", expression=stop) == 202
        assert asked.wait(LONG)
    chat = page.until('chat.status === "ready"')
    assert text_of(chat) == "Before."
    assert runs.status(stopped) == "aborted"


@pytest.mark.shows("nothing to resume", WAY)
def test_nothing_to_resume(open_page: Any) -> None:
    """C20: An unknown run is answered by 204; the page is ready and empty."""
    run_id = str(uuid.uuid4())
    page = open_page(run_id)
    eventually(lambda: page.answers(f"/runs/{run_id}/stream") == [204])
    assert page.until('chat.status === "ready"') == {"status": "ready", "messages": [], "error": None}


@pytest.mark.shows("a run of TypeScript's agent", WAY)
def test_a_run_of_typescript(peer: Peer, open_page: Any) -> None:
    """A durable agent in Node writes, Python serves, the page shows: text, tools, a request for approval, the rest."""
    text, tools, approval = (str(uuid.uuid4()) for _ in range(3))
    stream = peer.handle("stream", runId=text, say=f"text {text}")
    peer.call("saw", handle=stream, type="text-delta")
    page = open_page(text)
    page.until(has_text("Grüße"))
    peer.call("open", gate=text)
    chat = page.until('chat.status === "ready"')
    assert (text_of(chat), chat["error"]) == ("Grüße, \U0001f44b", None)
    assert {"reasoning", "source-url", "file"} <= {part["type"] for part in parts_of(chat)}

    stream = peer.handle("stream", runId=approval, say="approval")
    peer.call("saw", handle=stream, type="tool-call-approval")
    page = open_page(approval)
    chat = page.until(has_text("approval-requested"))
    [tool] = [part for part in parts_of(chat) if part["type"] == "tool-pay"]
    assert tool["approval"]["id"] == f"{approval}::call-pay"
    peer.handle("resume", runId=approval, data={"approved": True})
    chat = page.until('chat.status === "ready"')
    [tool] = [part for part in parts_of(chat) if part["type"] == "tool-pay"]
    assert (tool["state"], tool["output"]) == ("output-available", {"paid": True})
    assert text_of(chat) == "Paid."

    stream = peer.handle("stream", runId=tools, say=f"tools {tools}")
    peer.call("saw", handle=stream, type="text-delta")
    page = open_page(tools)
    chat = page.until(has_text("It is 3."))
    states = {part["type"]: part["state"] for part in parts_of(chat) if part["type"].startswith("tool-")}
    assert states == {"tool-add": "output-available", "tool-fail": "output-error"}
    peer.call("open", gate=tools)
    page.until('chat.status === "ready"')
