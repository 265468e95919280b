"""The limit on handling: an event in hand, stuck handlers, late answers."""

from __future__ import annotations

import threading

import pytest

from s2pubsub import Event, LocalPubSub, OperationTimeoutError
from tests.local_parts import HERE, SOON, Handler, publish_numbers
from tests.waiting import LONG, eventually


@pytest.mark.parametrize("members", [1, 2])
def test_an_event_in_hand_is_not_delivered_again(members):
    """C66: a handler that takes much longer than the pause is called once, with one member and with two."""
    handler = Handler()
    done = threading.Event()

    def slow(event: Event) -> None:
        handler(event)
        done.wait(10 * SOON)

    others = [Handler() for _ in range(members - 1)]
    with LocalPubSub(retry_pause=SOON) as local:
        local.subscribe(HERE, slow, group="g")
        publish_numbers(local, [1])
        eventually(lambda: handler.calls)
        for other in others:
            local.subscribe(HERE, other, group="g")
        local.flush(LONG)
    assert handler.calls + [call for other in others for call in other.calls] == [(1, 1)]


def test_a_stuck_handler_loses_its_event_to_another_member():
    """C66: after the limit the event goes to the other member with attempt 2, once; the late end changes nothing."""
    entered, release = threading.Event(), threading.Event()
    calls: list[int] = []
    other = Handler()

    def stuck(event: Event) -> None:
        calls.append(event.delivery_attempt)
        entered.set()
        release.wait(LONG)

    with LocalPubSub(handling_limit=0.05, retry_pause=SOON) as local:
        local.subscribe(HERE, stuck, group="g")
        publish_numbers(local, [1])
        assert entered.wait(LONG)
        local.subscribe(HERE, other, group="g")
        eventually(lambda: other.calls)
        assert other.calls == [(1, 2)]
        local.flush(LONG)
        release.set()
        publish_numbers(local, [2])
        local.flush(LONG)
        assert calls + [attempt for _, attempt in other.calls] in ([1, 2, 1], [1, 1, 2])


def test_a_waiting_member_wakes_when_a_limit_is_over():
    """The limit ends although the only free member has waited since before the event came."""
    release = threading.Event()
    calls: list[tuple[int, int]] = []

    def first_is_stuck(event: Event) -> None:
        calls.append((event.data, event.delivery_attempt))
        if event.delivery_attempt == 1:
            release.wait(LONG)

    def the_other(event: Event) -> None:
        first_is_stuck(event)

    with LocalPubSub(handling_limit=0.05) as local:
        local.subscribe(HERE, first_is_stuck, group="g")
        local.subscribe(HERE, the_other, group="g")
        publish_numbers(local, [1])
        eventually(lambda: len(calls) == 2)
        assert calls == [(1, 1), (1, 2)]
        release.set()


def test_a_handler_that_ends_late_but_first_has_handled_the_event():
    """C66: when nobody else was free, the event of a handler beyond the limit counts as done at its return."""
    calls: list[int] = []
    done = threading.Event()

    def slow(event: Event) -> None:
        calls.append(event.delivery_attempt)
        done.wait(0.1)

    with LocalPubSub(handling_limit=SOON) as local:
        local.subscribe(HERE, slow, group="g")
        publish_numbers(local, [1])
        local.flush(LONG)
        publish_numbers(local, [2])
        local.flush(LONG)
    assert calls == [1, 1]


def test_late_answers():
    """After the limit a late ``ack`` settles the event for all; a late ``nack`` is not heard."""
    with LocalPubSub(handling_limit=SOON) as local:
        slow, quick = local.subscribe(HERE, group="g"), local.subscribe(HERE, group="g")
        publish_numbers(local, [1])
        first = slow.get(LONG)
        second = quick.get(LONG)
        assert second.delivery_attempt == 2
        assert not slow.nack(first)
        assert slow.ack(first)
        assert not quick.nack(second)
        with pytest.raises(OperationTimeoutError):
            quick.get(3 * SOON)
        slow.close()
        quick.close()


def test_attempts_that_run_into_the_limit_count(caplog):
    """C68: An event that keeps every handler stuck is given up like one that is refused."""
    with LocalPubSub(handling_limit=0.01, max_attempts=3) as local, local.subscribe(HERE, group="g") as member:
        [event] = publish_numbers(local, [1])
        assert [member.get(LONG).delivery_attempt for _ in range(3)] == [1, 2, 3]
        with pytest.raises(OperationTimeoutError):
            member.get(0.1)
        assert [event.id in record.getMessage() for record in caplog.records] == [True]
