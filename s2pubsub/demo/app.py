"""The demo as a Flask application: ``gunicorn --worker-class gthread --threads 64 's2pubsub.demo.app:create_app()'``.

Every conversation has a link, which is all that one needs to read it and to write in it: do not serve it to people whom
you do not want to. Settings come from the environment, as for every program with this library.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import s2_sdk
from flask import Flask, Response, jsonify, redirect, render_template, request, url_for
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as BaseResponse

from s2pubsub.contrib.flask import S2PubSubFlask, stop_response, stream_response
from s2pubsub.contrib.origin import is_own_request
from s2pubsub.demo.agents import Agent, DocumentAgent
from s2pubsub.demo.conversations import Answers, BusyError, Conversations, UnknownError, chat_topic
from s2pubsub.demo.documents import Library, read_folder, shipped_documents
from s2pubsub.errors import OperationTimeoutError, S2PubSubError, StoreError
from s2pubsub.sse.framing import read_offset

DEFAULT_BASIN = "s2pubsub-demo"
DEFAULT_KEEP = 3600
"""Seconds that an answer is kept after its end."""

MAX_QUESTION = 4000
_IDLE = 2.0
"""Seconds of silence after which it is asked whether the process that writes an answer lives."""

_EXAMPLES = (
    "What must a keeper do when the clockwork fails?",
    "How is a wrong line in the log put right?",
    "Summarise the part about the boat",
    "Which documents do you have?",
)
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


def create_app(
    config: Mapping[str, Any] | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    keep: int | None = None,
    agent: Agent | None = None,
) -> Flask:
    """Make the application. Does not connect.

    Args:
        config: Flask settings, the library's ``S2_*`` keys among them.
        folder: texts to answer from; else ``DEMO_FOLDER``; else those that come with the package.
        keep: seconds that answers are kept after their end; else ``DEMO_KEEP``; else an hour.
        agent: what answers; else a model where ``OPENAI_API_KEY`` is set, else ``DocumentAgent``.

    Raises:
        ValueError: the folder holds no texts, or a setting does not fit.
    """
    keep = int(os.environ.get("DEMO_KEEP", DEFAULT_KEEP)) if keep is None else keep
    folder = folder or os.environ.get("DEMO_FOLDER")
    library = Library(read_folder(Path(folder)) if folder else shipped_documents())
    app = Flask(__name__)
    app.config.from_mapping(
        S2_BASIN=os.environ.get("S2_BASIN", DEFAULT_BASIN),
        S2_CLEANUP_TIMEOUT=float(keep),
        S2_MAX_STREAMS=256,
        # What a killed process leaves goes by itself, a while after it would have been cleaned up.
        S2_RUN_CONFIG=s2_sdk.StreamConfig(retention_policy=keep + 24 * 3600, delete_on_empty_min_age=3600),
        MAX_CONTENT_LENGTH=64 * 1024,
    )
    app.config.from_mapping(config or {})
    s2 = S2PubSubFlask(app)
    chosen = agent or choose_agent(library)
    answers = app.extensions["answers"] = Answers()

    def conversations() -> Conversations:
        return Conversations(s2.runs, chosen, answers)

    _add_pages(app, conversations, chosen, library, folder is not None)
    _add_streams(app, s2, conversations)
    return app


def choose_agent(library: Library) -> Agent:
    """A model's agent where ``OPENAI_API_KEY`` is set, else the one that works offline.

    Raises:
        ValueError: the key is set, but the package ``openai`` is not installed.
    """
    if not os.environ.get("OPENAI_API_KEY"):
        return DocumentAgent(library)
    try:
        from s2pubsub.demo.openai_agent import OpenAIAgent
    except ImportError as error:
        raise ValueError("OPENAI_API_KEY is set, but the package is missing: pip install 's2pubsub[openai]'") from error
    return OpenAIAgent(library)


def _add_pages(app: Flask, conversations: Any, agent: Agent, library: Library, own_folder: bool) -> None:
    @app.get("/")
    def home() -> str:
        examples = ("Summarise everything", "Which documents do you have?") if own_folder else _EXAMPLES
        return render_template(
            "s2pubsub_demo/home.html", agent=agent.name, examples=examples, documents=library.documents
        )

    @app.get("/health")
    def health() -> str:
        return "ok"

    @app.post("/chat")
    def begin() -> BaseResponse:
        chat_id, _ = conversations().ask(_question(request.form.get("question")))
        return redirect(url_for("chat", chat_id=chat_id), 303)

    @app.get("/chat/<chat_id>")
    def chat(chat_id: str) -> str:
        turns = conversations().find(chat_id)
        return render_template(
            "s2pubsub_demo/chat.html", agent=agent.name, chat_id=chat_id, title=turns[0].question, turns=len(turns)
        )

    @app.post("/chat/<chat_id>")
    def go_on(chat_id: str) -> tuple[Response, int]:
        body = request.get_json(silent=True)
        _, turn = conversations().ask(_question(body.get("question") if isinstance(body, dict) else None), chat_id)
        return jsonify(runId=turn.run_id), 201

    @app.before_request
    def refuse_foreign_pages() -> None:
        if request.method == "POST" and not is_own_request(request.headers, request.host):
            raise _Problem(403, "Send the request from a page of this site.")

    @app.after_request
    def protect(response: Response) -> Response:
        response.headers.setdefault("Content-Security-Policy", _POLICY)
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        response.headers.setdefault("Referrer-Policy", "no-referrer")  # the address is the key to the conversation
        if not request.path.startswith("/static/"):
            response.headers.setdefault("Cache-Control", "no-store")
        return response

    @app.errorhandler(Exception)
    def tell(error: Exception) -> tuple[Response | str, int]:
        code, text = _explain(error)
        if code == 500:
            app.logger.error("a request has failed", exc_info=error)
        if request.accept_mimetypes.best_match(["application/json", "text/html"], "text/html") == "application/json":
            return jsonify(error=text), code
        return render_template("s2pubsub_demo/problem.html", code=code, text=text), code


def _add_streams(app: Flask, s2: S2PubSubFlask, conversations: Any) -> None:
    @app.get("/chat/<chat_id>/turns")
    def turns(chat_id: str) -> Response:
        """The questions, those asked from elsewhere as well."""
        try:
            offset = read_offset(request.headers.get("Last-Event-ID"), request.args)
        except ValueError:
            raise _Problem(400, "The position is malformed.") from None
        if not conversations().turns(chat_id):
            raise UnknownError(chat_id)
        subscription: Any = s2.pubsub.subscribe_from_offset(chat_topic(chat_id), offset or 0, timeout=10)
        return stream_response(subscription)

    @app.get("/chat/<chat_id>/runs/<run_id>/events")
    def events(chat_id: str, run_id: str) -> Response:
        """An answer, from where the browser left off."""
        found = conversations()
        return s2.run_response(
            run_id,
            authorize=lambda run_id: found.has(chat_id, run_id),
            idle_timeout=_IDLE,
            is_alive=lambda: found.is_written(chat_id, run_id),
        )

    @app.post("/chat/<chat_id>/runs/<run_id>/stop")
    def stop(chat_id: str, run_id: str) -> Response:
        return stop_response(s2.runs, run_id, authorize=lambda run_id: conversations().has(chat_id, run_id))


class _Problem(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def _question(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _Problem(400, "Ask something.")
    if len(value) > MAX_QUESTION:
        raise _Problem(400, f"A question may have {MAX_QUESTION} characters.")
    return value.strip().encode("utf-8", "replace").decode()


def _explain(error: Exception) -> tuple[int, str]:
    """The status for an error and what a visitor is told."""
    if isinstance(error, _Problem):
        return error.code, str(error)
    if isinstance(error, UnknownError):
        return 404, "There is no such conversation. It may have been cleaned up."
    if isinstance(error, BusyError):
        return 409, "An answer is being written. Wait for its end, or stop it."
    if isinstance(error, (StoreError, OperationTimeoutError)):
        return 503, "The S2 server cannot be reached."
    if isinstance(error, HTTPException):
        return error.code or 500, error.description or error.name
    return 500, "The demo has failed." if not isinstance(error, S2PubSubError) else "The request has failed."
