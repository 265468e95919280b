"""Durable runs: an agent's work as a log that outlives the request which started it.

A run is the topic ``agent.stream.<runId>`` with Mastra's events in it, readable by TypeScript programs and the other
way round. One writer (``Run``), any number of observers (``Observation``), from any process.

Only the writer cleans up: ``cleanup_timeout`` seconds after the end it deletes the run's topics. Observers never do.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from s2pubsub import chunks, tracing
from s2pubsub.abort import ABORT_REQUEST, AbortWatch
from s2pubsub.errors import (
    ClosedError,
    ReplayGapError,
    RunEndedError,
    RunExistsError,
    RunNotFoundError,
    S2PubSubError,
    StoreError,
)
from s2pubsub.event import Event
from s2pubsub.observation import Observation, RunResult
from s2pubsub.run_writer import Run
from s2pubsub.runtime.closing import Closing
from s2pubsub.runtime.deadline import Deadline, check_timeout
from s2pubsub.runtime.timer import Timer
from s2pubsub.runtime.worker import Worker
from s2pubsub.topic import control_topic, run_topic, thread_name

if TYPE_CHECKING:
    from s2pubsub.client import S2PubSub

__all__ = ["Observation", "Run", "RunResult", "RunStatus", "Runs"]

RunStatus = Literal["running", "suspended", "finished", "failed", "aborted", "gone"]

Adapter = Callable[[Any], str | Mapping[str, Any] | None]
"""Turns one item of a model's stream into text, a raw chunk, or None to leave it out."""

_LOOK_AGAIN = 0.1
"""Seconds between two looks for a run that has not started yet; doubles up to a second."""


class Runs(Closing):
    """Starts, finds and observes runs on one ``S2PubSub``, which stays the caller's to close. Thread-safe.

    Args:
        pubsub: the client.
        cleanup_timeout: seconds after a run's end at which its writer deletes it; 0 keeps it. What is pending when the
            process ends is dropped: give ``S2PubSub`` a ``run_config`` with a retention to catch that.
        agent_id: name of the agent in the events.
    """

    def __init__(self, pubsub: S2PubSub, cleanup_timeout: float = 30.0, *, agent_id: str = "s2pubsub") -> None:
        check_timeout(cleanup_timeout, "cleanup_timeout")
        self.pubsub = pubsub
        self.agent_id = agent_id
        self._cleanup_timeout = cleanup_timeout
        self._timer = Timer(pubsub.logger)
        pubsub.close_with(self)

    # -- writing -------------------------------------------------------------------------------------------------

    def start(self, run_id: str | None = None, *, message_id: str | None = None, timeout: float | None = 30.0) -> Run:
        """Begin a run; its ``start`` chunk is stored when this returns.

        Args:
            run_id: free text without NUL; None makes a UUID.
            message_id: id of the message that the run writes; None makes a UUID.
            timeout: seconds for storing the first event.

        Raises:
            RunExistsError: a run with this id has begun already.
        """
        run_id = str(uuid.uuid4()) if run_id is None else run_id
        run = self._open(run_id, first_index=0)
        payload = {"id": self.agent_id, "messageId": message_id or str(uuid.uuid4())}
        try:
            run.chunk("start", payload)
            run.flush(timeout)
        except StoreError as error:
            self._let_go(run)
            if error.code == "second_writer":
                raise RunExistsError(run_id, "exists already") from error
            raise
        except BaseException:
            self._let_go(run)
            raise
        return run

    def attach(self, run_id: str, *, timeout: float | None = 30.0) -> Run:
        """Go on writing a run that another process started, or that was suspended.

        A second writer that is attached at the same time is found out: its next event raises ``StoreError``.

        Raises:
            RunNotFoundError: it does not exist.
            RunEndedError: it has ended.
        """
        deadline = Deadline.after(timeout)
        if not self.exists(run_id, timeout=deadline.remaining()):
            raise RunNotFoundError(run_id, "does not exist")
        texts: list[str] = []
        index = 0
        for event in self.pubsub.iter_history(run_topic(run_id), timeout=deadline.remaining()):
            index = (event.index or 0) + 1
            if chunks.is_end(event):
                raise RunEndedError(run_id, "has ended already")
            if (text := chunks.delta_text(event)) is not None:
                texts.append(text)
        return self._open(run_id, first_index=index, text=chunks.join_text(texts))

    def run(
        self,
        items: Iterable[Any],
        *,
        run_id: str | None = None,
        adapter: Adapter | None = None,
        background: bool = False,
        timeout: float | None = 30.0,
    ) -> Run:
        """Write a plain iterator as a run: strings are text, mappings raw chunks, other objects go through ``adapter``.

        An abort request ends the iteration; a generator is closed. An error of the iterator ends the run as failed and,
        unless in the background, is raised.

        Args:
            items: the iterator.
            run_id: as for ``start``.
            adapter: turns an item into text, a chunk or None.
            background: return at once and iterate on a thread of its own, ``s2pubsub-run-<id>``.
            timeout: seconds for storing the first event and the end.

        Returns:
            The run, ended unless ``background``.
        """
        run = self.start(run_id, timeout=timeout)
        if background:
            try:
                Worker(thread_name("run", run.id), self._write_quietly, run, items, adapter).start()
            except ClosedError as error:
                with contextlib.suppress(S2PubSubError):
                    run.error(error)
                raise
        else:
            write_items(run, items, adapter)
        return run

    def _write_quietly(self, run: Run, items: Iterable[Any], adapter: Adapter | None) -> None:
        try:
            write_items(run, items, adapter)
        except BaseException as error:  # the run has it as its end; the log has the traceback
            self.pubsub.logger.error("run %r has failed", run.id, exc_info=error)

    def _open(self, run_id: str, *, first_index: int, text: str = "") -> Run:
        topic = run_topic(run_id)
        publisher = self.pubsub.publisher(topic, exactly_once=True, first_index=first_index)
        watch = AbortWatch(self.pubsub, run_id, self.pubsub.logger)
        run = Run(run_id, topic, self.agent_id, publisher, watch, self._clean_up_later, text=text)
        if (tracer := tracing.tracer) is not None:
            run.trace(tracer.run(run_id, self.agent_id))
        return run

    def _let_go(self, run: Run) -> None:
        with contextlib.suppress(S2PubSubError):
            run.give_up()

    # -- reading -------------------------------------------------------------------------------------------------

    def observe(
        self,
        run_id: str,
        offset: int = 0,
        *,
        wait_for_start: float | None = 0,
        idle_timeout: float | None = None,
        is_alive: Callable[[], bool] | None = None,
        stop_on_suspend: bool = False,
        timeout: float | None = 30.0,
    ) -> Observation:
        """Replay a run from index ``offset`` and follow it to its end.

        Args:
            run_id: the run.
            offset: index of the first event; behind the end of an ended run, the observation is over at once.
            wait_for_start: seconds to wait for a run that does not exist yet; None for no limit.
            idle_timeout: seconds of silence after which ``RunIdleError`` is raised; None waits for ever.
            is_alive: asked after each such silence; True goes on waiting.
            stop_on_suspend: end after a ``suspended`` event as well.
            timeout: seconds to reach the server.

        Raises:
            RunNotFoundError: it does not exist; nothing was created by asking.
        """
        check_timeout(idle_timeout, "idle_timeout")
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise TypeError(f"offset must be an int, not {offset!r}")
        self._wait_for_start(run_id, Deadline.after(wait_for_start), timeout)
        offset = max(0, offset)
        last = self._end_before(run_id, offset, timeout) if offset > 0 else None
        subscription: Any = None
        if last is None:
            subscription = self.pubsub.subscribe_from_offset(run_topic(run_id), offset, timeout=timeout)
            if not subscription.replaying:
                self._check_still_there(run_id, subscription, timeout)
        return Observation(
            run_id,
            subscription,
            idle_timeout=idle_timeout,
            is_alive=is_alive,
            stop_on_suspend=stop_on_suspend,
            offset=offset,
            last=last,
        )

    def _wait_for_start(self, run_id: str, deadline: Deadline, timeout: float | None) -> None:
        pause = _LOOK_AGAIN
        while not self.exists(run_id, timeout=timeout):
            if deadline.expired or self.pubsub.wait_closed(deadline.remaining_at_most(pause)):
                raise RunNotFoundError(run_id, "does not exist")
            pause = min(1.0, pause * 2)

    def _check_still_there(self, run_id: str, subscription: Any, timeout: float | None) -> None:
        """Raise if the run was deleted between the look-up and the subscription, which would wait for it for ever."""
        try:
            if self.pubsub.tail(run_topic(run_id), timeout=timeout) == 0:
                raise RunNotFoundError(run_id, "was deleted just now")
        except BaseException:
            subscription.close()
            raise

    def _end_before(self, run_id: str, offset: int, timeout: float | None) -> Event | None:
        """The run's end event if it stands before ``offset``."""
        last = self._last_event(run_id, timeout)
        return last if last is not None and chunks.is_end(last) and (last.index or 0) < offset else None

    def _last_event(self, run_id: str, timeout: float | None) -> Event | None:
        topic = run_topic(run_id)
        tail = self.pubsub.tail(topic, timeout=timeout)
        with contextlib.suppress(ReplayGapError):  # trimmed, which no writer of runs does
            for event in self.pubsub.iter_history(topic, max(0, tail - 1), timeout=timeout):
                return event
        return None

    def exists(self, run_id: str, *, timeout: float | None = 30.0) -> bool:
        """Whether the run has begun and was not deleted. Creates nothing.

        Its topic must be listed, and hold something: on a basin with create-on-read a reader makes an empty one.
        """
        topic = run_topic(run_id)
        return self.pubsub.exists(topic, timeout=timeout) and self.pubsub.tail(topic, timeout=timeout) > 0

    def status(self, run_id: str, *, timeout: float | None = 30.0) -> RunStatus:
        """How the run stands, from its last event alone; ``"gone"`` when it does not exist. Creates nothing.

        A run whose process was killed is still ``"running"``: see ``observe(idle_timeout=…)``.
        """
        if not self.exists(run_id, timeout=timeout):
            return "gone"
        last = self._last_event(run_id, timeout)
        if last is None:
            return "running"
        if last.type == "finish":
            reason = chunks.finish_reason(last)
            return "failed" if reason == "error" else "aborted" if reason == "abort" else "finished"
        states: dict[str, RunStatus] = {"error": "failed", "abort": "aborted", "suspended": "suspended"}
        return states.get(last.type, "running")

    def active_run(self, thread_key: str, *, timeout: float | None = 30.0) -> str | None:
        """Id of the run that holds the conversation's lease, None when no run does."""
        return self.pubsub.leases.get_lease_owner(thread_key, timeout=timeout)

    # -- control -------------------------------------------------------------------------------------------------

    def request_abort(self, run_id: str, *, timeout: float | None = 30.0) -> None:
        """Ask the run's writer, wherever it is, to abort. A request before the run listens counts, too.

        Raises:
            RunNotFoundError: it does not exist.
        """
        if not self.exists(run_id, timeout=timeout):
            raise RunNotFoundError(run_id, "does not exist")
        self.pubsub.publish(control_topic(run_id), type=ABORT_REQUEST, data={}, run_id=run_id, timeout=timeout)

    def delete(self, run_id: str, *, timeout: float | None = 30.0) -> None:
        """Delete the run's topics. Its observers get ``TopicGoneError``."""
        deadline = Deadline.after(timeout)
        for topic in (run_topic(run_id), control_topic(run_id)):
            self.pubsub.clear_topic(topic, strict=True, end_observers=False, timeout=deadline.remaining())

    def _clean_up_later(self, run: Run) -> None:
        if self._cleanup_timeout > 0:
            run_id = run.id  # the run with its text need not live as long as its clean-up is pending
            self._timer.after(self._cleanup_timeout, lambda: self.delete(run_id))

    @property
    def pending_cleanups(self) -> int:
        """How many ended runs wait for their deletion."""
        return len(self._timer)

    def close(self, timeout: float | None = 5.0) -> None:
        """Drop pending clean-ups. The client, which stays open, calls this when it is closed."""
        self._timer.close(Deadline.after(timeout))


def write_items(run: Run, items: Iterable[Any], adapter: Adapter | None = None) -> None:
    """Write every item to ``run`` and end it; an abort request ends it early."""
    iterator = iter(items)
    try:
        with run:
            for item in iterator:
                if run.aborted:
                    break
                _write_item(run, adapter(item) if adapter is not None else item)
            if run.aborted and not run.ended:
                run.abort()
    finally:
        close: Any = getattr(iterator, "close", None)
        if callable(close):
            close()


def _write_item(run: Run, item: Any) -> None:
    if item is None:
        return
    if isinstance(item, str):
        run.text(item)
    elif isinstance(item, Mapping):
        data = dict(item)
        if not str(data.get("type", "")).startswith("data-"):
            data = {"runId": run.id, "from": "AGENT", **data}
        run.event("chunk", data)
    else:
        raise TypeError(
            f"a run takes strings, chunks as mappings, or objects through adapter=; {type(item).__name__} is neither"
        )
