"""Tests of lease tokens."""

from __future__ import annotations

import math
import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from s2pubsub.fence import MAX_EXPIRY_MS, Token, check_owner, check_ttl, decode_token, encode_token

UUID_OWNER = "0f8fad5b-d9cb-469f-a165-70867728950e"
VECTORS = [
    (UUID_OWNER, 4102444800000, "pQEDuyzD2AABAgMPj61b2ctGn6FlcIZ3KJUO"),
    ("worker-1", 4102444800000, "pQIDuyzD2AABAgN3b3JrZXItMQ"),
    ("wörker-ü", 4102444800000, "pQIDuyzD2AABAgN3w7Zya2VyLcO8"),
    (UUID_OWNER, 1767225600000, "pQEBm3baqAABAgMPj61b2ctGn6FlcIZ3KJUO"),
]


def nonce(size: int) -> bytes:
    return bytes(range(1, size + 1))


def text_of(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


@pytest.mark.parametrize(("owner", "expires_at_ms", "text"), VECTORS)
def test_vectors(owner: str, expires_at_ms: int, text: str) -> None:
    """Tokens are those that TypeScript programs write and read."""
    token = Token(owner, expires_at_ms, text)
    assert encode_token(owner, expires_at_ms, random=nonce) == token
    assert decode_token(text) == token


owners = st.uuids().map(str) | st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: len(text.encode()) <= 16
)


@given(owners, st.integers(0, MAX_EXPIRY_MS))
@example("x" * 16, MAX_EXPIRY_MS)
@example("x", 0)
@example("€€€€€x", 0)
@example("W", 0)  # its token ends with an X
def test_round_trip(owner: str, expires_at_ms: int) -> None:
    """Every owner that is accepted comes back, in at most the 36 characters that a fencing token may have."""
    check_owner(owner)
    token = encode_token(owner, expires_at_ms)
    assert (token.owner, token.expires_at_ms) == (owner, expires_at_ms)
    assert decode_token(token.text) == token
    assert len(token.text) <= 36


def test_nonce() -> None:
    """Two tokens of one owner and expiry differ."""
    assert len({encode_token("a", 5).text for _ in range(50)}) > 45


def test_is_live() -> None:
    """A lease has ended in the millisecond that its token names."""
    token = encode_token("a", 1000)
    assert token.is_live(999)
    assert not token.is_live(1000)
    assert not token.is_live(1001)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        token.owner = "b"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s2pubsub",
        "lock",
        "pQIDuyzD2AABAgN3b3JrZXItMQ==",
        "pQIDuyzD2AABAgN3b3JrZXItMR",  # another spelling of the same bytes
        "pQIDuyzD2AABAgN3b3JrZXItM",  # a length that base64 does not have
        "pQIDuyzD2AABAgN3b3JrZXItMQ\n",
        "pQIDuyzD2AABAgN3b3Jr ZXItMQ",
        "pQIDuyzD2AABAgN3b3Jr+ZXItMQ",
        "pQIDuyzD2AABAgN3b3JrZXItMQü",
        text_of(b"\xa5\x02" + bytes(9)),  # no owner
        text_of(b"\xa5\x01" + bytes(9)),
        text_of(b"\xa5\x02" + bytes(8)),
        text_of(b"\xa5"),
        text_of(b"\xa4\x02" + bytes(9) + b"a"),  # another first byte
        text_of(b"\xa5\x00" + bytes(9) + b"a"),  # other kinds
        text_of(b"\xa5\x03" + bytes(9) + b"a"),
        text_of(b"\xa5\x01" + bytes(9) + b"a" * 15),  # a UUID has 16 bytes
        text_of(b"\xa5\x01" + bytes(9) + b"a" * 17),
        text_of(b"\xa5\x02" + bytes(9) + b"a" * 17),
        text_of(b"\xa5\x02" + bytes(9) + b"\xff"),  # no UTF-8
        "p" * 37,
    ],
)
def test_unknown_formats(text: str) -> None:
    """Whatever is no token of ours has no owner."""
    assert decode_token(text) is None


@given(
    st.text(max_size=40)
    | st.binary(max_size=27).map(text_of)
    | st.binary(max_size=25).map(lambda b: text_of(b"\xa5\x02" + b))
)
def test_any_text(text: str) -> None:
    """Any text is a token that is written the same again, or None."""
    token = decode_token(text)
    if token is not None:
        assert encode_token(token.owner, token.expires_at_ms, random=lambda size: raw(text)[8 : 8 + size]).text == text


def raw(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


@pytest.mark.parametrize(
    ("owner", "size"),
    [
        (UUID_OWNER.upper(), 36),
        (uuid.UUID(UUID_OWNER).hex, 32),
        ("x" * 17, 17),
        ("€" * 6, 18),
        (UUID_OWNER + "\n", 37),
    ],
)
def test_long_owners(owner: str, size: int) -> None:
    """An owner that fits neither form is refused with its size and what to use."""
    for call in (check_owner, lambda name: encode_token(name, 0)):
        with pytest.raises(ValueError, match=r"^lease owner ") as caught:
            call(owner)
        assert str(caught.value) == (
            f"lease owner {owner!a} takes {size} bytes and is no lower-case UUID: use a lower-case UUID such as "
            "str(uuid.uuid4()), or text of 1 to 16 bytes of UTF-8"
        )


def test_very_long_owners() -> None:
    """A message shows the first sixty characters of an owner."""
    for owner in ("x" * 60 + "yz", "x" * 60 + "\ud83d"):
        with pytest.raises(ValueError, match=rf"^lease owner '{'x' * 60}' "):
            check_owner(owner)


def test_other_owners() -> None:
    """An owner is text, not empty, and has UTF-8."""
    with pytest.raises(ValueError, match=r"^the owner of a lease must not be empty: use a lower-case UUID"):
        check_owner("")
    with pytest.raises(ValueError, match=r"^lease owner 'a\\ud83d' holds a lone surrogate, which has no UTF-8: use"):
        check_owner("a\ud83d")
    for owner in (None, 5, b"x", uuid.uuid4()):
        with pytest.raises(TypeError, match=rf"^the owner of a lease must be a str, not {type(owner).__name__}$"):
            check_owner(owner)


@pytest.mark.parametrize("expiry", [-1, MAX_EXPIRY_MS + 1])
def test_expiry(expiry: int) -> None:
    """An expiry beyond the six bytes that a token has for it is refused."""
    with pytest.raises(ValueError, match=r"^the expiry of a lease must lie between 1970 and 2\*\*48 - 1"):
        encode_token("a", expiry)


@pytest.mark.parametrize("expiry", [1.0, True, None, "5"])
def test_expiry_type(expiry: Any) -> None:
    """An expiry is an int."""
    with pytest.raises(TypeError, match=rf"^expires_at_ms must be an int, not {type(expiry).__name__}$"):
        encode_token("a", expiry)


def test_how_long_a_lease_may_last() -> None:
    """A number of seconds above 0; truth values, text and what is not finite are refused, with what was given."""
    for ttl in (5, 0.001, 1e12):
        check_ttl(ttl)
    for ttl in (True, "5", None):
        with pytest.raises(TypeError, match=f"^ttl must be a number of seconds, not {ttl!r}$"):
            check_ttl(ttl)  # type: ignore[arg-type]
    for ttl in (0, -1, 0.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"^ttl must be a number of seconds above 0, got {ttl!r}$"):
            check_ttl(ttl)
