"""The agent with a model, through the real ``openai`` package, on a small server that speaks its protocol."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.demo.browser import read_stream, read_turns, stored_text
from tests.demo.test_command import post
from tests.servers import missing
from tests.waiting import LONG, eventually

SEARCH = {"name": "search", "arguments": json.dumps({"query": "lamp oil"})}
BAD_TOOLS = [{"name": "search", "arguments": "{broken"}, {"name": "format_disk", "arguments": "[]"}]


class Model(ThreadingHTTPServer):
    """Chat completions, streamed: what to say comes from ``script``, one entry for each request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[Any] = []
        self.requests: list[dict[str, Any]] = []
        self.go = threading.Event()
        self.left = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Model

    def do_GET(self) -> None:
        self.reply({"object": "list", "data": [{"id": "small-1", "object": "model", "created": 0, "owned_by": "x"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        said = self.server.script.pop(0)
        if isinstance(said, int):
            self.reply({"error": {"message": "the key sk-secret is wrong", "type": "x"}}, said)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            if isinstance(said, str):
                for word in said.split(" "):
                    self.piece({"content": word + " "})
                    if word == "…":
                        self.wait_to_go_on()
                reason = "stop"
            else:
                for index, call in enumerate(said):  # name and arguments come in pieces
                    self.piece(
                        {"tool_calls": [{"index": index, "id": f"c{index}", "function": {**call, "arguments": ""}}]}
                    )
                    for half in (call["arguments"][:5], call["arguments"][5:]):
                        self.piece({"tool_calls": [{"index": index, "function": {"arguments": half}}]})
                reason = "tool_calls"
            self.piece({}, finish_reason=reason)
            self.send({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}})
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.server.left.set()

    def wait_to_go_on(self) -> None:
        """Until the test says so the model thinks: single words, so that a client that has gone is noticed."""
        while not self.server.go.wait(0.05):
            self.piece({"content": "hm "})

    def piece(self, delta: dict[str, Any], finish_reason: str | None = None) -> None:
        self.send({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})

    def send(self, part: dict[str, Any]) -> None:
        whole = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "small-1", **part}
        self.wfile.write(f"data: {json.dumps(whole)}\n\n".encode())

    def reply(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def model() -> Iterator[Model]:
    with Model() as model:
        thread = threading.Thread(target=model.serve_forever, args=(0.02,))
        thread.start()
        yield model
        model.go.set()
        model.shutdown()
        thread.join(LONG)


@pytest.fixture
def demo(model: Model, start_demo: Callable[..., Any]) -> Any:
    try:
        import openai  # noqa: F401
    except ImportError:
        missing("the package openai is not installed")
    return start_demo(env={"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": model.url, "OPENAI_MODEL": ""})


def ask(demo: Any, question: str) -> tuple[str, str]:
    """Ask; return the conversation's address and the run."""
    url = post(demo.url, question)
    return url, read_turns(url)[0]["runId"]


def chunks(url: str, run_id: str) -> list[dict[str, Any]]:
    messages = read_stream(f"{url}/runs/{run_id}/events")
    return [json.loads(message.data) for message in messages if message.type in ("chunk", "finish")]


def test_answer_with_a_tool(demo: Any, model: Model) -> None:
    """The model calls a tool, gets what it found in the documents, and answers; usage is added up over the steps."""
    model.script = [[SEARCH], "It burned whale oil."]
    url, run_id = ask(demo, "What did it burn?")
    assert stored_text(url, run_id) == "It burned whale oil. "
    found = chunks(url, run_id)
    kinds = [chunk.get("type") for chunk in found]
    assert kinds.index("tool-call") < kinds.index("tool-result") < kinds.index("text-delta")
    assert found[-1]["output"]["usage"] == {"inputTokens": 14, "outputTokens": 6, "totalTokens": 20}
    first, second = model.requests
    assert first["model"] == "small-1"
    assert "The Light" in first["messages"][0]["content"]
    assert second["messages"][-1]["role"] == "tool"
    assert "whale oil" in second["messages"][-1]["content"]


def test_history(demo: Any, model: Model) -> None:
    """The model is told what was said before in the conversation."""
    model.script = ["One.", "Two."]
    url, run_id = ask(demo, "First?")
    assert stored_text(url, run_id) == "One. "
    headers = {"X-Requested-With": "test", "Content-Type": "application/json"}
    go_on = urllib.request.Request(url, json.dumps({"question": "Second?"}).encode(), headers)
    with urllib.request.urlopen(go_on, timeout=LONG) as response:
        assert stored_text(url, json.load(response)["runId"]) == "Two. "
    assert [(said["role"], said["content"]) for said in model.requests[1]["messages"][1:]] == [
        ("user", "First?"),
        ("assistant", "One. "),
        ("user", "Second?"),
    ]


def test_malformed_tool_calls(demo: Any, model: Model) -> None:
    """Arguments that are no JSON and tools that do not exist come back to the model as errors; nothing breaks."""
    model.script = [BAD_TOOLS, "Sorry."]
    url, run_id = ask(demo, "x")
    assert stored_text(url, run_id) == "Sorry. "
    results = [message["content"] for message in model.requests[1]["messages"] if message["role"] == "tool"]
    assert "must be a text" in results[0]
    assert "no tool 'format_disk'" in results[1]


def test_refusal(demo: Any, model: Model) -> None:
    """A refused request ends the run as failed; the browser is not told the text, the terminal is."""
    model.script = [401]
    url, run_id = ask(demo, "x")
    last = chunks(url, run_id)[-1]
    assert last["stepResult"]["reason"] == "error"
    assert "sk-secret" not in json.dumps(chunks(url, run_id))
    eventually(lambda: "sk-secret is wrong" in demo.output())


def test_endless_tools(demo: Any, model: Model) -> None:
    """A model that calls tools for ever is stopped after some steps."""
    model.script = [[SEARCH]] * 20
    url, run_id = ask(demo, "x")
    assert chunks(url, run_id)[-1]["stepResult"]["reason"] == "error"
    assert len(model.requests) == 8


def test_stop(demo: Any, model: Model) -> None:
    """Stop ends the answer in the middle, and the request to the model with it."""
    model.script = ["Well … then"]
    url, run_id = ask(demo, "x")
    eventually(lambda: model.requests)
    stop = urllib.request.Request(f"{url}/runs/{run_id}/stop", b"", {"X-Requested-With": "test"})
    with urllib.request.urlopen(stop, timeout=LONG) as response:
        assert response.status == 202
    assert chunks(url, run_id)[-1]["stepResult"]["reason"] == "abort"
    assert stored_text(url, run_id).startswith("Well … ")
    assert model.left.wait(LONG), "the connection to the model is still open"
