"""A held lease's renewal beside a lone publish, and each single request: ``python -m benchmarks.bench_leases``.

Every round measures all of them once, so that whatever else the machine does falls on all alike; medians count.
Refusals and look-ups are answered by errors, which `s2 lite` holds back for the client's delayed acknowledgement: that
is most of their time.
"""

from __future__ import annotations

import sys
import uuid
from collections import defaultdict
from collections.abc import Callable

from benchmarks.measuring import Row, main, median, percentile, progress, seconds, usual
from benchmarks.ours import client, lite
from s2pubsub import S2PubSub

TOPIC = "agent.stream.run-7"
TTL = 60.0
RENEWAL_AT_MOST = 1.15


def measure(pubsub: S2PubSub, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each request."""
    leases = pubsub.leases
    samples: dict[str, list[float]] = defaultdict(list)

    def take(name: str, action: Callable[[], object]) -> None:
        samples[name].append(seconds(action) * 1000)

    with leases.hold("held", "owner-a", TTL) as lease:
        pubsub.publish(TOPIC, type="chunk", data=0)
        leases.get_lease_owner("held")
        for n in range(rounds):
            key = f"new-{uuid.uuid4()}"
            take("publish", lambda n=n: pubsub.publish(TOPIC, type="chunk", data=n))
            take("held renewal", lease.renew)
            take("acquire, new", lambda key=key: leases.acquire_lease(key, "owner-a", TTL))
            take("renew", lambda key=key: leases.renew_lease(key, "owner-a", TTL))
            take("transfer", lambda key=key: leases.transfer_lease(key, "owner-a", "owner-b", TTL))
            take("look-up", lambda key=key: leases.get_lease_owner(key))
            take("acquire, held by another", lambda key=key: leases.acquire_lease(key, "owner-a", TTL))
            take("release", lambda key=key: leases.release_lease(key, "owner-b"))
            take("acquire, free", lambda key=key: leases.acquire_lease(key, "owner-a", TTL))
            take("acquire, own", lambda key=key: leases.acquire_lease(key, "owner-a", TTL))
            if n % 50 == 49:
                progress(f"{n + 1} of {rounds} rounds")
    return samples


def rows(samples: dict[str, list[float]]) -> list[Row]:
    """The renewal bound to the publish, everything else reported beside it."""
    publish = median(samples["publish"])
    found = []
    for name, values in samples.items():
        if name != "publish":
            bound = RENEWAL_AT_MOST if name == "held renewal" else None
            found.append(Row(f"{name}: median", median(values), "ms", publish, "lone publish", at_most=bound))
            found.append(Row(f"{name}: 95th percentile", percentile(values, 0.95), "ms"))
    return found


def beside_a_publish() -> list[Row]:
    with lite() as server, client(server.url) as pubsub:
        measure(pubsub, 2)
        return rows(measure(pubsub, usual(200, 5)))


if __name__ == "__main__":
    sys.exit(main("leases", "Leases beside a lone publish", {"requests": beside_a_publish}))
