"""The Flask extension in this process, by Flask's own test client."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

flask = pytest.importorskip("flask")

from s2pubsub.contrib.flask import S2PubSubFlask, run_response, stream_response  # noqa: E402
from tests.web.event_source import parse  # noqa: E402


@pytest.fixture
def config(server: Any, basin: str) -> dict[str, Any]:
    return {
        "S2_BASIN": basin,
        "S2_ACCESS_TOKEN": server.token,
        "S2_ACCOUNT_ENDPOINT": server.url,
        "S2_BASIN_ENDPOINT": server.basin_url,
        "S2_HEARTBEAT": 0.2,
    }


@pytest.fixture
def app(config: dict[str, Any]) -> Any:
    s2 = S2PubSubFlask()
    app = flask.Flask("shop")
    app.secret_key = "for tests"
    app.config.update(config)
    s2.init_app(app)

    def owns(run_id: str) -> bool:
        return flask.session.get("run") == run_id

    app.register_blueprint(s2.blueprint(authorize=owns), url_prefix="/runs")

    @app.get("/enter/<run_id>")
    def enter(run_id: str) -> str:
        flask.session["run"] = run_id
        return "in"

    @app.get("/mastra/<run_id>")
    def mastra(run_id: str) -> Any:
        return run_response(s2.runs, run_id, format="mastra")

    @app.get("/live")
    def live() -> Any:
        return stream_response(s2.pubsub.subscribe_from_offset("agent.stream.run-7", 0), lifetime=1.5)

    yield app
    s2.close(app)


def test_a_run_is_shown_to_whom_it_belongs(app: Any, make_run: Any):
    """The hook runs in the request's context: a cookie decides, which ``EventSource`` sends by itself."""
    make_run(chunks=2, finish=True)
    with app.test_client() as client:
        assert client.get("/runs/run-7/events").status_code == 403
        client.get("/enter/run-7")
        response = client.get("/runs/run-7/events", headers={"Last-Event-ID": "0"})
        assert response.status_code == 200
        assert response.content_type == "text/event-stream"
        assert [m.last_event_id for m in parse(response.data)] == ["1", "2", "2"]
        assert client.get("/runs/run-7/events?lastEventId=2").status_code == 204
        assert client.get("/runs/run-7/events?offset=x").status_code == 400
        client.get("/enter/never")
        assert client.get("/runs/never/events").status_code == 404
        assert client.get("/runs/never/stream").status_code == 204


def test_other_formats_have_their_routes(app: Any, make_run: Any):
    """The AI SDK's route says 204 for an ended run; any view can answer in any format."""
    run = make_run(chunks=1)
    with app.test_client() as client:
        client.get("/enter/run-7")
        response = client.get("/runs/run-7/stream", buffered=False)
        assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
        run.finish()
        assert parse(b"".join(response.response))[-1].data == "[DONE]"
        response.close()
        assert client.get("/runs/run-7/stream").status_code == 204
        assert parse(client.get("/mastra/run-7").data)[-1].data == "[DONE]"
        assert [m.type for m in parse(client.get("/live").data)] == ["chunk", "finish"]


def test_a_head_request_leaves_nothing_open(app: Any, make_run: Any):
    """HEAD gets the headers; the body that is never sent is closed."""
    make_run(chunks=1)
    with app.test_client() as client:
        client.get("/enter/run-7")
        response = client.head("/runs/run-7/events")
        assert (response.status_code, response.data) == (200, b"")
        response.close()
        assert app.extensions["s2pubsub"].pubsub.stats().subscriptions == 0


STOPS = [
    ({}, 403),
    ({"Origin": "https://evil.example"}, 403),
    ({"Origin": "null"}, 403),
    ({"Origin": "http://localhost"}, 202),
    ({"Origin": "https://localhost"}, 202),
    ({"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"}, 403),
    ({"Sec-Fetch-Site": "same-site"}, 403),
    ({"Sec-Fetch-Site": "same-origin"}, 202),
    ({"X-Requested-With": "fetch"}, 202),
]


@pytest.mark.parametrize(("headers", "status"), STOPS)
def test_only_the_sites_own_pages_stop_runs(app: Any, make_run: Any, headers: dict[str, str], status: int):
    """A page of another site, in the browser of somebody who is logged in, cannot stop a run."""
    make_run(chunks=1)
    with app.test_client() as client:
        client.get("/enter/run-7")
        assert client.post("/runs/run-7/stop", headers=headers).status_code == status
        assert client.get("/runs/run-7/stop").status_code == 405
        asked = app.extensions["s2pubsub"].pubsub.exists("agent.control.run-7")
        assert asked == (status == 202)


def test_who_may_not_see_may_not_stop(app: Any, make_run: Any):
    """The same hook guards the stop route."""
    make_run(chunks=1)
    with app.test_client() as client:
        assert client.post("/runs/run-7/stop", headers={"X-Requested-With": "x"}).status_code == 403


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"S2_BASSIN": "x"}, r"S2_BASSIN.*did you mean 'S2_BASIN'"),
        ({"S2_MAX_STREAM": 3}, r"did you mean 'S2_MAX_STREAMS'"),
        ({"S2_MAX_STREAMS": "3"}, "max_streams"),
        ({"S2_MAX_STREAMS": True}, "max_streams"),
        ({"S2_QUEUE_SIZE": "1024"}, "queue_size"),
        ({"S2_BASIN": 5}, "basin"),
        ({"S2_BASIN": "agent-runs", "S2_Basin": "agent-runs"}, r"config\['S2_Basin'\] is given twice"),
        ({"S2_ACCOUNT_ENDPOINT": "http://localhost:1"}, "BASIN_ENDPOINT"),
        ({"S2_ACCOUNT_ENDPOINT": 5, "S2_BASIN_ENDPOINT": 5}, r"config\['S2_ACCOUNT_ENDPOINT'\] must be str"),
        ({"S2_ACCOUNT_ENDPOINT": "localhost", "S2_BASIN_ENDPOINT": "localhost"}, "http://localhost"),
        ({"S2_BASIN": "Not A Basin"}, "basin"),
    ],
)
def test_settings_are_checked_at_once(wrong: dict[str, Any], message: str):
    """C72: a misspelt key or a wrong type is an error of ``init_app`` that names the key; nothing is coerced."""
    app = flask.Flask("shop")
    app.config.update(wrong)
    with pytest.raises((ValueError, TypeError), match=message):
        S2PubSubFlask(app)


def test_what_is_missing_is_said_at_first_use():
    """An application without settings starts, for commands that need none; the first use names what is missing."""
    app = flask.Flask("shop")
    s2 = S2PubSubFlask(app)
    with app.app_context(), pytest.raises(ValueError, match="S2_BASIN"):
        _ = s2.pubsub
    with flask.Flask("other").app_context(), pytest.raises(RuntimeError, match="init_app"):
        _ = s2.runs


def test_each_application_has_its_own_client(config: dict[str, Any]):
    """One extension object serves several applications, and ``close`` lets the next use make a new client."""
    s2 = S2PubSubFlask()
    apps = [flask.Flask("one"), flask.Flask("two")]
    clients = []
    for app in apps:
        app.config.update(config)
        s2.init_app(app)
        with app.app_context():
            assert s2.pubsub is s2.pubsub is s2.runs.pubsub
            clients.append(s2.pubsub)
    assert clients[0] is not clients[1]
    for app in apps:
        s2.close(app)
    with apps[0].app_context():
        assert clients[0].closed
        assert not s2.pubsub.closed
        s2.close()


@pytest.mark.parametrize("options", [{}, {"workers": b"4"}, {b"master": True}])
def test_uwsgi_without_threads_is_refused(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, options: Any):
    """Where no thread would ever run, the first use says what to change instead of hanging."""
    monkeypatch.setitem(sys.modules, "uwsgi", SimpleNamespace(opt=options))
    app = flask.Flask("shop")
    app.config.update(config)
    s2 = S2PubSubFlask(app)
    with app.app_context(), pytest.raises(RuntimeError, match="--enable-threads"):
        _ = s2.runs


@pytest.mark.parametrize("options", [{"enable-threads": True}, {"threads": b"8"}])
def test_uwsgi_with_threads_is_accepted(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, options: Any):
    """UWSGI's names for it are ``enable-threads`` and ``threads``."""
    monkeypatch.setitem(sys.modules, "uwsgi", SimpleNamespace(opt=options))
    app = flask.Flask("shop")
    app.config.update(config)
    s2 = S2PubSubFlask(app)
    with app.app_context():
        assert s2.runs.exists("never") is False
    s2.close(app)


def test_a_server_of_one_thread_is_warned_about_once(app: Any, make_run: Any, caplog: pytest.LogCaptureFixture):
    """Where a stream blocks all other requests, the log says so, once; test clients are left alone."""
    from s2pubsub.contrib import site

    make_run(finish=True)
    site.single_thread_warning._said = False
    with app.test_client() as client:
        client.get("/mastra/run-7")
        assert "one request at a time" not in caplog.text
        for _ in range(2):
            client.get("/mastra/run-7", environ_overrides={"SERVER_SOFTWARE": "x", "wsgi.multithread": False})
        assert caplog.text.count("one request at a time") == 1
