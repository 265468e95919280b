"""What an error of the SDK means for us: ``classify``, on errors that the SDK really raises, and on each kind."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import pickle
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import s2_sdk
from s2_sdk import _exceptions as sdk_private

from s2pubsub import ClosedError, S2PubSub, S2PubSubError, StoreError
from s2pubsub.store.failures import ConditionError, PastTailError, classify, is_broken_client
from tests.servers import free_port

PEM = Path(__file__).parent / "certificates" / "untrusted.pem"
"""A self-signed certificate of 127.0.0.1 and its key, which nobody trusts."""

TOPIC = "agent.stream.failures"


def raised_by(action: Callable[[s2_sdk.S2Stream], Any], url: str) -> BaseException:
    """What ``action`` on a stream raises at that endpoint."""

    async def main() -> BaseException:
        endpoints = s2_sdk.Endpoints(account=url, basin=url)
        async with s2_sdk.S2("test", endpoints=endpoints, retry=s2_sdk.Retry(max_attempts=1)) as s2:
            try:
                await action(s2.basin("test-basin").stream("s"))
            except Exception as error:
                return error
        raise AssertionError("nothing was raised")

    return asyncio.run(main())


def tail(stream: s2_sdk.S2Stream) -> Any:
    return stream.check_tail()


@contextlib.contextmanager
def listening(handle: Callable[[socket.socket], object], host: str = "127.0.0.1") -> Iterator[int]:
    """A port whose connections are handed to ``handle``, each on a thread, and closed after it."""
    threads: list[threading.Thread] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                thread = threading.Thread(target=take, args=(connection,), daemon=True)
                threads.append(thread)
                thread.start()

    def take(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            handle(connection)

    with socket.create_server((host, 0)) as listener:
        accepting = threading.Thread(target=serve, daemon=True)
        accepting.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(5)
            for thread in threads:
                thread.join(5)


@pytest.fixture
def tls_port() -> Iterator[int]:
    """A TLS server whose certificate nobody trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM)
    context.set_alpn_protocols(["h2"])

    def shake_hands(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as wrapped:
            wrapped.recv(1)

    with listening(shake_hands) as port:
        yield port


def test_the_private_errors_are_where_they_were() -> None:
    """The store reads the SDK's private transport errors; a release that moves them fails here first."""
    for name in (
        "ConnectError",
        "ReadTimeoutError",
        "ConnectionClosedError",
        "ConnectionRetiredError",
        "ProtocolError",
    ):
        assert issubclass(getattr(sdk_private, name), sdk_private.TransportError)
    assert hasattr(sdk_private.AppendIndefiniteFailureError(ValueError()), "final_attempt_error")
    assert s2_sdk.S2ServerError("x", "no", 429)._retry_after is None
    stream = s2_sdk.S2("test").basin("test-basin").stream("s")
    assert isinstance(stream._retry, s2_sdk.Retry)  # which we set for a read session
    session = stream.read_session(start=s2_sdk.SeqNum(0))
    assert inspect.isasyncgen(session._events)  # which we wrap


def test_a_refused_connection() -> None:
    """An outage that proves that nothing was stored."""
    error = raised_by(tail, f"http://127.0.0.1:{free_port()}")
    found = classify(error, "tail")
    assert isinstance(found, StoreError)
    assert (found.kind, found.code, found.status, found.outcome) == ("outage", "connection", None, "not_stored")
    assert not is_broken_client(error)


def test_a_name_that_does_not_resolve() -> None:
    """A kind of its own: final at the first open, an outage later."""
    error = raised_by(tail, "http://s2.invalid:1234")
    found = classify(error, "tail")
    assert isinstance(found, StoreError)
    assert (found.kind, found.code, found.outcome) == ("name", "connection", "not_stored")
    assert "host name" in str(found)


def test_a_certificate_that_is_not_trusted(tls_port: int) -> None:
    """Refused for good."""
    error = raised_by(tail, f"https://127.0.0.1:{tls_port}")
    found = classify(error, "tail")
    assert isinstance(found, StoreError)
    assert (found.kind, found.code, found.outcome) == ("refused", "connection", "not_stored")
    assert "certificate" in str(found)


def test_a_connection_that_is_closed_at_once() -> None:
    """An outage; what was stored is unknown."""
    with listening(lambda connection: connection.recv(100)) as port:
        error = raised_by(tail, f"http://127.0.0.1:{port}")
    found = classify(error, "tail")
    assert isinstance(found, StoreError)
    assert (found.kind, found.code, found.status) == ("outage", "connection", None)
    assert not is_broken_client(error)


def test_a_server_that_speaks_something_else() -> None:
    """HTTP/1.1 on a clear-text port is an outage and no crash."""
    with listening(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as port:
        error = raised_by(tail, f"http://127.0.0.1:{port}")
    found = classify(error, "tail")
    assert isinstance(found, StoreError)
    assert found.kind == "outage"


def test_an_argument_that_the_sdk_refuses() -> None:
    """Refused, nothing was sent, and the client is not to blame."""
    error = raised_by(lambda stream: stream.append(s2_sdk.AppendInput(records=[])), "http://127.0.0.1:9")
    found = classify(error, "append")
    assert isinstance(found, StoreError)
    assert (found.kind, found.code, found.status, found.outcome) == ("refused", "client", None, "not_stored")
    assert not is_broken_client(error)


def test_a_client_that_was_closed() -> None:
    """Whatever was sent before: unknown. The client is of no more use."""

    async def main() -> BaseException:
        s2 = s2_sdk.S2("test", endpoints=s2_sdk.Endpoints(account="http://127.0.0.1:9", basin="http://127.0.0.1:9"))
        await s2.close()
        with pytest.raises(s2_sdk.S2ClientError) as caught:
            await s2.basin("test-basin").stream("s").check_tail()
        return caught.value

    error = asyncio.run(main())
    assert classify(error, "append").outcome == "unknown"
    assert is_broken_client(error)


def test_a_fault_inside_the_sdk() -> None:
    """Neither answer nor transport: unknown, tried again with a fresh client."""
    error = s2_sdk.S2ClientError("boom")
    error.__cause__ = KeyError("inside")
    found = classify(error, "append")
    assert isinstance(found, StoreError)
    assert (found.kind, found.code, found.outcome) == ("outage", "client", "unknown")
    assert is_broken_client(error)


def test_silence() -> None:
    """No answer in time: an outage, unknown; the client is given up: the SDK never replaces a silent connection."""
    error = s2_sdk.S2ClientError("timed out")
    error.__cause__ = sdk_private.ReadTimeoutError("Request timed out")
    found = classify(error, "append")
    assert isinstance(found, StoreError)
    assert (found.kind, found.code, found.outcome) == ("outage", "connection", "unknown")
    assert is_broken_client(error)


ANSWERS = [
    (400, "bad_json", "refused", "not_stored"),
    (401, "authn", "refused", "not_stored"),
    (403, "permission_denied", "refused", "not_stored"),
    (403, "quota_exhausted", "refused", "not_stored"),
    (404, "basin_not_found", "refused", "not_stored"),
    (404, "stream_not_found", "gone", "not_stored"),
    (404, "unknown", "refused", "not_stored"),
    (408, "request_timeout", "outage", "unknown"),
    (409, "stream_deletion_pending", "gone", "not_stored"),
    (409, "basin_deletion_pending", "refused", "not_stored"),
    (409, "transaction_conflict", "outage", "not_stored"),
    (409, "resource_already_exists", "refused", "not_stored"),
    (422, "invalid", "refused", "not_stored"),
    (429, "rate_limited", "outage", "not_stored"),
    (429, "other", "outage", "unknown"),
    (500, "storage", "outage", "unknown"),
    (501, "not_implemented", "refused", "not_stored"),
    (502, "hot_server", "outage", "not_stored"),
    (502, "unknown", "outage", "unknown"),
    (503, "unavailable", "outage", "unknown"),
    (503, "server_draining", "outage", "not_stored"),
    (504, "upstream_timeout", "outage", "unknown"),
]


@pytest.mark.parametrize(("status", "code", "kind", "outcome"), ANSWERS)
def test_answers(status: int, code: str, kind: str, outcome: str) -> None:
    """Each answer of the server has its kind, and says what a failed append has left."""
    error = s2_sdk.S2ServerError(code, "says the server", status)
    found = classify(error, "append to stream 's'")
    assert isinstance(found, StoreError)
    assert (found.kind, found.status, found.code, found.outcome) == (kind, status, code, outcome)
    assert str(found).startswith("append to stream 's': says the server")
    assert not is_broken_client(error)
    twin = pickle.loads(pickle.dumps(found))
    assert (twin.kind, twin.status, twin.code, twin.outcome) == (kind, status, code, outcome)


def test_an_answer_behind_an_ambiguous_failure() -> None:
    """A final answer that proves that nothing was stored does not prove it for the attempt before it."""
    error = sdk_private.AppendIndefiniteFailureError(s2_sdk.S2ServerError("rate_limited", "slow down", 429))
    found = classify(error, "append")
    assert isinstance(found, StoreError)
    assert (found.status, found.code, found.outcome) == (429, "rate_limited", "unknown")
    assert not is_broken_client(error)


def test_conditions() -> None:
    """They carry what the server holds."""
    fence = classify(s2_sdk.FencingTokenMismatchError("x", "no", 412, expected_fencing_token="held"), "fence")
    number = classify(s2_sdk.SeqNumMismatchError("x", "no", 412, expected_seq_num=7), "append")
    assert isinstance(fence, ConditionError)
    assert isinstance(number, ConditionError)
    assert (fence.token, fence.next_index, fence.kind, fence.outcome) == ("held", None, "condition", "not_stored")
    assert (number.token, number.next_index) == (None, 7)
    past = classify(s2_sdk.ReadUnwrittenError("x", "no", 416, tail=s2_sdk.StreamPosition(9, 1)), "read")
    assert isinstance(past, PastTailError)
    assert (past.tail, past.kind) == (9, "past_tail")


def test_our_own_errors_pass() -> None:
    """What is ours already is not wrapped again."""
    error = ClosedError("closed")
    assert classify(error, "append") is error
    assert isinstance(error, S2PubSubError)


# What users see of it.


@pytest.mark.parametrize("endpoint", ["name", "certificate"])
def test_final_at_the_first_open(endpoint: str, tls_port: int) -> None:
    """Design 4: a host name that does not resolve and a certificate that is not trusted end a subscribe at once."""
    url = "http://s2.invalid:1234" if endpoint == "name" else f"https://127.0.0.1:{tls_port}"
    with S2PubSub(basin="test-basin", endpoints=url, access_token="test") as pubsub:
        for call in (
            lambda: pubsub.subscribe(TOPIC),
            lambda: pubsub.publish(TOPIC, type="t", data=1),
            lambda: pubsub.get_history(TOPIC),
        ):
            with pytest.raises(StoreError) as caught:
                call()
            assert (caught.value.code, caught.value.status) == ("connection", None)
            assert ("certificate" if endpoint == "certificate" else "host name") in str(caught.value)
            assert isinstance(caught.value.__cause__, s2_sdk.S2ClientError)
