"""Whole answers to requests for a run: their status, and from where they go on."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from s2pubsub import sse
from s2pubsub.runs import Runs
from s2pubsub.sse.answer import Answer, answer_run, answer_stop
from tests.raw import Streams
from tests.waiting import LONG
from tests.web.event_source import parse


@pytest.fixture
def runs(pubsub: Any) -> Runs:
    return Runs(pubsub, cleanup_timeout=0)


def indices(answer: Answer) -> list[int]:
    """Indices of the events in an answer's stream; it must end."""
    assert answer.status == 200
    assert isinstance(answer.body, sse.EventStream)
    messages = parse(b"".join(answer.body))
    assert messages[-1].type == "end"
    return [int(message.last_event_id) for message in messages[:-1]]


@pytest.fixture
def gapped(make_run: Any, server: Any, basin: str) -> str:
    """A run with events at 0..6 and 8..20 and a control record at 7; it has ended."""
    run = make_run(chunks=7)
    assert Streams(server, basin).fence(run.topic, "token") == 7
    run.chunks(12)
    run.finish()
    return "run-7"


ALL = [*range(7), *range(8, 21)]


@pytest.mark.parametrize(
    ("seen", "expected"),
    [(None, ALL), ("", ALL), ("-1", ALL), ("4", [5, 6, *range(8, 21)]), ("6", ALL[7:]), ("7", ALL[7:]), ("19", [20])],
)
def test_a_returning_browser_goes_on_behind_what_it_saw(runs: Runs, gapped: str, seen: str | None, expected: list[int]):
    """C54: as the header and as a query parameter; each frame's id is its index."""
    assert indices(answer_run(runs, gapped, last_event_id=seen)) == expected
    query = {} if seen is None else {"lastEventId": seen}
    assert indices(answer_run(runs, gapped, query=query)) == expected


@pytest.mark.parametrize("seen", ["20", "21", "5000"])
def test_who_has_seen_the_end_is_told_to_stop(runs: Runs, gapped: str, seen: str):
    """C54, C18: behind the end of an ended run there is nothing: 204, at which a browser stops coming back."""
    answer = answer_run(runs, gapped, last_event_id=seen)
    assert (answer.status, answer.body) == (204, b"")


@pytest.mark.parametrize("seen", ["20", "5000"])
def test_who_has_seen_all_of_a_running_run_waits(runs: Runs, make_run: Any, seen: str):
    """C54: behind the last event of a run that goes on, the stream opens at once and waits."""
    make_run(chunks=21)
    answer = answer_run(runs, "run-7", last_event_id=seen, heartbeat=0.1)
    assert isinstance(answer.body, sse.EventStream)
    with answer.body as body:
        assert [next(body) for _ in range(3)] == [b": open\n\n", b": keep-alive\n\n", b": keep-alive\n\n"]


@pytest.mark.parametrize("seen", ["abc", "-2", "5.0", "99999999999999999999", "5\n", "run2:5", "../run2"])
def test_a_malformed_position_is_refused(runs: Runs, make_run: Any, seen: str):
    """C54, C57: 400, whether in the header or in the query; nothing is opened."""
    make_run(chunks=1)
    assert answer_run(runs, "run-7", last_event_id=seen).status == 400
    assert answer_run(runs, "run-7", query={"lastEventId": seen}).status == 400
    assert answer_run(runs, "run-7", query={"offset": seen}).status == 400
    assert runs.pubsub.stats().subscriptions == 0


def test_offset_in_the_query_names_the_first_event(runs: Runs, make_run: Any):
    """``?offset=`` is inclusive, as everywhere else in the library."""
    make_run(chunks=3, finish=True)
    assert indices(answer_run(runs, "run-7", query={"offset": "2"})) == [2, 3]


@pytest.mark.parametrize("run_id", ["never", "../run-7", "a/b", "..", "%2e%2e", "run-7\0", "", "x" * 600, "\ud83d"])
def test_an_unknown_run_is_not_found_and_not_created(runs: Runs, make_run: Any, run_id: str):
    """C20, C57: 404, or 204 for the AI SDK, for any id that is no run; no stream comes into being."""
    make_run(chunks=1)
    before = runs.pubsub.topics()
    assert answer_run(runs, run_id).status == 404
    assert answer_run(runs, run_id, format="mastra").status == 404
    assert answer_run(runs, run_id, format="ui-message-stream").status == 204
    assert answer_stop(runs, run_id).status == 404
    assert runs.pubsub.topics() == before


def test_a_position_selects_within_its_run_only(runs: Runs, make_run: Any):
    """C57: a position from another run is just a number in this one."""
    make_run("run-1", chunks=3, finish=True)
    make_run("run-2", chunks=9)
    assert indices(answer_run(runs, "run-1", last_event_id="1")) == [2, 3]
    assert answer_run(runs, "run-1", last_event_id="8").status == 204


def test_who_may_not_see_is_refused_before_anything(runs: Runs, make_run: Any):
    """403 whether or not the run exists: the answer does not tell."""
    make_run(chunks=1)
    asked: list[str] = []

    def nobody(run_id: str) -> bool:
        asked.append(run_id)
        return False

    answers = [answer_run(runs, run_id, authorize=nobody, last_event_id="abc") for run_id in ("run-7", "never")]
    assert [answer.status for answer in answers] == [403, 403]
    assert answers[0].body == answers[1].body
    assert asked == ["run-7", "never"]


def test_more_streams_than_allowed_are_refused(runs: Runs, make_run: Any):
    """C52: 503 with Retry-After; a place is free again when a stream has been closed, and refusals take none."""
    make_run(chunks=1)
    limiter = sse.Limiter(1, retry_after=7)
    assert answer_run(runs, "never", limiter=limiter).status == 404
    first = answer_run(runs, "run-7", limiter=limiter)
    refused = answer_run(runs, "run-7", limiter=limiter)
    assert (refused.status, refused.headers["Retry-After"]) == (503, "7")
    assert isinstance(first.body, sse.EventStream)
    first.body.close()
    assert limiter.active == 0


def test_the_ai_sdk_gets_everything_or_nothing(runs: Runs, make_run: Any):
    """A resume ignores positions; 204 for an ended run where the application asks for that."""
    run = make_run(chunks=2)
    answer = answer_run(runs, "run-7", format="ui-message-stream", last_event_id="0", ended="no-content")
    assert isinstance(answer.body, sse.EventStream)
    run.finish()
    messages = parse(b"".join(answer.body))
    assert [json.loads(m.data)["type"] for m in messages[:-1]] == ["text-delta", "text-delta", "finish"]
    assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
    assert answer_run(runs, "run-7", format="ui-message-stream", ended="no-content").status == 204
    assert answer_run(runs, "run-7", format="mastra", last_event_id="5").status == 200


@pytest.mark.parametrize("format", ["events", "ui-message-stream"])
def test_an_unreachable_server_is_a_temporary_refusal(make_pubsub: Any, proxy: Any, format: Any):
    """503 with Retry-After, and no detail: never a 500 and never a hang."""
    with proxy:
        url = proxy.url
    runs = Runs(make_pubsub(endpoints=url), cleanup_timeout=0)
    answer = answer_run(runs, "run-7", format=format, timeout=1.0)
    assert answer.status == 503
    assert "Retry-After" in answer.headers
    assert answer_stop(runs, "run-7", timeout=1.0).status == 503


def test_a_stop_reaches_the_runs_writer(runs: Runs, make_run: Any):
    """202 and an abort request on the run's control topic; an ended run is only reported, and nothing is created."""
    run = make_run(chunks=1)
    assert answer_stop(runs, "run-7").status == 202
    assert [event.type for event in runs.pubsub.get_history("agent.control.run-7")] == ["abort-request"]
    run.finish("abort")
    runs.pubsub.clear_topic("agent.control.run-7", strict=True)
    answer = answer_stop(runs, "run-7")
    assert (answer.status, json.loads(answer.body)) == (200, {"runId": "run-7", "status": "aborted"})
    assert "agent.control.run-7" not in runs.pubsub.topics()


def test_a_closed_client_is_a_temporary_refusal(make_pubsub: Any):
    """While a process shuts down, browsers are told to come back."""
    pubsub = make_pubsub()
    runs = Runs(pubsub)
    pubsub.close()
    assert answer_run(runs, "run-7").status == 503
    assert answer_stop(runs, "run-7").status == 503


def test_a_stop_aborts_a_real_run(runs: Runs):
    """From the stop view to the run's writer and back to its viewers: the stream ends with the run's abort."""
    asked = threading.Event()
    with runs.start("run-9") as run:
        run.on_abort(asked.set)
        run.text("half ")
        answer = answer_run(runs, "run-9", format="ui-message-stream")
        assert isinstance(answer.body, sse.EventStream)
        assert answer_stop(runs, "run-9").status == 202
        assert asked.wait(LONG)
    parts = [m.data for m in parse(b"".join(answer.body))]
    assert [json.loads(part)["type"] for part in parts[:-1]] == [
        "start",
        "text-start",
        "text-delta",
        "text-end",
        "abort",
        "finish",
    ]
    assert parts[-1] == "[DONE]"
