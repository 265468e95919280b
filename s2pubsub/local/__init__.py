"""Publish/subscribe within one process: ``LocalPubSub``, the default transport for topics that are not stored in S2.

``pubsub`` has the verbs and ``topics`` what is subscribed; a ``line`` holds the events that wait for one reader or for
one group; ``subscription`` is the handle and the thread that calls a callback; ``batching`` decides when a batch is
due; ``leases`` are the leases of one process. Nothing here knows S2, and nothing survives the process.

Threads: one ``s2pubsub-local-<topic>`` for each callback, started by ``subscribe``. Pauses before another attempt,
limits on handling and the waits of batches need no thread of their own: whoever waits for an event wakes when one of
them is over.
"""

from s2pubsub.local.leases import LocalHeldLease, LocalLeaseProvider
from s2pubsub.local.options import BatchOptions
from s2pubsub.local.pubsub import LocalPubSub
from s2pubsub.local.subscription import LocalSubscription

__all__ = ["BatchOptions", "LocalHeldLease", "LocalLeaseProvider", "LocalPubSub", "LocalSubscription"]
