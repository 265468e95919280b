"""The demo's application over HTTP, without a browser."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from s2pubsub.demo.agents import Exchange, StoppedError
from s2pubsub.demo.app import create_app
from s2pubsub.demo.conversations import LEASE, MAX_ANSWERS
from s2pubsub.runs import Run
from tests.servers import ON_EMBEDDED, Server
from tests.waiting import LONG, eventually

pytestmark = ON_EMBEDDED
OWN = {"X-Requested-With": "test", "Accept": "application/json"}


class Waiter:
    """An agent that says a word and waits to be let go; it remembers what it was told of the conversation."""

    name = "Waiter"

    def __init__(self) -> None:
        self.go = threading.Event()
        self.heard: list[list[Exchange]] = []

    def answer(self, run: Run, question: str, history: Sequence[Exchange], stop: threading.Event) -> None:
        self.heard.append(list(history))
        if "fail" in question:
            raise RuntimeError("secret detail")
        run.text(f"So {question}")
        eventually(lambda: self.go.is_set() or ("deaf" not in question and stop.is_set()))
        if stop.is_set() and not self.go.is_set():
            raise StoppedError


@pytest.fixture
def agent() -> Waiter:
    return Waiter()


@pytest.fixture
def make_client(server: Server, basin: str, agent: Waiter) -> Any:
    """Make an application and its test client; several share the basin, as several processes would."""
    apps = []

    def make() -> Any:
        settings = {"S2_BASIN": basin, "S2_ENDPOINTS": server.url, "S2_ACCESS_TOKEN": server.token}
        app = create_app({**settings, "TESTING": True}, keep=60, agent=agent)
        app.config["PROPAGATE_EXCEPTIONS"] = False
        apps.append(app)
        return app.test_client()

    yield make
    agent.go.set()
    for app in apps:
        app.extensions["answers"].stop()
        app.extensions["s2pubsub"].close()


@pytest.fixture
def client(make_client: Callable[[], Any]) -> Any:
    return make_client()


def begin(client: Any, question: str = "Who?") -> str:
    response = client.post("/chat", data={"question": question}, headers=OWN)
    assert response.status_code == 303
    path: str = response.headers["Location"]
    return path


def go_on(client: Any, path: str, question: str = "And?") -> Any:
    return client.post(path, json={"question": question}, headers=OWN)


def events(client: Any, path: str, run_id: str) -> str:
    """Everything that the stream of an answer sends."""
    response = client.get(f"{path}/runs/{run_id}/events")
    assert response.status_code == 200
    return str(response.get_data(as_text=True))


def test_a_conversation(client: Any, agent: Waiter) -> None:
    """The first run's id is the conversation's; later turns are runs of their own, and the agent knows the earlier."""
    agent.go.set()
    path = begin(client)
    first = path.removeprefix("/chat/")
    assert "So Who?" in events(client, path, first)
    second = go_on(client, path).get_json()["runId"]
    assert second != first
    assert "So And?" in events(client, path, second)
    assert agent.heard == [[], [Exchange("Who?", "So Who?")]]
    assert b"Who?" in client.get(path).data


def test_any_process_goes_on(make_client: Callable[[], Any], agent: Waiter) -> None:
    """A second process shows a conversation and goes on with it: nothing of it is in the first one's memory."""
    agent.go.set()
    one, other = make_client(), make_client()
    path = begin(one)
    events(one, path, path.removeprefix("/chat/"))
    run_id = go_on(other, path).get_json()["runId"]
    assert "So And?" in events(one, path, run_id)
    assert agent.heard[1] == [Exchange("Who?", "So Who?")]


def test_one_answer_at_a_time(make_client: Callable[[], Any], agent: Waiter) -> None:
    """While an answer is written nobody can ask in the same conversation, from whatever process: 409."""
    one, other = make_client(), make_client()
    path = begin(one)
    for client in (one, other):
        assert go_on(client, path).status_code == 409
    agent.go.set()
    eventually(lambda: go_on(other, path).status_code == 201)


def test_so_many_answers_and_no_more(client: Any, agent: Waiter) -> None:
    """A process writes a bounded number of answers at a time; who asks for one more is told to wait: 409."""
    paths = [begin(client) for _ in range(MAX_ANSWERS)]
    assert client.post("/chat", data={"question": "Me?"}, headers=OWN).status_code == 409
    agent.go.set()
    for path in paths:
        assert "So Who?" in events(client, path, path.removeprefix("/chat/"))
    eventually(lambda: client.post("/chat", data={"question": "Me?"}, headers=OWN).status_code == 303)


def test_answers_that_were_cleaned_up(client: Any, agent: Waiter) -> None:
    """An earlier answer that is gone is empty to the agent; with the last answer the conversation goes."""
    agent.go.set()
    path = begin(client)
    first = path.removeprefix("/chat/")
    events(client, path, first)
    second = go_on(client, path).get_json()["runId"]
    events(client, path, second)
    runs = client.application.extensions["s2pubsub"].runs
    runs.delete(first)
    third = go_on(client, path, "So?").get_json()["runId"]
    events(client, path, third)
    assert agent.heard[-1] == [Exchange("Who?", ""), Exchange("And?", "So And?")]
    for run_id in (second, third):
        runs.delete(run_id)
    eventually(lambda: runs.active_run(f"demo\0{first}") is None)
    assert client.get(path).status_code == 404
    eventually(lambda: runs.pubsub.topics() == [])


def test_an_answer_whose_process_is_gone(make_client: Callable[[], Any], agent: Waiter) -> None:
    """Who asks next, in any process, ends it as failed."""
    one, other = make_client(), make_client()
    path = begin(one, "deaf?")
    run_id = path.removeprefix("/chat/")
    one.application.extensions["s2pubsub"].pubsub.leases.release_lease(f"demo\0{run_id}", run_id)
    assert go_on(other, path).status_code == 201
    assert '"reason":"error"' in events(other, path, run_id)


def test_a_failure_is_masked(client: Any) -> None:
    """What an agent raises ends its run; the browser is not told the text."""
    path = begin(client, "fail")
    stream = events(client, path, path.removeprefix("/chat/"))
    assert '"reason":"error"' in stream
    assert "secret" not in stream


def test_stop(client: Any) -> None:
    """A stop ends the run with what was said; it may be asked for again."""
    path = begin(client)
    run_id = path.removeprefix("/chat/")
    assert client.post(f"{path}/runs/{run_id}/stop", headers=OWN).status_code == 202
    assert '"reason":"abort"' in events(client, path, run_id)
    assert client.post(f"{path}/runs/{run_id}/stop", headers=OWN).status_code == 200


@pytest.mark.parametrize("chat_id", ["none", "..", "%2e%2e", "a%00b", "x" * 600, "run%2F..%2Fother"])
def test_unknown_conversations(client: Any, chat_id: str) -> None:
    """C20: Whatever stands in an address: 404 without creating anything."""
    pubsub = client.application.extensions["s2pubsub"].pubsub
    for path in (f"/chat/{chat_id}", f"/chat/{chat_id}/turns"):
        assert client.get(path).status_code == 404
    assert go_on(client, f"/chat/{chat_id}").status_code in (404, 405)
    assert client.get(f"/chat/{chat_id}/runs/x/events").status_code in (403, 404)
    assert client.post(f"/chat/{chat_id}/runs/x/stop", headers=OWN).status_code in (403, 404)
    assert pubsub.topics() == []


def test_only_the_conversations_own_runs(client: Any, agent: Waiter) -> None:
    """C57: a run is shown and stopped only in its conversation; other topics of the basin are out of reach."""
    agent.go.set()
    one, other = begin(client), begin(client)
    foreign = other.removeprefix("/chat/")
    assert client.get(f"{one}/runs/{foreign}/events").status_code == 403
    assert client.post(f"{one}/runs/{foreign}/stop", headers=OWN).status_code == 403


def test_questions(client: Any) -> None:
    """Empty, overlong and malformed questions are refused with a reason."""
    for question in ("", "  \n", "x" * 4001):
        response = client.post("/chat", data={"question": question}, headers=OWN)
        assert response.status_code == 400
        assert response.get_json()["error"]
    path = begin(client)
    for body in (None, [], {"question": 7}, {}):
        assert client.post(path, json=body, headers=OWN).status_code == 400
    assert client.post(path, data=b"\xff{", headers=OWN).status_code == 400
    assert client.post(path, data=b"x" * 100_000, headers=OWN).status_code in (400, 413)
    assert client.get(f"{path}/turns?offset=x").status_code == 400


def test_foreign_pages(client: Any) -> None:
    """Other sites' pages cannot ask or stop."""
    path = begin(client)
    for headers in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.test"}):
        for target in ("/chat", path, f"{path}/runs/{path.removeprefix('/chat/')}/stop"):
            assert client.post(target, data={"question": "x"}, headers=headers).status_code == 403
    assert client.post("/chat", data={"question": "x"}, headers={"Origin": "http://localhost"}).status_code == 303


def test_headers(client: Any) -> None:
    """Pages run no foreign script, are not framed, are not cached, and do not tell their address to others."""
    response = client.get("/")
    assert "script-src 'self'" in response.headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["Referrer-Policy"] == "no-referrer"
    with client.get("/static/chat.js") as script:
        assert script.status_code == 200


class Nameless(Waiter):
    @property
    def name(self) -> str:
        raise RuntimeError("secret detail")


def test_a_page_that_fails(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """The visitor is told that it has failed and nothing else, as a page or as JSON; the log has the reason."""
    app = create_app({"S2_BASIN": "demo-basin", "S2_ENDPOINTS": server.url, "S2_ACCESS_TOKEN": "x"}, agent=Nameless())
    client = app.test_client()
    page = client.get("/")
    assert page.status_code == 500
    assert b"The demo has failed." in page.data
    assert b"secret" not in page.data
    assert client.get("/", headers=OWN).get_json() == {"error": "The demo has failed."}
    assert "secret detail" in caplog.text
    app.extensions["s2pubsub"].close()


def test_unreachable_server(server: Server) -> None:
    """Without its S2 server the page comes, and a question is answered by 503."""
    settings = {"S2_BASIN": "demo-basin", "S2_ENDPOINTS": "http://127.0.0.1:9", "S2_ACCESS_TOKEN": "x"}
    app = create_app(settings, agent=Waiter())
    client = app.test_client()
    try:
        assert client.get("/").status_code == 200
        assert client.post("/chat", data={"question": "x"}, headers=OWN).status_code == 503
    finally:
        app.extensions["s2pubsub"].close()


@pytest.mark.slow
def test_a_killed_process_is_noticed(make_client: Callable[[], Any], agent: Waiter, server: Server) -> None:
    """C16: when the process that writes is gone, its lease ends, then the stream: 'idle'. Before that it goes on."""
    client = make_client()
    path = begin(client, "deaf?")
    run_id = path.removeprefix("/chat/")
    app = client.application
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(events(make_client(), path, run_id)))
    reader.start()
    reader.join(LEASE)  # longer than the silence after which it is asked
    assert not found
    # The heir takes the lease and gives it up, as after the expiry of a killed process's.
    leases = app.extensions["s2pubsub"].pubsub.leases
    leases.release_lease(f"demo\0{run_id}", run_id)
    reader.join(LONG)
    assert "event: failure" in found[0]
    assert '"code":"idle"' in found[0]
