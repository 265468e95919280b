"""Group commit: what is published on a topic while appends are in flight leaves together with the next one.

One append per event reaches 3,300 events/s with any number of threads, since each waits for the server's flush.
With up to four appends in flight and everything else in the next batch it is two to four times that, and a lone
publish leaves at once.

The interpreter is the bottleneck, so the I/O loop does next to nothing for one event: callers queue up in an outbox,
which wakes the loop when there are enough of them, and wait on a lock each, which the one before releases. While a
crowd is being released its next events wait for each other: an append takes as much of the interpreter as twenty
events, and where the server answers in a millisecond there would soon be one append for every few of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from s2pubsub.errors import ClosedError, OperationTimeoutError, S2PubSubError
from s2pubsub.retry import is_near, republishing
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.outbox import Outbox, fresh
from s2pubsub.runtime.wake import Wake
from s2pubsub.store.failures import classify

MAX_RECORDS = 1000
MAX_METERED_BYTES = 1024 * 1024
RECORD_OVERHEAD = 8
"""Metered bytes of a record without headers besides its body."""

MAX_IN_FLIGHT = 4

_SHARES = 3
"""A third of those who publish at once is enough for another append while some are in flight.

With less, appends would take more of the interpreter than the events in them; with more, too few would be in flight.
"""

_LINGER = 0.003
"""Seconds that less than a share waits for more."""

_ENOUGH = 128
"""So many are waited for while callers are being released; of a larger crowd the others come back meanwhile."""

_PATIENCE = 0.01
"""Seconds of that, since they may be held up by other work."""

_REMEMBERED = 0.98
"""What an append leaves of the largest number of callers before, since those who were just released will be back."""

_UNBOUNDED = 2**60

_KEPT_GROUPS = 256
"""So many streams' queues are kept although nothing is in them."""

Append = Callable[[list[bytes]], Awaitable[int]]
"""Appends bodies as one batch and returns the first one's sequence number; raises ours, with ``outcome``."""

Ready = Callable[[], Awaitable[object]]

Wakener = Callable[[Callable[[], object]], object]


def _closed() -> ClosedError:
    error = ClosedError("the client is closed")
    error.outcome = "not_stored"
    return error


def not_acknowledged(last: S2PubSubError | None, *, sent: bool) -> OperationTimeoutError:
    """The error for an append whose time is up; ``last`` is what an earlier attempt was answered."""
    reason = "" if last is None else f"; before, it was answered: {last}"
    error = OperationTimeoutError(f"not acknowledged within the timeout{reason}")
    error.outcome = "unknown" if sent else "not_stored"
    return error


class _Waiting:
    """A caller's event. Its state is changed under the group's lock."""

    __slots__ = (
        "behind",
        "body",
        "crowd",
        "deadline",
        "error",
        "last_error",
        "left",
        "sent",
        "seq_num",
        "settled",
        "thread",
    )

    def __init__(self, body: bytes, deadline: Deadline) -> None:
        self.body = body
        self.deadline = deadline
        self.settled = Wake()
        self.behind: _Waiting | None = None  # whom its caller wakes
        self.crowd = 0  # of how many its caller is the last to be woken
        self.thread = threading.get_ident()
        self.seq_num: int | None = None
        self.error: S2PubSubError | None = None
        self.last_error: S2PubSubError | None = None
        self.left = False  # its caller does not wait any more
        self.sent = False

    def settle(self, seq_num: int | None, error: S2PubSubError | None) -> None:
        self.seq_num, self.error = seq_num, error
        self.settled.set()


class GroupCommits:
    """The queues of all streams. ``commit`` is for any thread, ``close`` for the end of the loop.

    Args:
        append: like ``Append``, after the name of the stream.
        ready: returns when there is a client to append with.
        wake: has an action called on the loop; must not raise.
    """

    def __init__(self, append: Callable[[str, list[bytes]], Awaitable[int]], ready: Ready, wake: Wakener) -> None:
        self._append = append
        self._ready = ready
        self._wake = wake
        self._groups: dict[str, GroupCommit] = {}
        self._closed = False
        self._lock = threading.RLock()  # reentrant, since a signal handler or a finalizer may publish

    def commit(self, stream: str, body: bytes, deadline: Deadline) -> int:
        """Append ``body`` with the stream's next batch; see ``GroupCommit.finish``."""
        with self._lock:  # which keeps `close` and the forgetting of idle groups apart from `begin`
            group = self._groups.get(stream) or self._new_group(stream)
            item = group.begin(body, deadline)
        return group.finish(item)

    def _new_group(self, stream: str) -> GroupCommit:
        if self._closed:
            raise _closed()
        if len(self._groups) >= _KEPT_GROUPS:
            self._groups = {name: group for name, group in self._groups.items() if not group.idle}
        group = self._groups[stream] = GroupCommit(lambda bodies: self._append(stream, bodies), self._ready, self._wake)
        return group

    def forget(self, stream: str) -> None:
        """The stream is deleted: its queue goes, too, unless something is in it."""
        with self._lock:
            group = self._groups.get(stream)
            if group is not None and group.idle:
                del self._groups[stream]

    def close(self) -> None:
        """The loop is ending: nothing more is taken."""
        with self._lock:
            self._closed = True
            for group in self._groups.values():
                group.close()


class GroupCommit:
    """The queue of events to append to one stream. ``commit`` is for any thread, the rest runs on the I/O loop.

    Args:
        append: see ``Append``.
        ready: see ``GroupCommits``.
        wake: has an action called on the loop; must not raise.
    """

    def __init__(self, append: Append, ready: Ready, wake: Wakener) -> None:
        self._append = append
        self._ready = ready
        self._outbox: Outbox[_Waiting] = Outbox(_UNBOUNDED, _UNBOUNDED)
        self._outbox.wake = lambda: wake(self.pump)
        self._lock = threading.Lock()
        self._crowd = 0.0  # how many publish at once
        self._coming = 0  # crowds whose callers are being released
        self._share = 1  # so many are waited for; if more than one, then not for longer than the timer
        self._timer: asyncio.TimerHandle | None = None
        self._sending: dict[asyncio.Task[None], list[_Waiting]] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or in flight."""
        return not self._outbox.unfinished

    # -- a caller's thread ---------------------------------------------------------------------------------------

    def begin(self, body: bytes, deadline: Deadline) -> _Waiting:
        """Queue ``body``; ``finish`` waits for what becomes of it, up to ``deadline``."""
        item = _Waiting(body, deadline)
        self._outbox.put(item, len(body) + RECORD_OVERHEAD, None)
        return item

    def finish(self, item: _Waiting) -> int:
        """The sequence number of what was begun.

        Raises:
            OperationTimeoutError: its deadline has passed, and it has left the batch: ``outcome='not_stored'`` when it
                was not yet sent, else ``'unknown'``. A last failure which proves that nothing was stored is raised.
            S2PubSubError: the append failed.
        """
        settled = False
        try:
            settled = item.settled.wait(item.deadline.remaining())
        finally:
            if not settled:  # also when Ctrl-C or a signal handler's exception ends the wait
                self._leave(item)
            if item.behind is not None:
                item.behind.settled.set()
            elif item.crowd:
                self._all_released(item.crowd)
        if item.error is not None:
            raise item.error
        if item.seq_num is not None:
            return item.seq_num
        last = item.last_error
        if last is not None and not item.sent:
            raise fresh(last) from last.__cause__
        raise not_acknowledged(last, sent=item.sent) from last

    def _leave(self, item: _Waiting) -> None:
        with self._lock:
            item.left = True
        self._outbox.withdraw(item)

    def _all_released(self, crowd: int) -> None:
        """The last caller of a crowd is on its way, and what the others have published meanwhile has waited enough."""
        with self._lock:
            self._coming -= 1
            if self._coming:
                return
        if 0 < self._outbox.queued < crowd / 2:  # the others do not come back at once
            self._outbox.wake()
        else:
            self._outbox.expect_one()  # the next event of this caller, most likely

    # -- the I/O loop --------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send what has queued, as far as the limit of appends in flight allows."""
        while len(self._sending) < MAX_IN_FLIGHT and (batch := self._take()):
            self._begin_append(batch)
        if self._share > 1 and self._timer is None and len(self._sending) < MAX_IN_FLIGHT:
            wait = _PATIENCE if self._coming else _LINGER
            self._timer = asyncio.get_running_loop().call_later(wait, self._send_rest)

    def _send_rest(self) -> None:
        """Send what is less than a share, instead of letting it wait for an acknowledgement."""
        self._timer = None
        if len(self._sending) < MAX_IN_FLIGHT and (batch := self._outbox.take(MAX_RECORDS, MAX_METERED_BYTES)):
            self._begin_append(batch)
        self.pump()

    def _begin_append(self, batch: list[_Waiting]) -> None:
        task = asyncio.get_running_loop().create_task(self._send(batch))
        self._sending[task] = batch
        task.add_done_callback(self._sent)

    def _take(self) -> list[_Waiting]:
        # A lone event leaves at once. Of many callers each append takes its share: were the first few to come back to
        # use up all that may be in flight, the others would wait for a whole flush of the server. A crowd that
        # is on its way back is worth waiting for.
        self._crowd = max(self._outbox.unfinished, self._crowd * _REMEMBERED)
        share = 1.0
        if self._coming and self._crowd > _SHARES:
            share = min(self._crowd, _ENOUGH, self._outbox.fitting(MAX_METERED_BYTES))
        elif self._sending:
            share = self._crowd / _SHARES
        self._share = max(1, int(share))
        return self._outbox.take(MAX_RECORDS, MAX_METERED_BYTES, self._share)

    def close(self) -> None:
        """The loop is ending: nothing more is taken."""
        for item in self._outbox.refuse(_closed()):
            item.settle(None, _closed())
        for batch in self._sending.values():  # they were cancelled before, and do not end
            self._end(batch)

    def _sent(self, task: asyncio.Task[None]) -> None:
        # Not at the end of the coroutine, which is never entered when it is cancelled before its first step.
        batch = self._sending.pop(task)
        if task.cancelled():
            self._end(batch)
        self._outbox.complete(len(batch), sum(len(item.body) + RECORD_OVERHEAD for item in batch))
        self.pump()

    async def _send(self, batch: list[_Waiting]) -> None:
        try:
            try:
                await self._try(batch)
            except S2PubSubError as failure:
                await self._try_again(batch, failure)
        except Exception as error:  # noqa: BLE001  # whatever it is, each caller of the batch gets one of its own
            self._fail(batch, classify(error, "append"))

    async def _try_again(self, batch: list[_Waiting], failure: S2PubSubError) -> None:
        # The first attempt needs no schedule, which takes a tenth of the time of an append.
        async for attempt in republishing(lambda: all(item.left for item in batch)):
            with attempt:
                if attempt.retry_state.attempt_number == 1:
                    raise failure
                await self._try(batch)

    def _end(self, batch: list[_Waiting]) -> None:
        """Release the callers of a batch that closing has ended."""
        closed = ClosedError("the client was closed during the call")
        for item in batch:
            closed.outcome = "unknown" if item.sent else "not_stored"
            self._fail([item], closed)

    def _fail(self, batch: list[_Waiting], error: S2PubSubError) -> None:
        for item in batch:
            if item.seq_num is None:
                item.settle(None, fresh(error))

    async def _try(self, batch: list[_Waiting]) -> None:
        waiting = batch
        try:
            await self._ready()
            waiting = self._begin_sending(batch)  # now, since what leaves while the client is made shall not be sent
            if not waiting:
                return
            first = await self._append([item.body for item in waiting])
        except S2PubSubError as error:
            with self._lock:
                for item in waiting:
                    item.last_error = error
                    item.sent = error.outcome != "not_stored"
            raise
        self._settle(waiting, first)

    def _settle(self, stored: list[_Waiting], first: int) -> None:
        """Release the callers, each by the one before it: woken all at once they would fight for the interpreter."""
        woken: list[_Waiting] = []
        ahead: _Waiting | None = None
        crowd = 0
        # A signal handler, which runs on the main thread, may wait for the others: they must not wait for that thread.
        main = threading.main_thread().ident
        with self._lock:
            for seq_num, item in enumerate(stored, first):
                item.seq_num = seq_num
                if item.left:
                    continue
                if ahead is None or item.thread == main:
                    woken.append(item)
                else:
                    ahead.behind = item
                if item.thread != main:
                    ahead = item
                    crowd += 1
            if ahead is not None and crowd > _SHARES:
                ahead.crowd = crowd
                self._coming += 1
                if self._timer is not None:  # it was set for less
                    self._timer.cancel()
                    self._timer = None
        for item in woken:
            item.settled.set()

    def _begin_sending(self, batch: list[_Waiting]) -> list[_Waiting]:
        """Those of ``batch`` that are waited for and have time for an answer; others learn why they are not stored."""
        with self._lock:
            for item in batch:
                if item.last_error is not None and is_near(item.deadline) and not item.left:
                    item.left = True
                    item.settle(None, fresh(item.last_error))
            waiting = [item for item in batch if not item.left]
            for item in waiting:
                item.sent = True
        return waiting
