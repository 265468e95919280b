"""Durable publish/subscribe for agent streams on S2, for Python programs that block.

    with S2PubSub(basin="agent-runs") as pubsub:
        event = pubsub.publish("agent.stream.run-7", type="chunk", run_id="run-7", data={"n": 1})
        with pubsub.subscribe_from_offset("agent.stream.run-7", 0) as events:
            for event in events:
                print(event.index, event.data)

Token, endpoints and basin come from the environment where they are not given (see ``s2pubsub.settings``).
"""

from __future__ import annotations

import logging

from s2pubsub.client import S2PubSub
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
from s2pubsub.local import BatchOptions, LocalPubSub
from s2pubsub.stats import Stats
from s2pubsub.subscription import Subscription

__all__ = [
    "BatchOptions",
    "ClosedError",
    "DecodeError",
    "EncodeError",
    "Event",
    "GroupNotSupportedError",
    "LeaseError",
    "LeaseLostError",
    "LeaseUnavailableError",
    "LocalPubSub",
    "OperationTimeoutError",
    "ReplayGapError",
    "RunEndedError",
    "RunError",
    "RunExistsError",
    "RunIdleError",
    "RunNotFoundError",
    "S2PubSub",
    "S2PubSubError",
    "Stats",
    "StoreError",
    "Subscription",
    "TopicGoneError",
]

logging.getLogger("s2pubsub").addHandler(logging.NullHandler())


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version

        return version("s2pubsub")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
