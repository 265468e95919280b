"""Durable publish/subscribe for agent streams on S2, for Python programs that block.

    with S2PubSub(basin="agent-runs") as pubsub:
        event = pubsub.publish("agent.stream.run-7", type="chunk", run_id="run-7", data={"n": 1})
        with pubsub.subscribe_from_offset("agent.stream.run-7", 0) as events:
            for event in events:
                print(event.index, event.data)

Token, endpoints and basin come from the environment where they are not given (see ``s2pubsub.settings``).

The classes that bring the S2 SDK with them are imported when they are first used, not with the package: a command
starts in half of the time, and pytest, which loads the plugin ``s2pubsub.testing`` in every run, next to nothing.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from s2pubsub.errors import (
    ClosedError,
    DecodeError,
    EncodeError,
    GroupNotSupportedError,
    LeaseError,
    LeaseLostError,
    LeaseUnavailableError,
    OperationTimeoutError,
    ReplayGapError,
    RunEndedError,
    RunError,
    RunExistsError,
    RunIdleError,
    RunNotFoundError,
    S2PubSubError,
    StoreError,
    TopicGoneError,
)
from s2pubsub.event import Event

if TYPE_CHECKING:
    from s2pubsub.client import S2PubSub
    from s2pubsub.held_lease import HeldLease
    from s2pubsub.lease_types import LeaseResult
    from s2pubsub.leases import S2LeaseProvider
    from s2pubsub.local import BatchOptions, LocalPubSub
    from s2pubsub.publisher import Publisher
    from s2pubsub.stats import Stats
    from s2pubsub.subscription import Subscription

_HOMES = {
    "BatchOptions": "local",
    "HeldLease": "held_lease",
    "LeaseResult": "lease_types",
    "LocalPubSub": "local",
    "Publisher": "publisher",
    "S2LeaseProvider": "leases",
    "S2PubSub": "client",
    "Stats": "stats",
    "Subscription": "subscription",
}

__all__ = [
    "BatchOptions",
    "ClosedError",
    "DecodeError",
    "EncodeError",
    "Event",
    "GroupNotSupportedError",
    "HeldLease",
    "LeaseError",
    "LeaseLostError",
    "LeaseResult",
    "LeaseUnavailableError",
    "LocalPubSub",
    "OperationTimeoutError",
    "Publisher",
    "ReplayGapError",
    "RunEndedError",
    "RunError",
    "RunExistsError",
    "RunIdleError",
    "RunNotFoundError",
    "S2LeaseProvider",
    "S2PubSub",
    "S2PubSubError",
    "Stats",
    "StoreError",
    "Subscription",
    "TopicGoneError",
]

logging.getLogger("s2pubsub").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("s2pubsub")
    if name in _HOMES:
        return getattr(import_module(f"s2pubsub.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
