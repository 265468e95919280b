"""What a follower makes of each answer that a store can give: positions, gaps, ends, and which stream it reads.

On a scripted store, so that every answer comes for sure; that real servers are read in the same way is proved
elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest
import s2_sdk._generated.s2.v1.s2_pb2 as pb
from s2_sdk import ReadBatch, SequencedRecord, StreamPosition
from s2_sdk._mappers import read_batch_from_proto
from tenacity import RetryCallState

from s2pubsub.errors import (
    ClosedError,
    DecodeError,
    OperationTimeoutError,
    StoreError,
    TopicGoneError,
)
from s2pubsub.event import Event
from s2pubsub.following import _AT_A_TIME, MIB, Feed, Follower, Outage, find_tail, stopped
from s2pubsub.retry import Interrupted, reconnecting
from s2pubsub.runtime.channel import ChannelEnd
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.wake import Wake
from s2pubsub.runtime.worker import Stop
from s2pubsub.stats import Counters
from s2pubsub.store.reading import Batch, batches
from s2pubsub.store.sessions import _as_parsed, _read_events
from s2pubsub.subscription import Calls, Queue
from tests.scripted import (
    ANOTHER,
    CANCELLED,
    COMMAND,
    DELETING,
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


class Followed:
    """A follower that ran to its end on a script."""

    def __init__(
        self,
        *sessions: Any,
        start: int = 0,
        existed: bool = True,
        found: Sequence[Any] = (SAME,),
        size: int = 1000,
        tail: int = 0,
    ) -> None:
        stop, wake = Stop(), Wake()
        stop.add(wake.set)
        self.stop, self.wake = stop, wake
        self.sink = Queue(start, size, MIB)
        self.counters = Counters()
        self.store: Any = ScriptedStore(sessions, stop=stop, found=found)
        feed = Feed(TOPIC, STREAM, start, existed, self.store, self.sink, stop, wake, self.counters, LOG, tail)
        self.error: Exception | None = None
        try:
            Follower(feed).run()
        except Exception as error:
            if not stopped(error, stop):
                self.error = error
        self.next_index = self.sink.next_index if len(self.sink.channel) == 0 else None
        self.sink.finish(None)
        self.indices: list[int | None] = []
        try:
            while True:
                self.indices.append(self.sink.channel.get(Deadline.after(0)).index)
        except ChannelEnd:
            self.end = self.sink.next_index

    @property
    def starts(self) -> list[int]:
        return [asked["start"] for asked in self.store.opened]


# Records.


def record(index: int, *headers: tuple[bytes, bytes]) -> SequencedRecord:
    return SequencedRecord(index, b"%d" % index, list(headers), 0)


def read(*records: SequencedRecord, tail: int | None = None) -> list[Batch]:
    return batches(ReadBatch(list(records), None if tail is None else StreamPosition(tail, 0)))


def test_what_records_become() -> None:
    """Bodies of consecutive records, with nothing in place of command records, and of those only; the tail is noted
    where they reach it.
    """
    fence, trim, named = (b"", b"fence"), (b"", b"trim"), (b"name", b"")
    found = read(record(3), record(4, fence), record(5, named), record(6, trim), record(7, fence, named))
    assert found == [Batch(3, [b"3", None, b"5", None, b"7"], 3, None)]
    assert found[0].end == 8
    assert read(record(3), tail=4) == [Batch(3, [b"3"], 1, 4)]
    assert read(record(3), tail=5) == [Batch(3, [b"3"], 1, None)]
    assert read() == []
    assert Batch(3, [b"3", None, b"55"], 4, 6).behind(4) == Batch(4, [None, b"55"], 2, 6)
    assert Batch(3, [b"3"], 1, None).behind(4) == Batch(4, [], 0, None)


def test_records_that_are_missing() -> None:
    """C05: Records with holes between them are several batches, so that whoever follows finds the gaps."""
    found = read(record(0), record(1), record(3), record(7), record(8), tail=9)
    assert found == [Batch(0, [b"0", b"1"], 2, None), Batch(3, [b"3"], 1, None), Batch(7, [b"7", b"8"], 2, 9)]
    assert [one.start for one in read(*map(record, range(0, 4000, 2)))] == list(range(0, 4000, 2))
    assert [one.bodies for one in read(record(0), record(1), record(1), record(2))] == [[b"0", b"1"], [b"1", b"2"]]


def test_records_as_they_were_parsed() -> None:
    """They give the same batches as the SDK's own records: with a tail and without, with commands, with holes."""
    for records, tail in (
        ([record(3), record(4)], None),
        ([record(3), record(4)], 5),
        ([record(3), record(4), record(9)], 10),
        ([record(3), record(4, (b"", b"fence")), record(5, (b"name", b""))], 6),
        ([record(3, (b"", b"trim"))], 9),
        ([], 4),
    ):
        message = pb.ReadBatch()
        for one in records:
            headers = [pb.Header(name=name, value=value) for name, value in one.headers]
            message.records.append(pb.SequencedRecord(seq_num=one.seq_num, body=one.body, headers=headers))
        if tail is not None:
            message.tail.seq_num = tail
        parsed, mapped = _as_parsed(message), read_batch_from_proto(message)
        assert batches(parsed) == batches(mapped) == read(*records, tail=tail)
        assert parsed.tail == mapped.tail
        assert (type(parsed.records) is list) == any(one.headers for one in records)
    assert _read_events.__globals__["read_batch_from_proto"] is _as_parsed  # what the SDK's own reading calls


# Following.


def test_events_in_order() -> None:
    """A session's batches are handed on; the position is that behind the last record, commands included."""
    one = Followed([batch(0, 1), batch(2, tail=3), stored(3, COMMAND, COMMAND, tail=5)])
    assert (one.indices, one.end, one.error) == ([0, 1, 2], 5, None)
    assert one.counters.delivered == 3
    assert one.counters.reconnects == 0
    (asked,) = one.store.opened
    assert asked["stream"] == STREAM
    assert (asked["start"], asked["limit"], asked["wait"], asked["clamp"]) == (0, None, None, True)
    assert (asked["notify"], asked["stop"]) == (one.wake.set, one.stop)
    assert one.store.sessions[0].closed


def test_where_it_goes_on() -> None:
    """C01: Whatever ends a session, the next one begins at the next index, and not clamped once that was reached."""
    for end in ("ended", failure("outage"), failure("name")):
        one = Followed([batch(7, 8), end], [batch(9)], start=7)
        assert (one.indices, one.starts) == ([7, 8, 9], [7, 9])
        assert [asked["clamp"] for asked in one.store.opened] == [True, False]
        assert [asked["limit"] for asked in one.store.opened] == [None, None]
        assert one.counters.reconnects == 1
        assert all(session.closed for session in one.store.sessions)
    one = Followed(failure("outage"), [batch(0)])
    assert (one.indices, one.starts, one.counters.reconnects) == ([0], [0, 0], 1)
    assert Followed(failure("outage"), [batch(0), "ended"], [failure("outage")]).counters.reconnects == 3
    one = Followed([batch(7), "ended"], [batch(8)], start=7, tail=7)
    assert [asked["tail"] for asked in one.store.opened] == [7, 7]


def test_holes_are_gaps() -> None:
    """C05: Records that are missing at the start, between two batches, or before the tail: a gap, and where."""
    assert gap(Followed([batch(3, 4)])) == (0, 3)
    assert gap(Followed([batch(0, 1), batch(4)])) == (2, 4)
    one = Followed([batch(0, 1), batch(3, 4)])
    assert gap(one) == (2, 3)
    assert one.indices == [0, 1]
    assert gap(Followed([batch(tail=3)])) == (0, 3)
    assert gap(Followed([batch(0, tail=2)])) == (1, 2)
    assert gap(Followed([batch(0), "ended"], [batch(2)])) == (1, 2)
    assert Followed([batch(0, tail=1), batch(1, tail=2)]).error is None


def test_an_offset_beyond_the_tail() -> None:
    """Until the offset is reached sessions are clamped to the tail; from then on what is missing counts."""
    one = Followed([batch(tail=2), batch(), batch(10, 11)], start=10)
    assert (one.indices, one.end, one.error) == ([10, 11], 12, None)
    assert one.counters.delivered == 2
    assert gap(Followed([batch(), batch(12)], start=10)) == (10, 12)
    one = Followed([batch(), "ended"], [batch(), "ended"], [batch(10)], start=10)
    assert (one.indices, one.starts) == ([10], [10, 10, 10])
    assert [asked["clamp"] for asked in one.store.opened] == [True, True, True]
    one = Followed([batch(tail=10), "ended"], [batch(10)], start=10)
    assert [asked["clamp"] for asked in one.store.opened] == [True, False]
    one = Followed([batch(tail=9), "ended"], [batch(10)], start=10)
    assert [asked["clamp"] for asked in one.store.opened] == [True, True]


def test_a_record_that_is_no_event() -> None:
    """C63: The events before it come first; the position stays at it."""
    one = Followed([stored(0, 0, 1, b"{", 3)])
    assert isinstance(one.error, DecodeError)
    assert (one.error.topic, one.error.index) == (TOPIC, 2)
    assert (one.indices, one.end) == ([0, 1], 2)
    assert one.counters.delivered == 2


def test_a_batch_is_handed_on_in_parts() -> None:
    """C63: A large batch is decoded in parts: none of it is lost, doubled or out of order, wherever it breaks."""
    whole = Batch(3, [b"1", None, b"333", b"4", b"5"], 7, 8)
    parts = [Batch(3, [b"1", None], 1), Batch(5, [b"333", b"4"], 4), Batch(7, [b"5"], 1)]
    assert list(whole.parts(2)) == parts
    assert list(whole.parts(5)) == [whole]
    size = 3 * _AT_A_TIME + 1
    one = Followed([batch(*range(size)), batch(size)])
    assert (one.indices, one.end, one.error, one.counters.delivered) == ([*range(size + 1)], size + 1, None, size + 1)
    for broken in (0, _AT_A_TIME - 1, _AT_A_TIME, size - 1):
        one = Followed([stored(0, *range(broken), b"{", *range(broken + 1, size))])
        assert isinstance(one.error, DecodeError)
        assert (one.error.index, one.indices, one.end) == (broken, [*range(broken)], broken)


def test_a_parked_reader_reads_with_limits() -> None:
    """Design 2: as much as there is room for, twice as much each time, five times at most, or until it caught up."""
    one = Followed(
        [batch(0, 1), "parked"], [batch(2), "ended"], ["ended"], ["ended"], ["ended"], ["ended"], [batch(3)], size=10
    )
    assert one.indices == [0, 1, 2, 3]
    assert one.starts == [0, 2, 3, 3, 3, 3, 3]
    assert [asked["limit"] and asked["limit"][0] for asked in one.store.opened] == [None, 8, 14, 28, 56, 112, None]
    assert [asked["limit"][1] for asked in one.store.opened[1:6]] == [MIB << number for number in range(5)]
    assert [asked["wait"] for asked in one.store.opened] == [None, 1, 1, 1, 1, 1, None]
    assert one.counters.reconnects == 0
    assert one.store.opened[0]["on_park"] == one.counters.count_parked
    one = Followed([batch(0), "parked"], [batch(1, tail=2)], [batch(2)])
    assert (one.indices, one.starts) == ([0, 1, 2], [0, 1, 2])
    assert [asked["limit"] is None for asked in one.store.opened] == [True, False, True]
    one = Followed([batch(0), "parked"], ["ended"], [batch(1), "parked"], [batch(2)], size=100)
    assert [asked["limit"] and asked["limit"][0] for asked in one.store.opened] == [None, 99, 198, 98]
    one = Followed(["parked"], [], size=1)
    assert [asked["limit"] and asked["limit"][0] for asked in one.store.opened] == [None, 1]


@pytest.mark.parametrize("rest", [[COMMAND], [COMMAND] * 999, [b"{"], list(range(999))])
def test_a_large_batch_whose_callback_closes(rest: list[Any]) -> None:
    """C03: What a closed callback has not handled is where its position is, also where parts of the batch hold nothing
    that it could be called for; until then all of the batch counts as queued.
    """
    size = 2 * _AT_A_TIME
    stop = Stop()
    seen: list[tuple[int | None, int]] = []

    def handle(event: Event) -> None:
        seen.append((event.index, sink.queued))
        if event.index == 10:
            stop.set()

    sink = Calls(TOPIC, 0, handle, None, stop, (1000, MIB), LOG)
    store: Any = ScriptedStore([[stored(0, *range(size), *rest)]], stop=stop)
    with contextlib.suppress(ClosedError):
        Follower(Feed(TOPIC, STREAM, 0, True, store, sink, stop, Wake(), Counters(), LOG)).run()
    assert seen == [(index, size + len(rest) - index) for index in range(11)]
    assert sink.next_index == 11


def test_a_stop_in_a_large_batch_that_reaches_the_tail() -> None:
    """C03: A stop before the sink is closed leaves the rest of the batch, which is no gap before the tail."""
    stop, size = Stop(), 2 * _AT_A_TIME
    sink = Queue(0, 1000, MIB)
    deliver = sink.deliver

    def stop_behind(events: Any, size: int, next_index: int | None) -> bool:
        taken = deliver(events, size, next_index)
        stop.set()
        return taken

    sink.deliver = stop_behind  # type: ignore[method-assign]  # the thread that closes has come so far
    store: Any = ScriptedStore([[batch(*range(size), tail=size)]], stop=stop)
    with pytest.raises(ClosedError):
        Follower(Feed(TOPIC, STREAM, 0, True, store, sink, stop, Wake(), Counters(), LOG)).run()
    assert len(sink.channel) == _AT_A_TIME


def test_a_full_sink_that_is_closed() -> None:
    """The follower ends when its sink does, without an error and without another question."""
    stop, wake = Stop(), Wake()
    sink = Queue(0, 10, MIB)
    store: Any = ScriptedStore([[batch(0), batch(1)]], stop=stop)
    deliver = sink.deliver

    def close_behind(events: Any, size: int, next_index: int | None) -> bool:
        taken = deliver(events, size, next_index)
        sink.close()
        stop.set()
        return taken

    sink.deliver = close_behind  # type: ignore[method-assign]  # a close in that very moment
    Follower(Feed(TOPIC, STREAM, 0, True, store, sink, stop, wake, Counters(), LOG)).run()
    assert len(store.opened) == 1
    assert sink.next_index == 0


@pytest.mark.parametrize("kind", ["refused", "condition"])
def test_a_refusal_is_final(kind: Any) -> None:
    """Design 4: it reaches the reader as it is."""
    refusal = failure(kind)
    refusal.__cause__ = cause = OSError("reset")
    one = Followed([batch(0), refusal], [batch(1)])
    assert one.error is refusal
    assert refusal.__cause__ is cause
    assert one.indices == [0]
    assert one.store.sessions[0].closed


def test_an_absent_stream(caplog: pytest.LogCaptureFixture) -> None:
    """One that was there is gone; one that never was is waited for, and why is said."""
    for given in (Followed([failure("gone")]), Followed([batch(0, tail=1), failure("gone")], existed=False)):
        assert isinstance(given.error, TopicGoneError)
        assert given.error.topic == TOPIC
        assert isinstance(given.error.__cause__, StoreError)
    one = Followed(failure("gone"), [batch(0)], existed=False)
    assert (one.indices, one.error) == ([0], None)
    assert caplog.messages[0].endswith("it says no")
    one = Followed([batch(0), failure("past_tail")])
    assert isinstance(one.error, TopicGoneError)
    assert one.error.topic == TOPIC


@pytest.mark.parametrize("found", [(SAME, None), (SAME, DELETING), (SAME, ANOTHER), (SAME, SAME, ANOTHER)])
def test_a_stream_that_was_made_anew(found: Sequence[Any]) -> None:
    """Before it goes on in the middle of a stream a reader looks whether that is still the one it has read."""
    one = Followed([batch(0), "ended"], [batch(1), "ended"], [batch(0)], found=found)
    assert isinstance(one.error, TopicGoneError)
    assert one.error.topic == TOPIC
    assert one.indices == [0, 1][: len(found) - 1]
    assert set(one.store.looked_up) == {STREAM}


@pytest.mark.parametrize("first", [NEVER, CANCELLED, None, failure("outage")])
def test_a_look_up_without_an_answer(first: Any) -> None:
    """The first answer that there is says which stream it is; the later ones are compared with it. One that was lost is
    asked for again with the next batch.
    """
    assert Followed([batch(0), "ended"], [batch(1)], found=[first, SAME]).indices == [0, 1]
    again = [SAME] if first is CANCELLED or isinstance(first, StoreError) else []
    one = Followed([batch(0), "ended"], [batch(1), "ended"], [batch(2)], found=[first, SAME, *again, ANOTHER])
    assert isinstance(one.error, TopicGoneError)
    assert one.indices == [0, 1]


def test_a_look_up_that_takes_its_time() -> None:
    """Its answer wakes the reader."""
    answer: Future[Any] = Future()
    timer = threading.Timer(0.6, answer.set_result, [SAME])
    timer.start()
    assert Followed([batch(0), "ended"], [batch(1)], found=[SAME, answer]).indices == [0, 1]
    timer.join()


def test_nothing_is_looked_up_at_the_beginning() -> None:
    """A reader at index 0 may read whatever stream it finds; one that opens for the first time need not look."""
    one = Followed(failure("outage"), [batch(0)], existed=False, found=[None])
    assert one.indices == [0]
    assert len(one.store.looked_up) == 1  # when it had read something
    assert len(Followed([batch(5)], start=5, existed=True).store.looked_up) == 1


def test_a_client_that_is_closed() -> None:
    """What was asked of a closed client ends the reader as closed."""
    for one in (Followed([batch(0), CANCELLED]), Followed([batch(0), "ended"], found=[SAME, CANCELLED])):
        assert isinstance(one.error, ClosedError)
        assert str(one.error) == "the client is closed"


def test_what_a_stop_explains() -> None:
    """What a worker sees that was told to stop is no failure; anything else is."""
    stop = Stop()
    for error in (ClosedError("x"), Interrupted(failure("outage"))):
        assert not stopped(error, stop)
    stop.set()
    for error in (ClosedError("x"), Interrupted(failure("outage"))):
        assert stopped(error, stop)
    assert not stopped(failure("refused"), stop)


# Where a subscription begins.


def begun(tail: Any, *, within: float = 20.0, stop: Stop | None = None) -> tuple[int, bool, int]:
    """The tail that is found, whether the topic exists, and how often the store was asked."""
    stop = stop or Stop()
    store: Any = ScriptedStore(stop=stop, tail=tail)
    deadline = Deadline.after(within)
    found = find_tail(store, TOPIC, STREAM, deadline, stop)
    assert set(store.asked_for_tail) == {(STREAM, deadline)}
    return *found, len(store.asked_for_tail)


def test_the_tail_to_begin_at() -> None:
    """It is the tail of now; a topic that is absent begins at 0; an outage is waited for."""
    assert begun(7) == (7, True, 1)
    assert begun(failure("gone")) == (0, False, 1)
    assert begun([failure("outage"), failure("outage"), 7]) == (7, True, 3)


def test_a_tail_that_is_not_found() -> None:
    """A refusal and a name that does not resolve are raised at once, an outage that lasts as what it was."""
    for kind in ("refused", "name"):
        error = failure(kind)
        with pytest.raises(StoreError) as caught:
            begun([error, 7])
        assert caught.value is error
    outage = failure("outage")
    outage.__cause__ = OSError("no route")
    with pytest.raises(StoreError) as caught:
        begun(outage, within=0.5)
    assert caught.value is outage
    assert isinstance(caught.value.__cause__, OSError)
    late = OperationTimeoutError("no answer")
    with pytest.raises(StoreError) as caught:
        begun([outage, late])
    assert caught.value is outage
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(OperationTimeoutError) as timed_out:
        begun(late)
    assert str(timed_out.value) == f"subscribe to topic '{TOPIC}': the server did not answer in time"
    stop = Stop()
    stop.set()
    with pytest.raises(ClosedError, match=r"^the client is closed$"):
        begun(7, stop=stop)


# What is said of outages.


def test_an_outage_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """A warning when it begins, with the attempt, the wait and the reason; details below that; a line at its end."""
    caplog.set_level(logging.DEBUG, LOG.name)
    one = Followed([batch(0), failure("outage")], failure("outage"), [batch(1), "ended"], [batch(2)])
    assert one.indices == [0, 1, 2]
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    begun = f"the subscription to topic '{TOPIC}' was interrupted (attempt %d, next in "
    assert [level for level, _ in said] == ["WARNING", "DEBUG", "INFO", "WARNING", "INFO"]
    assert said[0][1].startswith(begun % 1)
    assert said[0][1].endswith(" s): it says no")
    assert said[1][1].startswith(begun % 2)
    assert said[3][1].endswith("the server ended the read session")
    for line in (said[2][1], said[4][1]):
        assert re.fullmatch(f"the subscription to topic '{TOPIC}' goes on after [0-4][.][0-9] s", line)
    waits = [float(said[place][1].split("next in ")[1].split(" s")[0]) for place in (0, 1)]
    assert 0.25 <= waits[0] <= 0.5 <= waits[1] <= 0.75


def test_a_long_outage_is_told_of_again(caplog: pytest.LogCaptureFixture) -> None:
    """Once a minute that it lasts there is a warning again."""
    caplog.set_level(logging.DEBUG, LOG.name)
    outage = Outage("reader", LOG)
    state = RetryCallState(reconnecting(Stop(), lambda _: None), None, (), {})
    interrupted = Interrupted(failure("outage"))
    state.set_exception((Interrupted, interrupted, None))  # type: ignore[arg-type]  # the traceback is not looked at
    for passed in (0, 1, 61, 1):
        outage._logged_at -= passed
        outage.wait_announced(state)
    assert [record.levelname for record in caplog.records] == ["WARNING", "DEBUG", "WARNING", "DEBUG"]
    assert set(caplog.messages) == {"the reader was interrupted (attempt 1, next in 0.00 s): it says no"}


@pytest.mark.slow
def test_a_session_that_lived_long(caplog: pytest.LogCaptureFixture) -> None:
    """C08: After more than five seconds, in which nothing need have been read, its end is a first interruption."""
    caplog.set_level(logging.DEBUG, LOG.name)

    def break_later() -> StoreError:
        threading.Event().wait(5.1)
        return failure("outage")

    assert Followed(failure("outage"), failure("outage"), [break_later]).indices == []
    attempts = [record.getMessage().split("attempt ")[1][0] for record in caplog.records]
    assert attempts == ["1", "2", "1"]


def test_an_end_without_a_beginning(caplog: pytest.LogCaptureFixture) -> None:
    """Where nothing was interrupted nothing goes on."""
    caplog.set_level(logging.DEBUG, LOG.name)
    Outage("reader", LOG).over()
    assert Followed([batch(0)]).indices == [0]
    assert caplog.records == []
