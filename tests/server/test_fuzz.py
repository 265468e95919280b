"""Bad input gets an error or a closed connection: nothing crashes, nothing is logged as a failure, nothing stays."""

from __future__ import annotations

import gc
import logging
import os
import random
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, seed, settings

from s2pubsub.server import LocalServer
from tests.server.attacks import Attack, attacks, carry_out
from tests.server.conftest import prepare
from tests.server.raw import send
from tests.server.test_sessions import in_progress
from tests.waiting import eventually

pytestmark = [pytest.mark.embedded]

SECONDS = float(os.environ.get("S2PUBSUB_FUZZ_SECONDS", "20"))
ROUND = 500


class Failures(logging.Handler):
    """Collects what the server or its event loop reports as failed.

    Not how long a step has taken, which asyncio's debug mode tells: the attacker shares the interpreter.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not str(record.msg).startswith("Executing %s took"):
            self.texts.append(self.format(record))


@pytest.fixture
def failures() -> Iterator[Failures]:
    handler = Failures()
    loggers = [logging.getLogger(name) for name in ("s2pubsub.server", "asyncio")]
    for logger in loggers:
        logger.addHandler(handler)
    yield handler
    for logger in loggers:
        logger.removeHandler(handler)


def run(port: int, examples: int, number: int, failures: Failures) -> None:
    """``examples`` attacks from the seed ``number``; the server must serve and be idle after them."""

    @seed(number)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(attacks)
    def attacked(attack: Attack) -> None:
        carry_out(port, attack)
        assert not failures.texts, failures.texts[0]

    attacked()
    assert send(port, "GET", "/health").status == 200
    eventually(lambda: in_progress(port) == 0)


@pytest.mark.limit(120)
@pytest.mark.slow
def test_bad_input_does_no_harm(local: LocalServer, failures: Failures) -> None:
    """Some hundred attacks over HTTP/1.1 and HTTP/2."""
    run(local.port, 250, 20260101, failures)
    gc.collect()
    assert not failures.texts, failures.texts[0]


@pytest.mark.fuzz
@pytest.mark.limit(SECONDS + 120)
def test_bad_input_does_no_harm_for_long(failures: Failures) -> None:
    """S2PUBSUB_FUZZ_SECONDS of attacks, 600 for the record; prints the number and the first seed."""
    first = int(os.environ.get("S2PUBSUB_FUZZ_SEED", random.randrange(10**6)))
    rounds = 0
    deadline = time.monotonic() + SECONDS
    with LocalServer() as server:
        prepare(server.port)
        while time.monotonic() < deadline:
            run(server.port, ROUND, first + rounds, failures)
            rounds += 1
            print(f"{rounds * ROUND} attacks from seed {first} on", flush=True)
    gc.collect()
    assert not failures.texts, failures.texts[0]
