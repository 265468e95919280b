"""Whether a request comes from a page of the same site: other sites' pages must not be able to stop runs.

A browser says where a request comes from (``Sec-Fetch-Site``, ``Origin``), and lets a foreign page send a header of its
own choice only where the application has allowed it (CORS). A program that is no browser sends such a header.
"""

from __future__ import annotations

from typing import Protocol
from urllib.parse import urlsplit

HEADER = "X-Requested-With"
"""A request with this header, whatever its value, counts as the application's own."""


class Headers(Protocol):
    """Headers of any framework."""

    def get(self, name: str, /) -> str | None: ...


def is_own_request(headers: Headers, host: str) -> bool:
    """Whether a request that changes something may be obeyed.

    Args:
        headers: the request's headers, looked up in any case.
        host: host and port that the request was sent to.
    """
    if headers.get(HEADER):
        return True
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("Origin")
    # Not the scheme: behind a proxy that ends TLS the application sees http.
    return origin is not None and urlsplit(origin).netloc.lower() == host.lower()
