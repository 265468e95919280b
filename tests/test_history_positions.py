"""What a reader of history makes of each answer that a store can give: pages, sessions, gaps, ends, failures.

On a scripted store, as in ``test_positions``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from s2pubsub.errors import ClosedError, DecodeError, OperationTimeoutError, TopicGoneError
from s2pubsub.history import HistoryReader
from s2pubsub.runtime.worker import Stop
from s2pubsub.store import Batch, PastTailError
from tests.scripted import (
    ANOTHER,
    CANCELLED,
    COMMAND,
    NEVER,
    SAME,
    STREAM,
    TOPIC,
    ScriptedStore,
    batch,
    failure,
    gap,
    stored,
)

LOG = logging.getLogger("s2pubsub.test")


class Read:
    """A pass over a topic's history."""

    def __init__(
        self,
        *sessions: Any,
        tail: Any,
        pages: Sequence[Any] = (),
        offset: int = 0,
        found: Sequence[Any] = (SAME,),
        timeout: float | None = 20.0,
        stop: Stop | None = None,
    ) -> None:
        self.stop = stop = stop or Stop()
        self.store: Any = ScriptedStore(sessions, stop=Stop(), found=found, tail=tail, pages=pages)
        self.reader = HistoryReader(self.store, TOPIC, STREAM, offset, stop, timeout, LOG)
        self.indices: list[int | None] = []
        self.error: Exception | None = None
        try:
            for events in self.reader.batches():
                assert events
                self.indices += [event.index for event in events]
        except Exception as error:
            self.error = error


def span(start: int, end: int) -> list[Batch]:
    """A page."""
    return [batch(*range(start, end))]


def test_a_page() -> None:
    """A short history is one page, up to the tail of the call and no further."""
    one = Read(tail=3, pages=[span(0, 5)])
    assert (one.indices, one.error) == ([0, 1, 2], None)
    assert one.store.asked == [(0, 3)]
    assert one.store.opened == one.store.looked_up == []
    assert Read(tail=5, offset=3, pages=[span(3, 5)]).indices == [3, 4]
    for offset in (5, 6):
        one = Read(tail=5, offset=offset)
        assert (one.indices, one.error, one.store.asked) == ([], None, [])


def test_pages_and_sessions() -> None:
    """The first thousand come as a page, the others from a session that is limited to what is left."""
    one = Read([batch(*range(1000, 1700)), batch(*range(1700, 2100), tail=2100)], tail=2050, pages=[span(0, 1000)])
    assert (one.indices, one.error) == (list(range(2050)), None)
    assert one.store.asked == [(0, 1000)]
    (asked,) = one.store.opened
    assert (asked["stream"], asked["start"], asked["limit"]) == (STREAM, 1000, (1050, None))
    assert asked["stop"] is one.stop
    assert 10 < asked["deadline"].remaining() <= 20
    asked["notify"]()  # what it is called for is there to take
    assert one.store.sessions[0].closed
    assert len(one.store.looked_up) == 2
    assert Read(tail=1000, pages=[span(0, 1000)]).store.looked_up == []


def test_what_is_asked_of_the_server() -> None:
    """C15: Each request names the topic's stream and ends within the limit for a batch, which may be none."""
    for timeout in (20.0, None):
        one = Read([batch(1000, 1001), "ended"], tail=1005, pages=[span(0, 1000), span(1002, 1005)], timeout=timeout)
        assert (one.indices, one.error) == (list(range(1005)), None)
        assert len(one.store.asked_of) == 2
        for stream, deadline in one.store.asked_for_tail + one.store.asked_of:
            assert stream == STREAM
            assert deadline.remaining() is None if timeout is None else 10 < deadline.remaining() <= timeout
        assert one.store.looked_up == [STREAM, STREAM]
    assert Read(tail=1500, offset=1000, pages=[span(1000, 1500)]).store.looked_up == []  # one page is enough


def test_a_session_that_ends_early() -> None:
    """One that parked is opened again where it was; behind one that ended the next page comes by a request."""
    one = Read(
        [batch(1000, 1001), "parked"], [batch(1002), batch(tail=1010), "ended"], [batch(*range(1005, 1010))],
        tail=1010, pages=[span(0, 1000), span(1003, 1005)],
    )  # fmt: skip
    assert (one.indices, one.error) == (list(range(1010)), None)
    assert [asked["start"] for asked in one.store.opened] == [1000, 1002, 1005]
    assert [asked["limit"] for asked in one.store.opened] == [(10, None), (8, None), (5, None)]
    assert one.store.asked == [(0, 1000), (1003, 7)]
    assert all(session.closed for session in one.store.sessions)


def test_what_is_no_longer_stored() -> None:
    """C05: Nothing where something was promised, a start that is too late, and holes are gaps."""
    assert gap(Read(tail=3, pages=[[]])) == (0, 3)
    assert gap(Read(tail=3, pages=[span(1, 3)])) == (0, 1)
    assert gap(Read(tail=5, pages=[[batch(0, 1), batch(3, 4)]])) == (2, 3)
    assert gap(Read(tail=3, pages=[[batch(0, 1), batch(1, 2)]])) == (2, 1)
    for beyond in (4, 5):
        one = Read(tail=4, pages=[[batch(0, 1, 2, 3), batch(beyond)]])  # what lies behind the tail does not matter
        assert (one.indices, one.error) == ([0, 1, 2, 3], None)
    one = Read(["ended"], tail=1005, pages=[span(0, 1000), []])
    assert gap(one) == (1000, 1005)
    assert one.indices == list(range(1000))
    assert gap(Read([batch(1001)], tail=1005, pages=[span(0, 1000)])) == (1000, 1001)


def test_records_of_history_that_are_no_events() -> None:
    """Commands are left out; behind the events before it a record that is none raises. None of it beyond the tail."""
    assert Read(tail=3, pages=[[stored(0, COMMAND, 1, COMMAND)]]).indices == [1]
    assert Read(tail=1, pages=[[stored(0, COMMAND)]]).indices == []
    one = Read(tail=3, pages=[[stored(0, 0, b"{", 2)]])
    assert isinstance(one.error, DecodeError)
    assert (one.error.topic, one.error.index, one.indices) == (TOPIC, 1, [0])
    assert Read(tail=1, pages=[[stored(0, 0, b"{")]]).error is None


def test_an_absent_history() -> None:
    """A topic that is not there, or went before the first page, has no history; later it is gone."""
    past = PastTailError("past", code="x", status=416)
    for one in (Read(tail=failure("gone")), Read(tail=3, pages=[past]), Read(tail=3, pages=[failure("gone")])):
        assert (one.indices, one.error) == ([], None)
    for kind in ("gone", "past_tail"):
        one = Read([failure(kind)], tail=1001, pages=[span(0, 1000)])
        assert isinstance(one.error, TopicGoneError)
        assert one.error.topic == TOPIC
        assert one.store.sessions[0].closed
    one = Read([batch(1000)], tail=1001, pages=[span(0, 1000)], found=[SAME, ANOTHER])
    assert isinstance(one.error, TopicGoneError)
    assert one.error.topic == TOPIC
    assert one.store.opened == []


def test_failures_of_history(caplog: pytest.LogCaptureFixture) -> None:
    """A refusal is raised as it is; an outage in a session is waited for, with a note, and then raised as it is."""
    caplog.set_level(logging.DEBUG, LOG.name)
    refusal = failure("refused")
    assert Read(tail=refusal).error is refusal
    assert Read(tail=3, pages=[refusal]).error is refusal
    assert Read([refusal], tail=1001, pages=[span(0, 1000)]).error is refusal
    assert caplog.records == []
    for kind in ("outage", "name"):
        one = Read([failure(kind)], [batch(1000)], tail=1001, pages=[span(0, 1000)])
        assert (one.indices, one.error) == (list(range(1001)), None)
        assert one.store.sessions[0].closed
    (said, _) = caplog.records
    assert said.levelno == logging.DEBUG
    assert said.getMessage() == f"history of topic '{TOPIC}' was interrupted (attempt 1): it says no"
    outage = failure("outage")
    one = Read(outage, *[outage] * 20, tail=1001, pages=[span(0, 1000)], timeout=0.5)
    assert one.error is outage
    assert len(one.store.opened) > 1


def test_history_that_does_not_come() -> None:
    """C15: A batch that is not there within the limit raises, with the topic and the limit; so does a closed client."""
    one = Read([NEVER], tail=1001, pages=[span(0, 1000)], timeout=0.2)
    assert isinstance(one.error, OperationTimeoutError)
    assert str(one.error) == f"history of topic '{TOPIC}' did not come within 0.2 s"
    assert one.store.sessions[0].closed
    one = Read([], tail=1001, pages=[span(0, 1000)], found=[SAME, NEVER], timeout=0.2)
    assert isinstance(one.error, OperationTimeoutError)
    for sessions, found in (([CANCELLED], [SAME]), ([], [SAME, CANCELLED])):
        one = Read(sessions, tail=1001, pages=[span(0, 1000)], found=found)
        assert isinstance(one.error, ClosedError)
        assert str(one.error) == "the client is closed"
    stop = Stop()
    stop.set()
    one = Read([batch(1000)], tail=1001, pages=[span(0, 1000)], stop=stop)
    assert isinstance(one.error, ClosedError)
    assert str(one.error) == "the client is closed"
    assert one.indices == list(range(1000))
    assert one.store.opened == []
