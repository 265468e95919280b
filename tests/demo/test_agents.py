"""The agent that works offline, and the tools that any agent may use, on a real run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from s2pubsub import S2PubSub
from s2pubsub.demo.agents import DocumentAgent, Exchange, StoppedError, Tools
from s2pubsub.demo.documents import Library, parse, shipped_documents
from s2pubsub.runs import Run, Runs
from s2pubsub.topic import run_topic
from tests.servers import ON_EMBEDDED

pytestmark = ON_EMBEDDED


@pytest.fixture
def runs(pubsub: S2PubSub) -> Runs:
    return Runs(pubsub)


@pytest.fixture
def answer(runs: Runs) -> Callable[..., str]:
    """What the agent says about a library, the shipped one by default."""

    def ask(question: str, history: Sequence[Exchange] = (), library: Library | None = None) -> str:
        agent = DocumentAgent(library or Library(shipped_documents()), pace=0)
        with runs.start() as run:
            agent.answer(run, question, history, threading.Event())
        with runs.observe(run.id) as observation:
            return observation.result().text

    return ask


def calls(runs: Runs, run: Run) -> list[tuple[str, Any]]:
    """The tools that a run has called, and their results as the page sees them."""
    chunks = [event.data for event in runs.pubsub.get_history(run_topic(run.id)) if event.type == "chunk"]
    return [
        (chunk["payload"]["toolName"], chunk["payload"]["result"]) for chunk in chunks if chunk["type"] == "tool-result"
    ]


def test_it_quotes_what_answers(answer: Callable[..., str]) -> None:
    """The answer consists of sentences of the documents, each with its source."""
    said = answer("What must a keeper do when the clockwork fails?")
    assert "by hand" in said
    assert "[1] The " in said


def test_it_says_what_it_has(answer: Callable[..., str]) -> None:
    """Asked for its documents it lists twenty of them, and says how many more there are; so it does without a hit."""
    library = Library(filter(None, (parse(f"{n}.txt", f"Title {n}\n\nLamp {n}.") for n in range(23))))
    said = answer("Which documents do you have?", library=library)
    assert said.startswith("I have these documents:\n\n• Title 0\n• Title 1\n")
    assert said.endswith("• Title 19\n… and 3 more")
    assert "I found nothing about that. I have these documents:" in answer("quantum chromodynamics")


def test_it_sums_up(answer: Callable[..., str]) -> None:
    """The document that the question names, or all of them if it names none."""
    one = answer("Summarise the part about the weather")
    assert one.startswith("I will read it.")
    assert "[1] " in one
    assert "[2] " not in one
    every = answer("Give me an overview")
    assert every.startswith("I will read 4 documents.")
    assert "[4] " in every


def test_it_goes_on(answer: Callable[..., str]) -> None:
    """Asked to tell more, it goes by what was asked before, repeats nothing, and says in the end that this is all."""
    question = "What must a keeper do when the clockwork fails?"
    library = Library(filter(None, [parse("a.txt", "The Light\n\nThe lamp burned oil. The keeper turned the lamp.")]))
    first = answer(question, library=library)
    assert "The keeper turned the lamp." in first
    history = [Exchange("?!", ""), Exchange(question, first)]
    assert answer("Tell me more", history, library).endswith("That is all I can find about it.")
    assert "I found nothing" in answer("Tell me more", [], library)


def test_a_stop_ends_it(runs: Runs) -> None:
    """Between two words, and while it pretends to think."""
    stop = threading.Event()
    stop.set()
    agent = DocumentAgent(Library(shipped_documents()), pace=0)
    with runs.start() as run:
        with pytest.raises(StoppedError):
            agent.answer(run, "lamp oil", [], stop)
        run.abort()


def test_tools_take_anything(runs: Runs) -> None:
    """A model chooses tool and arguments: what does not fit comes back to it as an error; the run holds each call."""
    tools = Tools(Library(shipped_documents()))
    with runs.start() as run:
        found = tools.call(run, "search", {"query": "whale oil"})
        read = tools.call(run, "read", {"document": "1-the-light.txt"}, "call-7")
        assert "whale oil" in found[0]["text"]
        assert read["title"].endswith("The Light")
        assert read["words"] == len(read["text"].split())
        refused = [
            tools.call(run, "read", {"document": "none"}),
            tools.call(run, "read", {}),
            tools.call(run, "search", {"query": 5}),
            tools.call(run, "format_disk", {"query": "x"}),
        ]
        run.finish()
    assert refused[0]["error"] == "there is no document 'none'"
    assert "1-the-light.txt" in refused[0]["documents"]
    assert [result["error"] for result in refused[1:]] == [
        "'document' must be a text",
        "'query' must be a text",
        "there is no tool 'format_disk'",
    ]
    seen = calls(runs, run)
    assert [name for name, _ in seen] == ["search", "read", "read", "read", "search", "format_disk"]
    assert seen[1][1]["text"] == read["text"][:400] + "…"  # the page shows where something was found, not all of it
    assert seen[2:] == list(zip(["read", "read", "search", "format_disk"], refused, strict=True))
