"""An agent with a model behind it: any server that speaks OpenAI's chat completions, through the ``openai`` package.

The package reads ``OPENAI_API_KEY`` and ``OPENAI_BASE_URL`` from the environment. The model is ``OPENAI_MODEL``, else
the first that another server than OpenAI's names. It may use the tools of ``agents.Tools``.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from typing import Any

import openai

from s2pubsub.demo.agents import Exchange, StoppedError, Tools
from s2pubsub.demo.documents import Library
from s2pubsub.runs import Run

DEFAULT_MODEL = "gpt-4o-mini"
MAX_STEPS = 8
_TIMEOUT = 60.0

_INSTRUCTIONS = (
    "You answer questions about a small library of documents. Search it before you answer, and name the documents that "
    "you rely on by their titles. If it says nothing about the question, say so. "
    "Write plain text in short paragraphs, without Markdown. The documents: "
)


def _tool(name: str, description: str, argument: str, meaning: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string", "description": meaning}},
        "required": [argument],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_TOOLS: list[Any] = [
    _tool("search", "Find the passages that fit some words best.", "query", "the words to look for"),
    _tool("read", "Read a whole document.", "document", "name or title of the document"),
]


class OpenAIAgent:
    """Answers with a model. Thread-safe.

    Raises:
        openai.OpenAIError: the environment lacks the key.
    """

    def __init__(self, library: Library) -> None:
        self._client = openai.OpenAI(timeout=_TIMEOUT)
        self._tools = Tools(library)
        self._model = os.environ.get("OPENAI_MODEL", "")
        titles = "; ".join(f"{document.title} ({document.name})" for document in library.documents[:100])
        self._instructions = _INSTRUCTIONS + titles

    @property
    def name(self) -> str:
        """What answers."""
        return self._model or "a model"

    def answer(self, run: Run, question: str, history: Sequence[Exchange], stop: threading.Event) -> None:
        """See ``agents.Agent``."""
        if not self._model:
            self._model = self._choose_model()
        messages: list[Any] = [{"role": "system", "content": self._instructions}]
        for exchange in history:
            messages.append({"role": "user", "content": exchange.question})
            if exchange.answer:
                messages.append({"role": "assistant", "content": exchange.answer})
        messages.append({"role": "user", "content": question})
        for _ in range(MAX_STEPS):
            text, calls, used = self._step(run, messages, stop)
            if not calls:
                run.step_finish(usage=used)
                return
            messages.append({"role": "assistant", "content": text or None, "tool_calls": calls})
            for call in calls:
                result = self._tools.call(run, call["function"]["name"], _arguments(call), call["id"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})
            run.step_finish("tool-calls", usage=used)
        raise RuntimeError(f"the model has not come to an answer in {MAX_STEPS} steps")

    def _choose_model(self) -> str:
        if not os.environ.get("OPENAI_BASE_URL"):
            return DEFAULT_MODEL
        return next((model.id for model in self._client.models.list()), DEFAULT_MODEL)

    def _step(
        self, run: Run, messages: list[Any], stop: threading.Event
    ) -> tuple[str, list[dict[str, Any]], dict[str, int] | None]:
        """One call of the model: what it said, the tools it asks for, and the tokens it took."""
        run.step_start()
        texts: list[str] = []
        calls: dict[int, dict[str, Any]] = {}
        used: dict[str, int] | None = None
        stream: Any = self._client.chat.completions.create(
            model=self._model,
            messages=messages,
            tools=_TOOLS,
            stream=True,
            stream_options={"include_usage": True},
        )
        with stream:
            for part in stream:
                if stop.is_set():
                    raise StoppedError
                if part.usage is not None:
                    used = {
                        "inputTokens": part.usage.prompt_tokens,
                        "outputTokens": part.usage.completion_tokens,
                        "totalTokens": part.usage.total_tokens,
                    }
                for choice in part.choices[:1]:
                    if choice.delta.content:
                        run.text(choice.delta.content)
                        texts.append(choice.delta.content)
                    for piece in choice.delta.tool_calls or ():
                        _collect(calls, piece)
        if stop.is_set():
            raise StoppedError
        return "".join(texts), [calls[index] for index in sorted(calls)], used


def _collect(calls: dict[int, dict[str, Any]], piece: Any) -> None:
    """Tool calls arrive in pieces: id and name first, then the text of the arguments."""
    empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
    call = calls.setdefault(piece.index, empty)
    call["id"] = piece.id or call["id"] or f"call-{piece.index}"
    if piece.function is not None:
        call["function"]["name"] += piece.function.name or ""
        call["function"]["arguments"] += piece.function.arguments or ""


def _arguments(call: dict[str, Any]) -> dict[str, Any]:
    try:
        found = json.loads(call["function"]["arguments"] or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
