"""The Flask application that the hosts serve."""

from __future__ import annotations

from typing import Any

from flask import Flask, request

from s2pubsub.contrib.flask import S2PubSubFlask
from s2pubsub.runs import Runs
from tests.hosts.service import Service

s2 = S2PubSubFlask()
app = Flask(__name__)
app.config["S2_HEARTBEAT"] = 0.5
s2.init_app(app)
app.register_blueprint(s2.blueprint(authorize=lambda run_id: True), url_prefix="/runs")


def find_runs() -> Runs:
    with app.app_context():
        return s2.runs


service = Service(find_runs)


@app.get("/health")
def health() -> str:
    return "fine"


@app.get("/round-trip")
def round_trip() -> dict[str, Any]:
    return service.round_trip()


@app.get("/ask")
def ask() -> str:
    return service.ask(int(request.args["count"]), float(request.args["pace"]))
