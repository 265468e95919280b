"""Durable runs in Flask applications.

::

    s2 = S2PubSubFlask()

    def create_app():
        app = Flask(__name__)
        app.config["S2_BASIN"] = "agent-runs"
        s2.init_app(app)
        app.register_blueprint(s2.blueprint(authorize=may_see), url_prefix="/runs")
        return app

    @app.post("/chat")
    def chat():
        return {"runId": agent.stream(...).run_id}

``docs/flask.md`` in the package is the guide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Blueprint, Flask, Response, current_app, request

from s2pubsub.client import S2PubSub
from s2pubsub.contrib.origin import is_own_request
from s2pubsub.contrib.site import Site, WebSettings, single_thread_warning
from s2pubsub.runs import Runs
from s2pubsub.sse.answer import Answer, answer_run, answer_stop, refusal
from s2pubsub.sse.formats import FormatName
from s2pubsub.sse.stream import Source, headers, stream

Authorize = Callable[[str], bool]
"""Says whether the current request may see or stop the run with this id. Called in the request's context."""

_NAME = "s2pubsub"


class S2PubSubFlask:
    """The Flask extension. One object serves any number of applications, each with a client of its own.

    Settings are keys of ``app.config`` that begin with ``S2_``: the arguments of ``S2PubSub`` (``S2_BASIN``,
    ``S2_ACCESS_TOKEN``, ``S2_ENDPOINTS`` or ``S2_ACCOUNT_ENDPOINT`` and ``S2_BASIN_ENDPOINT``, …) and those of
    ``WebSettings`` (``S2_MAX_STREAMS``, ``S2_HEARTBEAT``, …). What is missing comes from the environment. A misspelt
    key is an error at once; a client is made, and connects, when it is first used.
    """

    def __init__(self, app: Flask | None = None) -> None:
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Take the application's ``S2_*`` settings. Does not connect.

        Raises:
            ValueError, TypeError: a setting is misspelt or has the wrong type.
        """
        found = {key: value for key, value in app.config.items() if key.startswith("S2_")}
        app.extensions[_NAME] = Site.from_mapping(found, "app.config", "S2_")

    @property
    def pubsub(self) -> S2PubSub:
        """The current application's client.

        Raises:
            ValueError: a setting is missing, in ``app.config`` and in the environment.
        """
        return _site().pubsub

    @property
    def runs(self) -> Runs:
        """The current application's runs. Raises as ``pubsub``."""
        return _site().runs

    def close(self, app: Flask | None = None, timeout: float | None = 5.0) -> None:
        """Close the client of ``app``, or of the current application. At exit this happens by itself."""
        _site(app).close(timeout)

    def run_response(
        self, run_id: str, *, authorize: Authorize | None = None, format: FormatName = "events", **options: Any
    ) -> Response:
        """``run_response`` with the application's runs, limit and settings; ``options`` go before these."""
        site = _site()
        defaults = {"limiter": site.limiter, **site.web.of_answers()}
        return run_response(site.runs, run_id, authorize=authorize, format=format, **{**defaults, **options})

    def blueprint(self, *, authorize: Authorize, name: str = "s2pubsub", **options: Any) -> Blueprint:
        """Routes for runs: ``GET /<run_id>/events`` for ``EventSource``, ``GET /<run_id>/stream`` for the AI SDK's
        ``useChat``, ``POST /<run_id>/stop``.

        A stop is obeyed only from a page of the same origin, or with the header ``X-Requested-With``.

        Args:
            authorize: called with the run id before anything else is done; False answers 403. To let everybody in who
                knows an id, say so: ``lambda run_id: True``.
            name: the blueprint's name.
            options: arguments of ``sse.answer_run`` for both streams.
        """
        routes = Blueprint(name, __name__)

        @routes.get("/<run_id>/events")
        def events(run_id: str) -> Response:
            return self.run_response(run_id, authorize=authorize, **options)

        @routes.get("/<run_id>/stream")
        def ui_messages(run_id: str) -> Response:
            chosen = {"ended": "no-content", **options}
            return self.run_response(run_id, authorize=authorize, format="ui-message-stream", **chosen)

        @routes.post("/<run_id>/stop")
        def stop(run_id: str) -> Response:
            return stop_response(_site().runs, run_id, authorize=authorize)

        return routes


def run_response(
    runs: Runs, run_id: str, *, authorize: Authorize | None = None, format: FormatName = "events", **options: Any
) -> Response:
    """The response to the current request that shows a run: its events from where the browser left off, then live.

    Its status is one of ``sse.answer_run``'s, whose arguments ``options`` are. Closes its observation when the run has
    ended or the client has gone. A ``transform`` is called while the response is sent, outside the request's context.
    """
    single_thread_warning.look(request.environ)
    answer = answer_run(
        runs,
        run_id,
        format=format,
        last_event_id=request.headers.get("Last-Event-ID"),
        query=request.args,
        authorize=authorize,
        **options,
    )
    return _response(answer)


def stop_response(runs: Runs, run_id: str, *, authorize: Authorize | None = None) -> Response:
    """The response to the current request that stops a run: 202, or 200 where it has ended already; 403, 404, 503.

    403 also for requests of other sites' pages: see ``S2PubSubFlask.blueprint``.
    """
    if not is_own_request(request.headers, request.host):
        return _response(refusal(403, "send the request from a page of this site, or with X-Requested-With"))
    if authorize is not None and not authorize(run_id):
        return _response(refusal(403, "forbidden"))
    return _response(answer_stop(runs, run_id))


def stream_response(source: Source, *, format: FormatName = "events", **options: Any) -> Response:
    """A response that shows any subscription; ``options`` are the arguments of ``sse.stream``.

    With a ``limiter`` among them, take a place first and answer 503 if there is none.
    """
    single_thread_warning.look(request.environ)
    return Response(stream(source, format=format, **options), headers=headers(format))


def _response(answer: Answer) -> Response:
    return Response(answer.body, answer.status, headers=dict(answer.headers))


def _site(app: Flask | None = None) -> Site:
    try:
        found: Site = (app or current_app).extensions[_NAME]
    except KeyError:
        raise RuntimeError("the application does not know S2PubSubFlask: call init_app(app) first") from None
    return found


__all__ = ["S2PubSubFlask", "WebSettings", "run_response", "stop_response", "stream_response"]
