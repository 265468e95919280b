"""Every error of the library, in one tree.

    S2PubSubError
    ├── EncodeError (ValueError)            a value that JSON would lose or change; nothing was sent
    ├── DecodeError                         a stored record that is not a valid event
    ├── ReplayGapError                      the asked-for events were trimmed or have expired
    ├── TopicGoneError                      the topic was deleted under its reader
    ├── ClosedError                         the client, subscription, publisher or lease is closed
    ├── OperationTimeoutError (TimeoutError)  a call did not end within its timeout
    ├── StoreError                          the server refused, failed, or could not be reached
    ├── GroupNotSupportedError (ValueError)   consumer groups exist on local topics only
    ├── LeaseError
    │   ├── LeaseUnavailableError           somebody else holds the lease
    │   └── LeaseLostError                  the lease was lost while held
    └── RunError
        ├── RunExistsError                  the run id is taken
        ├── RunNotFoundError                no such run
        ├── RunEndedError                   the run has its end event already
        └── RunIdleError                    the run has been silent for too long

Errors carry their facts as attributes, survive pickling, and have the SDK's own error as ``__cause__``.
An error of a publish also has ``outcome``: ``'not_stored'`` or ``'unknown'``, and ``stored``: the events
of the same call that were acknowledged before it failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from s2pubsub.event import Event

Outcome = Literal["not_stored", "unknown"]

Kind = Literal["outage", "name", "gone", "past_tail", "condition", "refused"]
"""Kinds of a ``StoreError``: an *outage* passes (connection, 408, 429, 5xx, a conflict); a *name* that did not
resolve may be a typing error or an outage; the stream is *gone* or absent; a read started *past the tail*; an append's
*condition* was not met; everything else was *refused* for good."""


class S2PubSubError(Exception):
    """Root of the library's errors."""

    outcome: Outcome | None = None
    """What became of a failed publish: ``'not_stored'``, ``'unknown'``; None when nothing was published."""

    stored: tuple[Event, ...] = ()
    """Events of the failed call that the server has acknowledged."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[S2PubSubError], args: tuple[Any, ...], state: dict[str, Any]) -> S2PubSubError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class EncodeError(S2PubSubError, ValueError):
    """A value cannot be stored as strict JSON. ``path`` is its place, such as ``data.items[3].price``."""

    outcome = "not_stored"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class DecodeError(S2PubSubError):
    """The record at ``index`` of ``topic`` is not a valid event."""

    def __init__(self, topic: str, index: int, problem: str) -> None:
        super().__init__(
            f"record {index} of topic {topic!r} is not a valid event: {problem}; read on from index {index + 1}"
        )
        self.topic = topic
        self.index = index
        self.problem = problem


class ReplayGapError(S2PubSubError):
    """Events from ``expected`` up to ``actual`` of ``topic`` are no longer stored; none was delivered."""

    def __init__(self, topic: str, expected: int, actual: int) -> None:
        super().__init__(
            f"topic {topic!r} no longer holds the events from index {expected}: it was trimmed or they have expired, "
            f"and goes on at index {actual}"
        )
        self.topic = topic
        self.expected = expected
        self.actual = actual


class TopicGoneError(S2PubSubError):
    """``topic`` was deleted while it was being read."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} was deleted")
        self.topic = topic


class ClosedError(S2PubSubError):
    """The object is closed, or belongs to the process that this one was forked from."""


class OperationTimeoutError(S2PubSubError, TimeoutError):
    """The call did not end within its timeout."""


class StoreError(S2PubSubError):
    """The server refused or failed the call. ``code`` is S2's error code, ``status`` the HTTP status.

    ``code='connection'`` and ``status=None`` mean that the server could not be reached or the connection broke.
    """

    def __init__(self, message: str, *, code: str, status: int | None, kind: Kind = "refused") -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.kind: Kind = kind
        """How the library treats it; see ``Kind``."""
        self.retry_after = 0.0
        """Seconds that the server asked to wait."""


class GroupNotSupportedError(S2PubSubError, ValueError):
    """Consumer groups exist on local topics only; a durable topic is a log which every reader sees whole."""


class LeaseError(S2PubSubError):
    """Root of the errors about leases."""


class LeaseUnavailableError(LeaseError):
    """The lease ``key`` is held by ``holder``."""

    def __init__(self, key: str, holder: str | None) -> None:
        super().__init__(f"lease {key!r} is held by {holder!r}")
        self.key = key
        self.holder = holder


class LeaseLostError(LeaseError):
    """The lease ``key`` is no longer held by ``owner``."""

    def __init__(self, key: str, owner: str, reason: str) -> None:
        super().__init__(f"{owner!r} has lost the lease {key!r}: {reason}")
        self.key = key
        self.owner = owner
        self.reason = reason


class RunError(S2PubSubError):
    """Root of the errors about runs; ``run_id`` names the run."""

    def __init__(self, run_id: str, problem: str) -> None:
        super().__init__(f"run {run_id!r} {problem}")
        self.run_id = run_id


class RunExistsError(RunError):
    """A run with this id exists already."""


class RunNotFoundError(RunError):
    """No run with this id exists, or it has been cleaned up."""


class RunEndedError(RunError):
    """The run has its end event; nothing may follow it."""


class RunIdleError(RunError):
    """The run has been silent for longer than the observer's limit."""
