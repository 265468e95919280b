"""The answer of a lease provider, the same from S2 (``leases``) and from one process (``local``). Relies on nothing."""

from __future__ import annotations

from datetime import datetime

import attrs


@attrs.frozen(kw_only=True)
class LeaseResult:
    """What an attempt to take a lease came to.

    Attributes:
        acquired: whether the caller holds the lease now.
        owner: who holds it after the attempt: the caller, or somebody else; None if nobody is known to.
        expires_at: when the holder's lease ends unless it is renewed, aware; None if ``owner`` is.
    """

    acquired: bool
    owner: str | None
    expires_at: datetime | None
