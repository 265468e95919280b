"""What answers in the demo: an agent that works offline on real documents, and the tools that any agent may use.

The offline agent searches, reads and quotes; it makes nothing up. ``openai_agent`` has the one with a model behind it.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import attrs

from s2pubsub.demo.documents import Document, Library, Sentence, terms
from s2pubsub.runs import Run

_WEAK = 0.4
"""The part of the best passage's score below which others are not worth quoting."""

PACE = 0.035
"""Seconds for each word: as fast as people read."""


class StoppedError(Exception):
    """The answer shall end here: somebody pressed Stop, or the server is closing."""


@attrs.frozen
class Exchange:
    """An earlier question of the conversation and its answer."""

    question: str
    answer: str


class Agent(Protocol):
    """Answers one question by writing to a run; the caller ends the run."""

    @property
    def name(self) -> str:
        """What visitors see as its name."""

    def answer(self, run: Run, question: str, history: Sequence[Exchange], stop: threading.Event) -> None:
        """Write the answer. StoppedError once ``stop`` is set."""


class Tools:
    """The tools, as functions of JSON; each call is written to the run, with its result."""

    def __init__(self, library: Library) -> None:
        self.library = library

    def search(self, query: str) -> list[dict[str, Any]]:
        """The passages that fit best."""
        return [
            {
                "document": passage.document.name,
                "title": passage.document.title,
                "paragraph": passage.number + 1,
                "score": passage.score,
                "text": passage.text,
            }
            for passage in self.library.search(terms(query))
        ]

    def read(self, document: str) -> dict[str, Any]:
        """A whole document."""
        for one in self.library.documents:
            if document in (one.name, one.title):
                text = "\n\n".join(one.paragraphs)
                return {"document": one.name, "title": one.title, "words": len(text.split()), "text": text[:30_000]}
        return {"error": f"there is no document {document!r}", "documents": [d.name for d in self.library.documents]}

    def call(self, run: Run, name: str, args: dict[str, Any], call_id: str | None = None) -> Any:
        """Call a tool by its name. A model chooses both, so nothing about them is taken for granted."""
        call_id = call_id or str(uuid.uuid4())
        run.tool_call(call_id, name, args)
        known: dict[str, tuple[str, Callable[[str], Any]]] = {
            "search": ("query", self.search),
            "read": ("document", self.read),
        }
        if name not in known:
            result: Any = {"error": f"there is no tool {name!r}"}
        elif not isinstance(args.get(known[name][0]), str):
            result = {"error": f"{known[name][0]!r} must be a text"}
        else:
            result = known[name][1](args[known[name][0]])
        run.tool_result(call_id, name, args, shorten(result))
        return result


def shorten(value: Any, limit: int = 400) -> Any:
    """``value`` with long texts cut: the page shows where something was found, not all of it."""
    if isinstance(value, dict):
        return {key: shorten(item, limit) for key, item in value.items()}
    if isinstance(value, list):
        return [shorten(item, limit) for item in value]
    return value[:limit] + "…" if isinstance(value, str) and len(value) > limit else value


class DocumentAgent:
    """Answers from a library, by quoting it. Thread-safe."""

    name = "The librarian"

    def __init__(self, library: Library, pace: float = PACE) -> None:
        self._library = library
        self._tools = Tools(library)
        self._pace = pace

    def answer(self, run: Run, question: str, history: Sequence[Exchange], stop: threading.Event) -> None:
        """See ``Agent``."""
        wanted = terms(question)
        if re.search(r"\b(list|which|what)\b.*\b(documents|texts|files)\b", question.lower()):
            self._say(run, stop, self._contents())
        elif re.search(r"\b(summar|overview|sum up|gist)", question.lower()):
            self._summarise(run, stop, [term for term in wanted if not term.startswith(("summar", "overview", "gist"))])
        else:
            said = ""
            if not wanted and history:  # "tell me more": of what was asked before, and what was not said yet
                wanted = next(filter(None, (terms(exchange.question) for exchange in reversed(history))), [])
                said = "\n".join(exchange.answer for exchange in history)
            self._look_up(run, stop, question, wanted, said)

    def _look_up(self, run: Run, stop: threading.Event, question: str, wanted: list[str], said: str) -> None:
        run.step_start()
        query = question if terms(question) else " ".join(wanted)
        self._say(run, stop, "Let me look that up.")
        found = self._tools.call(run, "search", {"query": query})
        self._think(stop)
        run.step_finish("tool-calls")
        run.step_start()
        if not found:
            self._say(run, stop, f"I found nothing about that. {self._contents()}")
        else:
            passages = self._library.search(wanted)
            passages = [one for one in passages if one.score > passages[0].score * _WEAK]
            names = dict.fromkeys(passage.document.name for passage in passages[:2])
            for name in names:
                self._tools.call(run, "read", {"document": name})
                self._think(stop)
            places = [(passage.document, passage.number) for passage in passages]
            sentences = self._library.summarise(places, wanted, 4, said)
            self._say(run, stop, _quote(sentences) or "That is all I can find about it.")
        run.step_finish()

    def _summarise(self, run: Run, stop: threading.Event, wanted: list[str]) -> None:
        run.step_start()
        chosen = self._library.find(wanted)
        documents = [chosen] if chosen is not None else list(self._library.documents[:8])
        self._say(run, stop, "I will read it." if chosen else f"I will read {len(documents)} documents.")
        sentences: list[Sentence] = []
        for document in documents:
            self._tools.call(run, "read", {"document": document.name})
            self._think(stop)
            places = [(document, number) for number in range(len(document.paragraphs))]
            sentences += self._library.summarise(places, (), 5 if chosen else 2)
        run.step_finish("tool-calls")
        run.step_start()
        self._say(run, stop, _quote(sentences))
        run.step_finish()

    def _contents(self) -> str:
        titles = [f"• {document.title}" for document in self._library.documents[:20]]
        more = len(self._library.documents) - len(titles)
        return "I have these documents:\n\n" + "\n".join(titles) + (f"\n… and {more} more" if more else "")

    def _think(self, stop: threading.Event) -> None:
        if stop.wait(self._pace * 10):
            raise StoppedError

    def _say(self, run: Run, stop: threading.Event, text: str) -> None:
        for word in re.findall(r"\S+\s*", text):
            if stop.wait(self._pace):
                raise StoppedError
            run.text(word)


def _quote(sentences: Iterable[Sentence]) -> str:
    """The sentences as an answer: a paragraph for each document, with the number of its source, and the sources."""
    by_document: dict[Document, list[Sentence]] = {}
    for sentence in sentences:
        by_document.setdefault(sentence.document, []).append(sentence)
    if not by_document:
        return ""
    paragraphs = []
    for number, found in enumerate(by_document.values(), 1):
        text, last = "", None
        for sentence in sorted(found, key=lambda one: (one.paragraph, one.number)):
            here = (sentence.paragraph, sentence.number)
            gap = last is not None and here != (last[0], last[1] + 1)
            text += (" … " if gap else " ") + sentence.text
            last = here
        paragraphs.append(f"{text.strip()} [{number}]")
    sources = "\n".join(f"[{number}] {document.title}" for number, document in enumerate(by_document, 1))
    return "\n\n".join([*paragraphs, sources])
