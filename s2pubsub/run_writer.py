"""Writing a run: events in order, exactly once, and exactly one end.

A run's topic has one writer. Its events go through an exactly-once publisher, so that a lost acknowledgement neither
loses nor doubles one, and a second writer is found out. Writing costs the caller no round trip; ``finish``, ``error``,
``abort`` and ``suspend`` return when everything is stored.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from s2pubsub import chunks, tracing
from s2pubsub.errors import EncodeError, RunEndedError
from s2pubsub.event import Event
from s2pubsub.runtime.deadline import Deadline

if TYPE_CHECKING:
    from concurrent.futures import Future

    from s2pubsub.abort import AbortWatch
    from s2pubsub.publisher import Publisher

CUT_TEXT = 100_000
"""Characters that are left of the text in an end event that would not fit a record: at most six bytes each."""

_STOPPED = "stopped: the writer was closed before its end"


class Run:
    """A run being written. Made by ``Runs.start`` and ``Runs.attach``; thread-safe.

    A context manager that always writes an end: ``finish`` when the block ends, ``error`` when it raises, ``abort``
    when it was asked to abort meanwhile. After ``suspend()`` the block may end without one: the run goes on later.

    Attributes:
        id: the run id.
        topic: the run's topic.
        agent_id: name of the agent in the events.
    """

    def __init__(
        self,
        run_id: str,
        topic: str,
        agent_id: str,
        publisher: Publisher,
        watch: AbortWatch,
        on_end: Callable[[Run], None],
        *,
        text: str = "",
    ) -> None:
        self.id = run_id
        self.topic = topic
        self.agent_id = agent_id
        self._publisher = publisher
        self._watch = watch
        self._on_end = on_end
        self._lock = threading.RLock()
        self._ended = False
        self._suspended = False
        self._open_text: str | None = None  # id of the text part that is open
        self._texts = [text] if text else []
        self._steps: list[dict[str, Any]] = []
        self._step = _Step()
        self._work: tracing.Work | None = None

    def trace(self, work: tracing.Work) -> None:
        """Let the run's events carry ``work``, which ends with it."""
        self._work = work
        self._publisher.carry(work)

    # -- events --------------------------------------------------------------------------------------------------

    def event(self, type: str, data: Any, *, unchecked: bool = False) -> Future[Event]:
        """Write a raw event; return the future of its stored form.

        It is checked against what TypeScript readers need; ``unchecked=True`` leaves that out, on purpose.

        Raises:
            EncodeError: the data is not strict JSON, too large, or readers would hang on it.
            RunEndedError: the run has ended.
        """
        if not unchecked:
            chunks.check(type, data)
        if type in chunks.END_TYPES:
            raise EncodeError("type", f"{type!r} ends the run: use finish(), error() or abort()")
        return self._write_chunk(data) if type == "chunk" else self._write(type, data)

    def chunk(self, type: str, payload: Mapping[str, Any] | None = None, **more: Any) -> Future[Event]:
        """Write a chunk of any type: ``run.chunk("source", {"id": "1", …})``. An open text part is ended before it."""
        data = {**chunks.chunk(self.id, type, payload or {}), **more}
        chunks.check("chunk", data)
        return self._write_chunk(data)

    def data(self, name: str, value: Any, *, id: str | None = None, transient: bool | None = None) -> Future[Event]:
        """Write an application's own part ``data-<name>``. It may stand inside a text."""
        return self._write("chunk", chunks.data_chunk(name, value, id=id, transient=transient))

    def text(self, text: str) -> Future[Event]:
        """Write a piece of the answer. The text part around the pieces is opened and ended as needed."""
        if not isinstance(text, str):
            raise EncodeError("text", f"must be a str, not {type(text).__name__}")
        with self._lock:
            if self._open_text is None:
                opened = str(uuid.uuid4())
                self._write("chunk", chunks.chunk(self.id, "text-start", {"id": opened}))
                self._open_text = opened
            payload = {"id": self._open_text, "text": text}
            return self._write_delta(chunks.chunk(self.id, "text-delta", payload), text)

    def _write_chunk(self, data: Any) -> Future[Event]:
        """Write a chunk: a text part of ours ends before it, unless it is an application's own; its text counts."""
        with self._lock:
            if not str(data["type"] if isinstance(data, dict) and "type" in data else "").startswith("data-"):
                self._end_text()
            text = chunks.text_of(data)
            return self._write("chunk", data) if text is None else self._write_delta(data, text)

    def _write_delta(self, data: Any, text: str) -> Future[Event]:
        future = self._write("chunk", data)
        self._texts.append(text)
        self._step.texts.append(text)
        return future

    def tool_call(self, tool_call_id: str, tool_name: str, args: Any) -> Future[Event]:
        """Write that a tool is called."""
        call = {"toolCallId": tool_call_id, "toolName": tool_name, "args": args}
        with self._lock:
            future = self.chunk("tool-call", call)
            self._step.calls.append(call)
            return future

    def tool_result(self, tool_call_id: str, tool_name: str, args: Any, result: Any) -> Future[Event]:
        """Write what a tool returned."""
        done = {"toolCallId": tool_call_id, "toolName": tool_name, "args": args, "result": result}
        with self._lock:
            future = self.chunk("tool-result", done)
            self._step.results.append(done)
            return future

    def step_start(self, *, message_id: str | None = None) -> Future[Event]:
        """Begin a step: one call of the model and the tools that it asks for."""
        payload = {
            "stepId": str(uuid.uuid4()),
            "messageId": message_id or str(uuid.uuid4()),
            "request": {},
            "warnings": [],
        }
        with self._lock:
            self._end_text()
            self._step = _Step()
            return self._write("step-start", chunks.chunk(self.id, "step-start", payload))

    def step_finish(self, reason: str = "stop", *, usage: Mapping[str, Any] | None = None) -> Future[Event]:
        """End a step. ``reason="tool-calls"`` says that another one follows."""
        continued = reason == "tool-calls"
        with self._lock:
            self._end_text()
            step, self._step = self._step, _Step()
            text = chunks.join_text(step.texts)
            used = dict(usage or chunks.usage())
            payload = {
                "stepResult": {"reason": reason, "isContinued": continued},
                "output": {"usage": used},
                "metadata": {},
            }
            self._write("chunk", chunks.chunk(self.id, "step-finish", payload))
            self._steps.append(
                {
                    "text": text,
                    "toolCalls": step.calls,
                    "toolResults": step.results,
                    "usage": used,
                    "finishReason": reason,
                }
            )
            number = len(self._steps)
            done = {
                "iteration": number,
                "maxIterations": number,
                "text": text,
                "toolCalls": step.calls,
                "toolResults": step.results,
                "isFinal": not continued,
                "finishReason": reason,
                "runId": self.id,
                "agentId": self.agent_id,
                "agentName": self.agent_id,
            }
            bare = {**done, "toolCalls": [], "toolResults": [], "truncated": ["toolCalls", "toolResults"]}
            cut = {**bare, "text": text[:CUT_TEXT], "truncated": ["toolCalls", "toolResults", "text"]}
            return self._write_what_fits("iteration-complete", done, bare, cut)

    def suspend(
        self,
        tool_call_id: str,
        tool_name: str,
        args: Any,
        *,
        kind: Literal["approval", "suspension"] = "approval",
        resume_schema: Mapping[str, Any] | None = None,
        suspend_payload: Any = None,
        timeout: float | None = 30.0,
    ) -> None:
        """Write that the run waits, for an approval or for data; return when it is stored. Later events resume it."""
        data = chunks.suspended(tool_call_id, tool_name, args, kind, resume_schema or _APPROVAL, suspend_payload)
        payload = {key: value for key, value in data.items() if key != "type"}
        with self._lock:
            self.chunk("tool-call-approval" if kind == "approval" else "tool-call-suspended", payload)
            self._write("suspended", data)
            self._suspended = True
        self._publisher.flush(timeout)

    def flush(self, timeout: float | None = 30.0) -> None:
        """Wait until everything written is stored; raise what prevented it."""
        self._publisher.flush(timeout)

    # -- the end -------------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether the end was written."""
        return self._ended

    def finish(
        self, reason: str = "stop", *, usage: Mapping[str, Any] | None = None, timeout: float | None = 30.0
    ) -> None:
        """End the run; return when the end is stored.

        An end that would not fit a record is cut down: first its steps, then its text; ``output.truncated`` says what.

        Raises:
            RunEndedError: it has ended already.
            S2PubSubError: the end could not be stored.
        """
        self._finish(reason, usage, None, timeout)

    def error(self, error: BaseException | str, *, timeout: float | None = 30.0) -> None:
        """End the run with a failure: an error chunk and a finish with reason ``error``; the text so far survives.

        Only the error's class and message are written, no traceback. See ``finish`` for what it raises.
        """
        name, message = ("Error", error) if isinstance(error, str) else (type(error).__name__, chunks.error_text(error))
        message = message[:CUT_TEXT].encode("utf-8", "replace").decode()
        self._finish("error", None, {"name": name, "message": message}, timeout)

    def abort(self, *, timeout: float | None = 30.0) -> None:
        """End the run because it was asked to: a finish with reason ``abort`` and the partial text."""
        self._finish("abort", None, None, timeout)

    def _finish(
        self,
        reason: str,
        usage: Mapping[str, Any] | None,
        error: Mapping[str, Any] | None,
        timeout: float | None,
    ) -> None:
        deadline = Deadline.after(timeout)
        with self._lock:
            if self._ended:
                raise RunEndedError(self.id, "has ended already")
            self._end_text()
            if error is not None:
                self._write("chunk", chunks.chunk(self.id, "error", {"error": dict(error)}))
            self._write_end(
                chunks.finish(
                    chunks.join_text(self._texts), reason, usage or chunks.total_usage(self._steps), self._steps
                )
            )
            self._ended = True
            if self._work is not None:
                self._work.note(outcome=reason)
        try:
            self._publisher.close(deadline.remaining())
        finally:
            self._watch.close(forget=True)
            self._on_end(self)

    def _write_end(self, data: dict[str, Any]) -> None:
        """Publish the finish event, cut down as far as a record's limits need it."""
        bare = {**data["output"], "steps": [], "truncated": ["steps"]}
        cut = {**bare, "text": bare["text"][:CUT_TEXT], "truncated": ["steps", "text"]}
        self._write_what_fits("finish", data, {**data, "output": bare}, {**data, "output": cut})

    def _write_what_fits(self, type: str, *versions: dict[str, Any]) -> Future[Event]:
        """Publish the first of ``versions`` that is stored: what was written in parts may not fit one event, by its
        size, by the number of its values, or since it lies one level deeper in it.
        """
        for version in versions[:-1]:
            try:
                return self._write(type, version)
            except EncodeError:
                pass
        return self._write(type, versions[-1])

    # -- abort requests ------------------------------------------------------------------------------------------

    @property
    def aborted(self) -> bool:
        """Whether somebody asked for the run to be aborted. The first look begins to listen; earlier requests count."""
        return self._watch.aborted

    def on_abort(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once, on a thread of the library, when an abort is asked for."""
        self._watch.call(callback)

    # -- life cycle ----------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = 5.0) -> None:
        """Let go of the run without an end if it is suspended; else end it as failed. Idempotent."""
        if self._ended:
            return
        if self._suspended:
            self._publisher.close(timeout)
            self._watch.close()
        else:
            self.error(_STOPPED, timeout=timeout)

    def hand_over(self, timeout: float | None = 30.0) -> None:
        """Let go of the run without an end, once everything is stored: another process goes on by ``Runs.attach``.

        Afterwards this one is done with it. A run that nobody goes on with ends for its observers by their
        ``idle_timeout``.

        Raises:
            RunEndedError: it has ended already.
            S2PubSubError: not everything could be stored.
        """
        with self._lock:
            if self._ended:
                raise RunEndedError(self.id, "has ended already")
            self._end_text()
            self._ended = True
        self._watch.close()
        self._publisher.close(timeout)

    def give_up(self) -> None:
        """Let go of the run without an end and without waiting for what is unacknowledged: its start has failed."""
        with self._lock:
            self._ended = True
        self._watch.close()
        self._publisher.close(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended:
            return
        if error is not None:
            try:
                self.error(error)
            except Exception as failure:  # noqa: BLE001  # the block's own error is the one to see
                error.add_note(f"the run's end could not be stored: {failure}")
        elif self._watch.aborted_already:
            self.abort()
        elif self._suspended:
            self.close()
        else:
            self.finish()

    def _write(self, type: str, data: Any) -> Future[Event]:
        with self._lock:
            if self._ended:
                raise RunEndedError(self.id, "has ended: nothing can be written to it")
            future = self._publisher.publish(type=type, data=data, run_id=self.id)
            self._suspended = False
            return future

    def _end_text(self) -> None:
        if self._open_text is not None:
            part, self._open_text = self._open_text, None
            self._write("chunk", chunks.chunk(self.id, "text-end", {"id": part}))

    def __repr__(self) -> str:
        state = "ended" if self._ended else "suspended" if self._suspended else "going on"
        return f"<Run {self.id!r}, {state}>"


class _Step:
    """What the current step has said so far."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.results: list[dict[str, Any]] = []


_APPROVAL = {"type": "object", "properties": {"approved": {"type": "boolean"}}, "required": ["approved"]}
