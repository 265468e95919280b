"""The lease token: who holds a lease and until when, as the text of an S2 fencing token.

Relies on nothing. Not for acquiring or renewing leases: this only writes and reads the token, which TypeScript programs
share. Its bytes: ``A5``, kind (1 UUID, 2 text), six of expiry (epoch milliseconds, big-endian), three random, then the
owner (the UUID's 16 bytes, or 1 to 16 bytes of UTF-8); written as base64url without padding, at most 36 characters.
"""

from __future__ import annotations

import binascii
import math
import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from uuid import UUID

import attrs

__all__ = ["MAX_EXPIRY_MS", "MAX_OWNER_BYTES", "Token", "check_owner", "check_ttl", "decode_token", "encode_token"]

MAX_OWNER_BYTES = 16
"""Longest owner that is not a UUID, in bytes of UTF-8."""

MAX_EXPIRY_MS = 2**48 - 1
"""Latest expiry that a token can carry, in epoch milliseconds (the year 10889)."""

_MAGIC = 0xA5
_UUID_KIND = 1
_TEXT_KIND = 2
_NONCE_BYTES = 3
_HEAD_BYTES = 2 + 6 + _NONCE_BYTES
_UUID_TEXT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BASE64URL = re.compile(r"[A-Za-z0-9_-]{1,36}")


@attrs.frozen
class Token:
    """A lease token.

    Attributes:
        owner: who holds the lease.
        expires_at_ms: when the lease ends, in epoch milliseconds.
        text: the token as S2 stores it; two tokens of one owner and expiry differ in it.
    """

    owner: str
    expires_at_ms: int
    text: str

    def is_live(self, now_ms: int) -> bool:
        """Say whether the lease still runs at ``now_ms``, in epoch milliseconds."""
        return self.expires_at_ms > now_ms


def check_owner(owner: str) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless ``owner`` fits into a token."""
    _owner_bytes(owner)


def check_ttl(ttl: float) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless ``ttl`` is a number of seconds above 0."""
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)):
        raise TypeError(f"ttl must be a number of seconds, not {ttl!r}")
    if not math.isfinite(ttl) or ttl <= 0:
        raise ValueError(f"ttl must be a number of seconds above 0, got {ttl!r}")


def encode_token(owner: str, expires_at_ms: int, *, random: Callable[[int], bytes] = os.urandom) -> Token:
    """Make a new token. ``random(n)`` gives the n bytes that tell it from every other of this owner and expiry.

    Raises:
        TypeError: ``owner`` is not text or ``expires_at_ms`` not an int.
        ValueError: ``owner`` or ``expires_at_ms`` does not fit into a token.
    """
    kind, owner_bytes = _owner_bytes(owner)
    if type(expires_at_ms) is not int:
        raise TypeError(f"expires_at_ms must be an int, not {type(expires_at_ms).__name__}")
    if not 0 <= expires_at_ms <= MAX_EXPIRY_MS:
        raise ValueError("the expiry of a lease must lie between 1970 and 2**48 - 1 epoch milliseconds (year 10889)")
    raw = bytes([_MAGIC, kind]) + expires_at_ms.to_bytes(6, "big") + random(_NONCE_BYTES) + owner_bytes
    return Token(owner, expires_at_ms, urlsafe_b64encode(raw).rstrip(b"=").decode())


def decode_token(text: str) -> Token | None:
    """Read a token; None for every other text (a lease with such a token has no owner and can be taken)."""
    if not _BASE64URL.fullmatch(text):
        return None
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        return None
    # Base64 leaves unused bits in the last character: only one of its spellings is a token.
    if urlsafe_b64encode(raw).rstrip(b"=").decode() != text:
        return None
    head, owner_bytes = raw[:_HEAD_BYTES], raw[_HEAD_BYTES:]
    if not owner_bytes or head[0] != _MAGIC:
        return None
    if head[1] == _UUID_KIND and len(owner_bytes) == 16:
        owner = str(UUID(bytes=owner_bytes))
    elif head[1] == _TEXT_KIND and len(owner_bytes) <= MAX_OWNER_BYTES:
        try:
            owner = owner_bytes.decode()
        except UnicodeDecodeError:
            return None
    else:
        return None
    return Token(owner, int.from_bytes(head[2:8], "big"), text)


def _owner_bytes(owner: str) -> tuple[int, bytes]:
    if type(owner) is not str:
        raise TypeError(f"the owner of a lease must be a str, not {type(owner).__name__}")
    if _UUID_TEXT.fullmatch(owner):
        return _UUID_KIND, UUID(owner).bytes
    remedy = f"use a lower-case UUID such as str(uuid.uuid4()), or text of 1 to {MAX_OWNER_BYTES} bytes of UTF-8"
    if not owner:
        raise ValueError(f"the owner of a lease must not be empty: {remedy}")
    try:
        owner_bytes = owner.encode()
    except UnicodeEncodeError:
        raise ValueError(f"lease owner {owner[:60]!a} holds a lone surrogate, which has no UTF-8: {remedy}") from None
    if len(owner_bytes) > MAX_OWNER_BYTES:
        raise ValueError(
            f"lease owner {owner[:60]!a} takes {len(owner_bytes)} bytes and is no lower-case UUID: {remedy}"
        )
    return _TEXT_KIND, owner_bytes
