"""The rules for names and the limits of the S2 API.

Every check raises `ValueError` with a sentence; the caller knows whether the name stood in a path, a query, a
header or a document, and so which error code it deserves.
"""

from __future__ import annotations

import re

MAX_BATCH_RECORDS = 1000
MAX_BATCH_BYTES = 1024 * 1024
MAX_TOKEN_BYTES = 36
MAX_BODY_BYTES = 2 * 1024 * 1024
MAX_PAGE = 1000
MAX_UNARY_WAIT = 60
MAX_U64 = 2**64 - 1
MAX_U32 = 2**32 - 1

_BASIN = re.compile(r"[a-z0-9][a-z0-9-]{6,46}[a-z0-9]\Z")
_BASIN_PREFIX = re.compile(r"([a-z0-9][a-z0-9-]{0,47})?\Z")


def check_basin(name: str) -> str:
    """A basin's name: 8 to 48 of a-z, 0-9 and hyphen, no hyphen at either end."""
    if not _BASIN.match(name):
        raise ValueError("a basin name has 8 to 48 lower-case letters, digits and hyphens, no hyphen at either end")
    return name


def check_basin_prefix(name: str) -> str:
    """The beginning of a basin's name, in a listing."""
    if not _BASIN_PREFIX.match(name):
        raise ValueError("a basin prefix has at most 48 lower-case letters, digits and hyphens, no hyphen first")
    return name


def check_stream(name: str) -> str:
    """A stream's name: 1 to 512 bytes of UTF-8 without NUL, neither ``.`` nor ``..``."""
    if not 1 <= _utf8_length(name) <= 512:
        raise ValueError("a stream name has 1 to 512 bytes")
    if name in (".", ".."):
        raise ValueError("a stream name is neither '.' nor '..'")
    if "\0" in name:
        raise ValueError("a stream name has no NUL")
    return name


def check_stream_prefix(name: str) -> str:
    """The beginning of a stream's name, in a listing."""
    if _utf8_length(name) > 512:
        raise ValueError("a stream prefix has at most 512 bytes")
    if "\0" in name:
        raise ValueError("a stream prefix has no NUL")
    return name


def check_token_id(name: str) -> str:
    """The id of an access token."""
    if not 1 <= _utf8_length(name) <= 96 or "\0" in name:
        raise ValueError("an access token id has 1 to 96 bytes and no NUL")
    return name


def check_token_id_prefix(name: str) -> str:
    """The beginning of an access token's id."""
    if _utf8_length(name) > 96 or "\0" in name:
        raise ValueError("an access token id prefix has at most 96 bytes and no NUL")
    return name


def check_location(name: str) -> str:
    """The name of a location."""
    if not 1 <= _utf8_length(name) <= 64:
        raise ValueError("a location name has 1 to 64 bytes")
    return name


def check_token(token: str) -> str:
    """A fencing token or a request token: at most 36 bytes."""
    if _utf8_length(token) > MAX_TOKEN_BYTES:
        raise ValueError(f"a token has at most {MAX_TOKEN_BYTES} bytes")
    return token


def _utf8_length(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise ValueError("a name is valid Unicode") from None
