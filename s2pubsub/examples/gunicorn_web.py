"""The web process: ``gunicorn --worker-class gthread --threads 64 's2pubsub.examples.gunicorn_web:create_app()'``.

It starts runs and hands them to a pool: Celery's, or with ``POOL=threads`` one of its own. It streams whatever run it
is asked for, whichever process writes it. One open stream takes one thread.

::

    $ curl -H 'X-Requested-With: curl' -d 'question=What burns in the lamp?' localhost:8000/answers
    {"runId": "…"}
    $ curl -N localhost:8000/answers/…/events
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

from flask import Flask, Response, jsonify, request

from s2pubsub.contrib.flask import S2PubSubFlask, stop_response
from s2pubsub.contrib.origin import is_own_request
from s2pubsub.examples.writing import LEASE, is_alive

IDLE = 4 * LEASE
"""Seconds of silence after which it is asked whether the run's worker lives.

Longer than a killed worker's run may be silent before another one goes on with it: until Celery sees that the process
is gone (at once or, when it misses that, by its timer of five seconds), and until the lease has run out.
"""

s2 = S2PubSubFlask()


def create_app() -> Flask:
    """Make the application. Settings of the library come from the environment."""
    app = Flask(__name__)
    s2.init_app(app)

    @cache
    def find_pool() -> Callable[[str, str], None]:
        # On first use: a server that forks its workers must not have started threads before.
        if os.environ.get("POOL") == "threads":
            from s2pubsub.examples.thread_pool import Pool

            return Pool(s2.runs).submit
        from s2pubsub.examples.celery_worker import submit

        return submit

    @app.post("/answers")
    def start() -> tuple[Response, int]:
        if not is_own_request(request.headers, request.host):
            return jsonify(error="send the request from a page of this site, or with X-Requested-With"), 403
        # The run exists before its id is given away: whoever has the id can watch it, before any worker has begun.
        run = s2.runs.start()
        try:
            find_pool()(run.id, request.form.get("question", ""))
        except Exception as error:
            run.error(error)  # or those who watch it would wait for a worker
            raise
        run.hand_over()
        return jsonify(runId=run.id), 201

    @app.get("/answers/<run_id>/events")
    def events(run_id: str) -> Response:
        runs = s2.runs  # is_alive is called while the response is sent, outside of the request's context
        return s2.run_response(run_id, authorize=may_see, idle_timeout=IDLE, is_alive=lambda: is_alive(runs, run_id))

    @app.post("/answers/<run_id>/stop")
    def stop(run_id: str) -> Response:
        return stop_response(s2.runs, run_id, authorize=may_see)

    @app.get("/health")
    def health() -> str:
        return "ok"

    return app


def may_see(run_id: str) -> bool:
    """Whether the current request may see or stop the run. Here: everybody who knows its id. Yours asks the session."""
    return True
