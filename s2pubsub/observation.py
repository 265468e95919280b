"""Reading a run: its events from an offset, live, up to and including the one that ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, Self

import attrs

from s2pubsub.chunks import delta_text, finish_reason, is_end, join_text
from s2pubsub.errors import ClosedError, OperationTimeoutError, RunIdleError
from s2pubsub.event import Event
from s2pubsub.runtime.closing import Closing
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.subscription import Subscription

End = Literal["finish", "error", "abort", "suspended"]


@attrs.frozen(kw_only=True)
class RunResult:
    """What became of a run.

    Attributes:
        end: the type of the event that ended it; ``"suspended"`` where the observer stopped at a suspension.
        finish_reason: ``"stop"``, ``"abort"``, ``"error"``…; None unless ``end`` is ``"finish"``.
        text: the answer; pieces that were split inside a character are repaired.
        usage: token counts as the run reported them.
        steps: the steps as the run reported them.
        error: name and message of a failure, None where there was none.
    """

    run_id: str
    end: End
    finish_reason: str | None = None
    text: str = ""
    usage: dict[str, Any] = attrs.field(factory=dict)
    steps: list[Any] = attrs.field(factory=list)
    error: dict[str, Any] | None = None


class Observation(Closing, Iterator[Event]):
    """An iterator over a run's events that ends after its end event. Made by ``Runs.observe``; one thread at a time.

    Attributes:
        run_id: the run.
        end: how it ended, None while it goes on.
    """

    def __init__(
        self,
        run_id: str,
        subscription: Subscription | None,
        *,
        idle_timeout: float | None,
        is_alive: Callable[[], bool] | None,
        stop_on_suspend: bool,
        offset: int,
        last: Event | None = None,
    ) -> None:
        self.run_id = run_id
        self.end: End | None = None
        self._subscription = subscription
        self._idle_timeout = idle_timeout
        self._is_alive = is_alive
        self._stop_on_suspend = stop_on_suspend
        self._texts: list[str] = []
        self._whole = offset == 0  # the text pieces alone give the answer
        self._error: dict[str, Any] | None = None
        self._last: Event | None = None
        self._next_index = offset
        self._waited = 0.0  # seconds spent waiting since the last event, over several calls of get
        if last is not None:  # the offset is behind the end of the run: there is nothing to wait for
            self._note(last)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        if self.end is not None or self._subscription is None:
            raise StopIteration
        try:
            return self.get(None)
        except ClosedError:
            raise StopIteration from None

    def get(self, timeout: float | None = None) -> Event:
        """The next event, waiting up to ``timeout`` seconds.

        Raises:
            OperationTimeoutError: a ``TimeoutError``; nothing came in time. The observation goes on.
            RunIdleError: the run was silent for longer than ``idle_timeout`` and is not known to be alive.
            ClosedError: the run has ended, or the observation was closed.
            TopicGoneError: the run was deleted while it was read.
        """
        if self.end is not None or self._subscription is None:
            raise ClosedError(f"run {self.run_id!r} has ended, or its observation was closed")
        deadline = Deadline.after(timeout)
        while True:
            began = time.monotonic()
            try:
                event = self._subscription.get(self._patience(deadline))
            except OperationTimeoutError:
                self._waited += time.monotonic() - began
                if self._idle():
                    if self._is_alive is None or not self._is_alive():
                        self.close()
                        raise RunIdleError(
                            self.run_id,
                            f"has been silent for {self._idle_timeout} s; its producer is not known to be alive",
                        ) from None
                    self._waited = 0.0
                elif deadline.expired:
                    raise
                continue
            self._waited = 0.0
            self._note(event)
            return event

    def _patience(self, deadline: Deadline) -> float | None:
        if self._idle_timeout is None:
            return deadline.remaining()
        return deadline.remaining_at_most(max(0.0, self._idle_timeout - self._waited))

    def _idle(self) -> bool:
        return self._idle_timeout is not None and self._waited >= self._idle_timeout

    def _note(self, event: Event) -> None:
        self._next_index = (event.index or 0) + 1
        text = delta_text(event)
        if text is not None:
            self._texts.append(text)
        elif event.type == "chunk" and isinstance(event.data, dict) and event.data.get("type") == "error":
            self._note_error(event.data.get("payload"))
        elif event.type == "error":
            self._note_error(event.data)
        if is_end(event) or (self._stop_on_suspend and event.type == "suspended"):
            self._last = event
            self.end = event.type  # type: ignore[assignment]
            self.close()

    def _note_error(self, holder: Any) -> None:
        error = holder.get("error") if isinstance(holder, dict) else None
        self._error = error if isinstance(error, dict) else {"message": "unknown error"}

    @property
    def next_index(self) -> int:
        """Index of the run's next event: where another observation goes on."""
        return self._next_index

    def result(self) -> RunResult:
        """Read on to the end and return what became of the run.

        Raises:
            ClosedError: the observation was closed before the end.
            S2PubSubError: as for ``get``.
        """
        while self.end is None:
            self.get(None)
        last = self._last
        data = last.data if last is not None and isinstance(last.data, dict) else {}
        output = data.get("output")
        output = output if isinstance(output, dict) else {}
        usage, steps = output.get("usage"), output.get("steps")
        text = join_text(self._texts)
        if not self._whole and isinstance(output.get("text"), str):
            text = join_text([output["text"]])
        return RunResult(
            run_id=self.run_id,
            end=self.end,
            finish_reason=finish_reason(last) if last is not None and last.type == "finish" else None,
            text=text,
            usage=usage if isinstance(usage, dict) else {},
            steps=steps if isinstance(steps, list) else [],
            error=self._error,
        )

    @property
    def closed(self) -> bool:
        """Whether nothing more will come."""
        return self._subscription is None or self._subscription.closed

    def close(self, timeout: float | None = 5.0) -> None:
        """Stop observing; the run goes on. Idempotent, from any thread."""
        if self._subscription is not None:
            self._subscription.close(timeout)

    def stop(self) -> None:
        """``close()`` without waiting."""
        if self._subscription is not None:
            self._subscription.stop()

    def __repr__(self) -> str:
        return f"<Observation of run {self.run_id!r}, {self.end or 'going on'}, next index {self.next_index}>"
