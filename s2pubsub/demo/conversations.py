"""Conversations as topics: who asked what, in ``agent.demo.chat.<id>``, and one run for each answer.

All state is in S2, so any process can show a conversation, and go on with it. The process that writes an answer holds
the conversation's lease meanwhile: one answer at a time, and whoever watches can tell a slow process from a dead one.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import attrs

from s2pubsub.demo.agents import Agent, Exchange, StoppedError
from s2pubsub.errors import LeaseUnavailableError, S2PubSubError
from s2pubsub.held_lease import HeldLease
from s2pubsub.runs import Run, Runs
from s2pubsub.topic import stream_name, thread_key

LEASE = 5.0
"""Seconds after which a killed process's answer counts as interrupted."""

MAX_ANSWERS = 16
"""How many answers one process writes at a time."""

_WAIT_FOR_LEASE = 2.0
_REMEMBERED = 6


class BusyError(Exception):
    """An answer is being written in the conversation, or too many in this process."""


class UnknownError(Exception):
    """There is no such conversation, or it was cleaned up."""


@attrs.frozen
class Turn:
    """A question; its answer is the run."""

    run_id: str
    question: str


class Conversations:
    """Starts and finds conversations. Holds nothing of them; thread-safe.

    Args:
        runs: where the answers are written.
        agent: what writes them.
        answers: the answers that this process is writing.
    """

    def __init__(self, runs: Runs, agent: Agent, answers: Answers) -> None:
        self._runs = runs
        self._pubsub = runs.pubsub
        self._agent = agent
        self._answers = answers

    def ask(self, question: str, chat_id: str | None = None) -> tuple[str, Turn]:
        """Ask, in a new conversation or an old one; return its id and the turn, whose answer is being written.

        Raises:
            BusyError, UnknownError, S2PubSubError.
        """
        run_id = str(uuid.uuid4())
        turns: list[Turn] = [] if chat_id is None else self.turns(chat_id)
        if chat_id is not None and not turns:
            raise UnknownError(chat_id)
        chat_id = chat_id or run_id
        with ExitStack() as undo:
            stop = self._answers.begin(run_id)
            undo.callback(self._answers.end, run_id)
            try:
                lease = self._pubsub.leases.hold(_key(chat_id), run_id, LEASE, _WAIT_FOR_LEASE, on_lost=stop.set)
            except LeaseUnavailableError as error:
                raise BusyError from error
            undo.enter_context(lease)
            if turns:
                self._end_interrupted(turns[-1])
            run = self._runs.start(run_id)
            undo.callback(run.close)
            turn = Turn(run_id, question)
            data = {"runId": run_id, "question": question}
            self._pubsub.publish(chat_topic(chat_id), type="turn", data=data, run_id=run_id)
            threading.Thread(
                target=self._write, args=(run, lease, stop, turn, turns), name=f"answer-{run_id}", daemon=True
            ).start()
            undo.pop_all()
        return chat_id, turn

    def _write(self, run: Run, lease: HeldLease, stop: threading.Event, turn: Turn, turns: Sequence[Turn]) -> None:
        try:
            with lease, run:
                run.on_abort(stop.set)
                try:
                    self._agent.answer(run, turn.question, self._history(turns), stop)
                except StoppedError:
                    run.abort()
        except Exception as error:  # the run has it as its end; the log has the traceback
            self._pubsub.logger.error("the answer %s has failed", turn.run_id, exc_info=error)
        finally:
            self._answers.end(turn.run_id)

    def _history(self, turns: Sequence[Turn]) -> list[Exchange]:
        return [Exchange(turn.question, self._text(turn)) for turn in turns[-_REMEMBERED:]]

    def _text(self, turn: Turn) -> str:
        with suppress(S2PubSubError), self._runs.observe(turn.run_id, idle_timeout=1.0) as observation:
            return observation.result().text
        return ""

    def _end_interrupted(self, turn: Turn) -> None:
        """End the run of a process that was killed. Whoever holds the lease may: nobody else writes."""
        if self._runs.status(turn.run_id) == "running":
            with suppress(S2PubSubError):
                self._runs.attach(turn.run_id).finish("error")

    def turns(self, chat_id: str) -> list[Turn]:
        """What was asked so far; empty if there is no such conversation. Creates nothing."""
        try:
            stream_name(chat_topic(chat_id), "")
        except ValueError:  # from an address may come anything
            return []
        if not self._pubsub.exists(chat_topic(chat_id)):
            return []
        return [
            Turn(event.data["runId"], event.data["question"])
            for event in self._pubsub.iter_history(chat_topic(chat_id))
            if event.type == "turn"
        ]

    def find(self, chat_id: str) -> list[Turn]:
        """The turns of a conversation of which at least one answer is still there.

        Raises:
            UnknownError: there is no such conversation, or all its answers were cleaned up; then it goes, too.
        """
        turns = self.turns(chat_id)
        if any(self._runs.exists(turn.run_id) for turn in reversed(turns)):
            return turns
        if turns and self._runs.active_run(_key(chat_id)) is None:
            for topic in (chat_topic(chat_id), self._pubsub.leases.thread_topic(_key(chat_id))):
                self._pubsub.clear_topic(topic, end_observers=False)
        raise UnknownError(chat_id)

    def has(self, chat_id: str, run_id: str) -> bool:
        """Whether the run is an answer of the conversation."""
        return any(turn.run_id == run_id for turn in self.turns(chat_id))

    def is_written(self, chat_id: str, run_id: str) -> bool:
        """Whether a living process writes the answer."""
        return self._runs.active_run(_key(chat_id)) == run_id


class Answers:
    """The answers that this process is writing, so that it can end them when it stops. Thread-safe."""

    def __init__(self, limit: int = MAX_ANSWERS) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._stops: dict[str, threading.Event] = {}

    def begin(self, run_id: str) -> threading.Event:
        """Take a place; return what says that the answer shall end. BusyError when all are taken."""
        with self._changed:
            if len(self._stops) >= self._limit:
                raise BusyError
            return self._stops.setdefault(run_id, threading.Event())

    def end(self, run_id: str) -> None:
        """Give the place back."""
        with self._changed:
            self._stops.pop(run_id, None)
            self._changed.notify_all()

    def stop(self, timeout: float = 5.0) -> None:
        """End all answers, and wait for them."""
        with self._changed:
            for stop in self._stops.values():
                stop.set()
            self._changed.wait_for(lambda: not self._stops, timeout)


def chat_topic(chat_id: str) -> str:
    """The topic of a conversation."""
    return f"agent.demo.chat.{chat_id}"


def _key(chat_id: str) -> str:
    return thread_key("demo", chat_id)
