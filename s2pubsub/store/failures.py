"""What an error of the S2 SDK means for us: one function, ``classify``, decides.

The SDK reports a failed connection as ``S2ClientError`` whose cause is one of its private transport errors, and of an
append that it has tried again the last failure only; ``Attempts`` looks at each. What is private of the SDK is used
here and in ``reading`` only; a test pins it on the lowest and the newest SDK we support.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

import s2_sdk
from s2_sdk import _exceptions as sdk_private

from s2pubsub.errors import ClosedError, Kind, S2PubSubError, StoreError
from s2pubsub.retry import proves_nothing_stored

GONE_CODES = frozenset({"stream_not_found", "stream_deletion_pending"})
"""Only these mean that a stream is absent; a misspelt basin must never look like an empty topic."""

_PASSING_STATUSES = frozenset({408, 429, 500, 502, 503, 504})

_NEVER_STARTED = frozenset(
    {(429, "rate_limited"), (502, "hot_server"), (503, "server_draining"), (409, "transaction_conflict")}
)
"""Answers which promise that the call had no effect, besides the refusals (4xx other than 408)."""

_NOT_SENT = (ConnectionRefusedError, sdk_private.ConnectError, sdk_private.ConnectionRetiredError)
"""No connection was made, or the call did not get its place on one."""

_CLIENT_CLOSED = "Pool is closed"
"""What the SDK says of a client that was closed under a call, which it may have been sent before."""

_REMEDIES = {
    "stream_not_found": "appends make streams where the basin has create-stream-on-append; ensure_basin() turns it on",
    "basin_not_found": "create it with ensure_basin(), or correct basin= or S2_BASIN",
    "authn": "check access_token= or S2_ACCESS_TOKEN",
    "permission_denied": "the access token does not allow it",
}


class ConditionError(StoreError):
    """An append's condition was not met. One of ``token`` and ``next_index`` is given: what the server holds."""

    def __init__(self, message: str, *, code: str, status: int | None, kind: Kind = "condition") -> None:
        super().__init__(message, code=code, status=status, kind=kind)
        self.token: str | None = None
        self.next_index: int | None = None


class PastTailError(StoreError):
    """A read started past the tail; ``tail`` is the next sequence number."""

    def __init__(self, message: str, *, code: str, status: int | None, kind: Kind = "past_tail") -> None:
        super().__init__(message, code=code, status=status, kind=kind)
        self.tail = 0


def classify(error: BaseException, doing: str) -> S2PubSubError:
    """Our error for one that the SDK, the system or the loop raised while ``doing``.

    ``kind`` of the result says how to treat it and ``outcome`` what a failed append has left: ``'not_stored'`` where
    the failure proves it, else ``'unknown'``.
    """
    if isinstance(error, S2PubSubError):
        return error
    if isinstance(error, sdk_private.AppendIndefiniteFailureError):
        result = classify(error.final_attempt_error, doing)
        result.outcome = "unknown"
        return result
    if isinstance(error, s2_sdk.S2ServerError):
        return _from_answer(error, doing)
    return _from_client(error, doing)


def _from_answer(error: s2_sdk.S2ServerError, doing: str) -> StoreError:
    status, code = error.status_code, error.code
    if isinstance(error, s2_sdk.AppendConditionError):
        condition = ConditionError(f"{doing}: {error.message}", code=code, status=status)
        if isinstance(error, s2_sdk.FencingTokenMismatchError):
            condition.token = error.expected_fencing_token
        elif isinstance(error, s2_sdk.SeqNumMismatchError):
            condition.next_index = error.expected_seq_num
        condition.outcome = "not_stored"
        return condition
    if isinstance(error, s2_sdk.ReadUnwrittenError):
        past = PastTailError(f"{doing}: the position is past the tail", code=code, status=status)
        past.tail = error.tail.seq_num
        return past
    kind: Kind = "refused"
    if code in GONE_CODES:
        kind = "gone"
    elif status in _PASSING_STATUSES or code == "transaction_conflict":
        kind = "outage"
    remedy = f"; {_REMEDIES[code]}" if code in _REMEDIES else ""
    result = StoreError(f"{doing}: {error.message} ({status} {code}){remedy}", code=code, status=status, kind=kind)
    surely_nothing = kind in ("refused", "gone") or (status, code) in _NEVER_STARTED
    result.outcome = "not_stored" if surely_nothing else "unknown"
    result.retry_after = error._retry_after or 0.0
    return result


def _from_client(error: BaseException, doing: str) -> S2PubSubError:
    chain = list(_causes(error))
    if any(isinstance(cause, RuntimeError) and "shutdown" in str(cause) for cause in chain):
        closed = ClosedError(f"{doing}: the interpreter is ending")
        closed.outcome = "not_stored"
        return closed
    transport = any(isinstance(cause, (sdk_private.TransportError, OSError, TimeoutError)) for cause in chain)
    if not transport:
        return _from_fault(error, doing, inner=len(chain) > 1)
    kind: Kind = "outage"
    outcome_known = False
    remedy = ""
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in chain):
        kind, outcome_known, remedy = "refused", True, "; its certificate was not accepted (see SSL_CERT_FILE)"
    elif any(isinstance(cause, socket.gaierror) for cause in chain):
        kind, outcome_known, remedy = "name", True, "; check the endpoint's host name"
    elif any(isinstance(cause, _NOT_SENT) for cause in chain):
        outcome_known = True
    result = StoreError(
        f"{doing}: the server could not be reached or the connection broke: {error}{remedy}",
        code="connection",
        status=None,
        kind=kind,
    )
    result.outcome = "not_stored" if outcome_known else "unknown"
    return result


def _from_fault(error: BaseException, doing: str, *, inner: bool) -> StoreError:
    """``inner``: something broke inside the SDK, and a fresh client may do; else it refused an argument, as it will."""
    result = StoreError(f"{doing}: {error}", code="client", status=None, kind="outage" if inner else "refused")
    result.outcome = "unknown" if inner or _CLIENT_CLOSED in str(error) else "not_stored"
    return result


class Attempts:
    """What is known of all attempts that the SDK makes of one append.

    Its policy, which is its maker's, decides whether an append is sent again after a failure that may hide a stored
    record. What surely was not stored comes back to us at once, so that it is in nobody's hands while it waits.
    """

    def __init__(self) -> None:
        self.may_be_stored = False

    def watch(self, stream: s2_sdk.S2Stream) -> s2_sdk.S2Stream:
        """Look at each failure of an append that is made with the handle ``stream``."""
        retrier = stream._append_retrier
        by_policy = retrier.should_retry_on

        def sent_again(error: Exception) -> bool:
            failure = classify(error, "append")
            self.may_be_stored = self.may_be_stored or failure.outcome != "not_stored"
            return by_policy(error) and (self.may_be_stored or not proves_nothing_stored(failure))

        retrier.should_retry_on = sent_again
        return stream


def is_broken_client(error: BaseException) -> bool:
    """Whether ``error`` says that the SDK client, not the server or one connection, is of no more use.

    A closed or refused connection is not: the SDK opens another one. Silence is, and so is any fault that is no
    transport error and no server's answer, unless it is about an argument (those have no cause).
    """
    chain = list(_causes(error))
    if any(isinstance(cause, (s2_sdk.S2ServerError, sdk_private.ConnectError)) for cause in chain):
        return False
    if any(isinstance(cause, (sdk_private.ReadTimeoutError, TimeoutError)) for cause in chain):
        return True
    if any(isinstance(cause, (sdk_private.TransportError, OSError)) for cause in chain):
        return False
    return len(chain) > 1 or _CLIENT_CLOSED in str(error)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
