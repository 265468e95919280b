"""The two schedules: when readers and publishes try again, and what they raise in the end."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from typing import Any

import pytest
from tenacity import AsyncRetrying, RetryCallState, Retrying

from s2pubsub.errors import S2PubSubError, StoreError
from s2pubsub.retry import (
    MISSING_STREAM_TRIES,
    Interrupted,
    proves_nothing_stored,
    reconnecting,
    reopening,
    republishing,
)
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.worker import Stop
from tests.waiting import LONG

OUTAGE = StoreError("it is down", code="connection", status=None, kind="outage")


def not_stored(status: int, code: str, kind: Any = "outage") -> StoreError:
    error = StoreError(code, code=code, status=status, kind=kind)
    error.outcome = "not_stored"
    return error


def planned(stop: Stop, **state: int) -> list[float]:
    """The waits of a reader's schedule, which are seen and not waited for: ``stop`` is set."""
    waits: list[float] = []

    def note(state: RetryCallState) -> None:
        assert state.next_action is not None
        waits.append(state.next_action.sleep)

    stop.set()
    for attempt in reconnecting(stop, note):
        with attempt:
            if attempt.retry_state.attempt_number > 8:
                return waits
            raise Interrupted(OUTAGE)
    return waits


def wait_after(schedule: Retrying | AsyncRetrying, attempt: int) -> float:
    """How long a schedule waits after an attempt of this number that failed."""
    state = RetryCallState(schedule, None, (), {})
    state.attempt_number = attempt
    return schedule.wait(state)


def test_a_readers_waits() -> None:
    """C08: 0.25 s doubling up to 5 s, each with up to 0.25 s more at random."""
    for _ in range(20):
        waits = planned(Stop())
        for wait, base in zip(waits, (0.25, 0.5, 1, 2, 4, 5, 5, 5), strict=True):
            assert base <= wait <= base + 0.25
    assert len({round(wait, 6) for wait in [planned(Stop())[0] for _ in range(20)]}) > 10


def test_progress_begins_the_schedule_anew() -> None:
    """C08: with the attempt's number set to 1 the next wait is the first one again."""
    waits: list[float] = []
    stop = Stop()
    stop.set()

    def note(state: RetryCallState) -> None:
        assert state.next_action is not None
        waits.append(state.next_action.sleep)

    for attempt in reconnecting(stop, note):
        with attempt:
            if len(waits) == 8:
                break
            if len(waits) % 4 == 3:
                attempt.retry_state.attempt_number = 1
            raise Interrupted(OUTAGE)
    firsts = [waits[number] for number in (0, 3, 7)]
    assert all(wait <= 0.5 for wait in firsts)
    assert waits[2] >= 1
    assert waits[6] >= 2


def test_a_reader_never_gives_up_by_itself() -> None:
    """Design 4: without a deadline only ``stop``, success, or another error ends it."""
    stop = Stop()
    stop.set()
    tries = 0
    for attempt in reconnecting(stop, lambda _: None):
        with attempt:
            tries += 1
            if tries < 500:
                raise Interrupted(OUTAGE)
    assert tries == 500
    with pytest.raises(KeyError):
        for attempt in reconnecting(stop, lambda _: None):
            with attempt:
                raise KeyError("not ours to retry")


def test_stop_ends_a_wait() -> None:
    """The wait between two attempts ends with ``stop``; one more attempt sees it."""
    stop = Stop()
    seen: list[bool] = []

    def read() -> None:
        for attempt in reconnecting(stop, lambda _: None):
            with attempt:
                seen.append(stop.is_set())
                if stop.is_set():
                    return
                attempt.retry_state.attempt_number = 10  # a wait of 5 s
                raise Interrupted(OUTAGE)

    thread = threading.Thread(target=read)
    thread.start()
    started = time.monotonic()
    stop.set()
    thread.join(LONG)
    assert time.monotonic() - started < 1
    assert seen[-1]


def test_a_deadline_ends_it_with_the_last_interruption() -> None:
    """C71: near its deadline the waits become shorter, then the original error is raised, not tenacity's."""
    stop = Stop()
    tries = 0
    started = time.monotonic()
    with pytest.raises(Interrupted) as caught:
        for attempt in reconnecting(stop, lambda _: None, Deadline.after(1.0)):
            with attempt:
                tries += 1
                raise Interrupted(OUTAGE)
    assert 0.7 < time.monotonic() - started < 1.2
    assert caught.value.reason is OUTAGE
    assert 3 <= tries <= 8


def test_the_last_attempt_still_has_time() -> None:
    """C71: a wait takes at most half of what is left until the deadline."""
    for left in (0.5, 4.0):
        wait = wait_after(reconnecting(Stop(), lambda _: None, Deadline.after(left)), 20)
        assert left / 2 - 0.1 < wait <= left / 2


def test_a_publishers_waits() -> None:
    """C08: its session is reopened on the reader's schedule, for ever; another error ends it as it is."""
    for attempt, base in enumerate((0.25, 0.5, 1, 2, 4, 5, 5), start=1):
        waits = [wait_after(reopening(lambda _: None), attempt) for _ in range(50)]
        assert all(base <= wait <= base + 0.25 for wait in waits)
        assert max(waits) - min(waits) > 0.1

    async def reopen() -> None:
        async def no_wait(_: float) -> None:
            await asyncio.sleep(0)

        noted: list[int] = []
        schedule = reopening(lambda state: noted.append(state.attempt_number)).copy(sleep=no_wait)
        with pytest.raises(KeyError, match="not ours to retry"):
            async for attempt in schedule:
                with attempt:
                    if attempt.retry_state.attempt_number == 100:
                        raise KeyError("not ours to retry")
                    raise Interrupted(OUTAGE)
        assert noted == list(range(1, 100))

    asyncio.run(reopen())


def test_schedules_do_not_share_their_state() -> None:
    """C70: eight schedules at once on eight threads, each with its own numbers 1, 2, 3 and its own waits."""
    numbers: dict[int, list[int]] = {}
    waits: dict[int, list[float]] = {}
    barrier = threading.Barrier(8)

    def read(me: int) -> None:
        stop = Stop()
        stop.set()
        numbers[me], waits[me] = [], []

        def note(state: RetryCallState) -> None:
            assert state.next_action is not None
            waits[me].append(state.next_action.sleep)

        barrier.wait(LONG)
        for attempt in reconnecting(stop, note):
            with attempt:
                numbers[me].append(attempt.retry_state.attempt_number)
                if attempt.retry_state.attempt_number <= me + 3:
                    raise Interrupted(OUTAGE)

    threads = [threading.Thread(target=read, args=(me,)) for me in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert numbers == {me: list(range(1, me + 5)) for me in range(8)}
    for me in range(8):
        assert all(base <= wait <= base + 0.25 for wait, base in zip(waits[me], (0.25, 0.5, 1, 2, 4), strict=False))


async def publish(errors: list[StoreError], give_up: Any = lambda: False) -> int:
    tries = 0
    async for attempt in republishing(give_up):
        with attempt:
            tries += 1
            if tries <= len(errors):
                raise errors[tries - 1]
    return tries


def test_what_a_publish_tries_again() -> None:
    """Design 4: only what proves that nothing was stored and may pass: an outage, or a stream that is not there yet."""
    passing = [
        not_stored(429, "rate_limited"),
        not_stored(502, "hot_server"),
        not_stored(409, "transaction_conflict"),
        not_stored(409, "stream_deletion_pending", "gone"),
        not_stored(404, "stream_not_found", "gone"),
    ]
    for error in passing:
        assert proves_nothing_stored(error)
        assert asyncio.run(publish([error])) == 2
    ambiguous = StoreError("?", code="unavailable", status=503, kind="outage")
    ambiguous.outcome = "unknown"
    final = [
        ambiguous,
        OUTAGE,
        not_stored(403, "permission_denied", "refused"),
        not_stored(404, "basin_not_found", "refused"),
        not_stored(412, "condition", "condition"),
        not_stored(0, "connection", "name"),
    ]
    for error in final:
        assert not proves_nothing_stored(error)
        with pytest.raises(StoreError) as caught:
            asyncio.run(publish([error]))
        assert caught.value is error
    assert not proves_nothing_stored(ValueError())


def test_the_waits_of_a_publish() -> None:
    """Design 4: 0.05 s doubling to 1 s, each with up to 0.05 s more at random."""
    for attempt, base in enumerate((0.05, 0.1, 0.2, 0.4, 0.8, 1, 1, 1), start=1):
        waits = [wait_after(republishing(lambda: False), attempt) for _ in range(50)]
        assert all(base <= wait <= base + 0.05 for wait in waits)
        assert max(waits) - min(waits) > 0.02


def test_a_server_says_how_long_to_wait() -> None:
    """Design 4: a publish waits at least as long as the server asks for, and not less than its schedule says."""
    for asked, least, most in ((3.0, 3.0, 3.0), (0.0, 0.05, 0.1)):
        schedule = republishing(lambda: False)
        error = not_stored(429, "rate_limited")
        error.retry_after = asked
        state = RetryCallState(schedule, None, (), {})
        state.set_exception((StoreError, error, None))  # type: ignore[arg-type]  # the traceback is not looked at
        assert least <= schedule.wait(state) <= most


def test_a_missing_stream_is_tried_three_times() -> None:
    """Design 4: then the server's answer is raised; the other answers have no such limit."""
    missing = not_stored(404, "stream_not_found", "gone")
    assert asyncio.run(publish([missing] * (MISSING_STREAM_TRIES - 1))) == MISSING_STREAM_TRIES
    with pytest.raises(StoreError) as caught:
        asyncio.run(publish([missing] * MISSING_STREAM_TRIES))
    assert caught.value is missing
    assert asyncio.run(publish([not_stored(429, "rate_limited")] * 5)) == 6


def test_a_publish_gives_up_when_told() -> None:
    """C71: the last answer is raised as it is."""
    error = not_stored(429, "rate_limited")
    tries = iter([False, False, True])
    with pytest.raises(StoreError) as caught:
        asyncio.run(publish([error] * 100, lambda: next(tries)))
    assert caught.value is error


def test_publishes_retry_beside_each_other() -> None:
    """C70: four retrying publishes on one loop do not touch each other's numbers."""

    async def numbered(count: int) -> list[int]:
        numbers = []
        async for attempt in republishing(lambda: False):
            with attempt:
                numbers.append(attempt.retry_state.attempt_number)
                if len(numbers) < count:
                    raise not_stored(429, "rate_limited")
        return numbers

    async def main() -> list[list[int]]:
        return await asyncio.gather(*(numbered(count) for count in (1, 2, 3, 4)))

    assert contextvars.copy_context().run(asyncio.run, main()) == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]


def test_an_interruption_is_no_error_for_users() -> None:
    """What reaches a user is its reason; the signal itself is not one of the library's errors."""
    assert not issubclass(Interrupted, S2PubSubError)
    assert "it is down" in str(Interrupted(OUTAGE))
