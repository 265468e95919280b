"""The Flask application that the tests serve."""

from __future__ import annotations

import json
import os
import threading

from flask import Flask, Response, jsonify, request

from s2pubsub.contrib.flask import S2PubSubFlask, stream_response

try:
    from flask_compress import Compress
except ImportError:  # a test that needs it says so
    Compress = None


def may_see(run_id: str) -> bool:
    return not run_id.startswith("secret") or request.cookies.get("pass") == run_id


s2 = S2PubSubFlask()


def make_app() -> Flask:
    app = Flask(__name__)
    for name, value in json.loads(os.environ.get("WEB_CONFIG", "{}")).items():
        app.config[f"S2_{name.upper()}"] = value
    app.config["COMPRESS_MIMETYPES"] = ["text/html", "text/event-stream", "application/json", "text/plain"]
    app.config["COMPRESS_MIN_SIZE"] = 1
    if Compress is not None:
        Compress(app)
    s2.init_app(app)
    app.register_blueprint(s2.blueprint(authorize=may_see), url_prefix="/runs")

    @app.get("/health")
    @app.get("/plain")
    def plain() -> str:
        return "fine " * 100

    @app.get("/state")
    def state() -> Response:
        names = sorted(t.name for t in threading.enumerate() if t.name.startswith("s2pubsub-"))
        site = app.extensions["s2pubsub"]
        used = site._pubsub is not None
        subscriptions = site.pubsub.stats().subscriptions if used else 0
        fds = len(os.listdir("/proc/self/fd"))
        return jsonify(threads=names, streams=site.limiter.active, subscriptions=subscriptions, fds=fds)

    @app.get("/mastra/<run_id>")
    def mastra(run_id: str) -> Response:
        return s2.run_response(run_id, format="mastra")

    @app.get("/replay/<run_id>")
    def replay(run_id: str) -> Response:
        return s2.run_response(run_id, format="ui-message-stream")

    @app.get("/topics/<name>")
    def topic(name: str) -> Response:
        return stream_response(s2.pubsub.subscribe(name), heartbeat=0.2, lifetime=1.0)

    return app


app = make_app()
