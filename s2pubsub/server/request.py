"""Reading the parts of a request: media types, headers, query parameters, JSON bodies.

Each function turns one part into a checked value, or raises the `ApiError` that the API has for that part.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl

from s2pubsub.codec.reading import is_deeper
from s2pubsub.server.chunk import Limits
from s2pubsub.server.exchange import Exchange, decode
from s2pubsub.server.failure import ApiError
from s2pubsub.server.names import MAX_U32, MAX_U64, check_basin, check_token
from s2pubsub.server.reading import ReadRequest

T = TypeVar("T")
Format = Literal["raw", "base64"]

_UNSIGNED = re.compile(r"\+?[0-9]+\Z", re.ASCII)
_FORMATS: dict[str, Format] = {"raw": "raw", "json": "raw", "base64": "base64", "json-binsafe": "base64"}
_MEDIA_TYPE = re.compile(r"\s*([!#$&^_.+\-\w]+)/([!#$&^_.+\-\w]+)\s*(;.*)?\Z", re.ASCII)
_MAX_KEY = 44
_MAX_DEPTH = 32
"""Levels of a JSON document; those of the API have six."""


# Media types


@lru_cache(64)
def media_type(value: str | None) -> str:
    """The first media type of a header in lower case, without parameters; empty when there is none."""
    match = _MEDIA_TYPE.match((value or "").split(",")[0])
    return f"{match[1]}/{match[2]}".lower() if match else ""


def is_json(kind: str) -> bool:
    """Whether a media type is JSON."""
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def is_protobuf(kind: str) -> bool:
    """Whether a media type is protobuf."""
    return kind in ("application/protobuf", "application/x-protobuf")


def is_session(exchange: Exchange) -> bool:
    """Whether the request opens a session."""
    return media_type(exchange.headers.get("content-type")) == "s2s/proto"


def wants_protobuf(exchange: Exchange) -> bool:
    """Whether the answer shall be protobuf."""
    return is_protobuf(media_type(exchange.headers.get("accept")))


# Path and headers


def path_name(segment: str, check: Callable[[str], str]) -> str:
    """A name in the path."""
    try:
        return check(decode(segment))
    except ValueError as error:
        raise ApiError("bad_path", str(error)) from None


def header(exchange: Exchange, name: str, parse: Callable[[str], T]) -> T | None:
    """A header parsed, None where it is absent."""
    value = exchange.headers.get(name)
    if value is None:
        return None
    try:
        return parse(value)
    except ValueError as error:
        raise ApiError("bad_header", f"invalid header {name}: {error}") from None


def basin_header(exchange: Exchange) -> str:
    """The basin that the request is about."""
    basin = header(exchange, "s2-basin", check_basin)
    if basin is None:
        raise ApiError("bad_header", "the header s2-basin is missing")
    return basin


def request_token(exchange: Exchange) -> str | None:
    """What makes a repeated create the same one."""
    return header(exchange, "s2-request-token", check_token)


def record_format(exchange: Exchange) -> Format:
    """How text in JSON stands for bytes."""
    return header(exchange, "s2-format", _parse_format) or "raw"


def _parse_format(value: str) -> Format:
    if value.strip() not in _FORMATS:
        raise ValueError("unknown format")
    return _FORMATS[value.strip()]


def encryption_key(exchange: Exchange) -> str | None:
    """The key for an encrypted stream, as it was sent."""
    return header(exchange, "s2-encryption-key", _parse_key)


def _parse_key(value: str) -> str:
    if not 1 <= len(value.strip()) <= _MAX_KEY:
        raise ValueError(f"a key has 1 to {_MAX_KEY} characters")
    return value.strip()


def last_event_id(exchange: Exchange) -> tuple[int, int, int] | None:
    """Sequence number, records and bytes of the last event that the client has seen."""
    return header(exchange, "last-event-id", _parse_event_id)


def _parse_event_id(value: str) -> tuple[int, int, int]:
    parts = value.split(",")
    if len(parts) != 3:
        raise ValueError("an event id has three numbers")
    seq_num, count, size = (parse_unsigned(part) for part in parts)
    return seq_num, count, size


# Query


def parse_unsigned(text: str, maximum: int = MAX_U64) -> int:
    """An unsigned integer in decimal digits; `ValueError` otherwise."""
    if not _UNSIGNED.match(text) or int(text) > maximum:
        raise ValueError("not an unsigned integer")
    return int(text)


def query(exchange: Exchange, fields: dict[str, Callable[[str], Any]]) -> dict[str, Any]:
    """The parameters named in ``fields``, parsed; others are ignored, repeated ones refused."""
    values: dict[str, Any] = {}
    try:
        pairs = parse_qsl(exchange.query, keep_blank_values=True, errors="replace", max_num_fields=100)
    except ValueError as error:
        raise ApiError("bad_query", str(error)) from None
    for name, text in pairs:
        parse = fields.get(name)
        if parse is None:
            continue
        if name in values:
            raise ApiError("bad_query", f"the parameter {name} is repeated")
        try:
            values[name] = parse(text)
        except ValueError as error:
            raise ApiError("bad_query", f"invalid parameter {name}: {error}") from None
    return values


def page_query(exchange: Exchange, check: Callable[[str], str]) -> tuple[str, str, int | None]:
    """Prefix, start_after and limit of a listing."""
    values = query(exchange, {"prefix": check, "start_after": check, "limit": parse_unsigned})
    return values.get("prefix", ""), values.get("start_after", ""), values.get("limit")


def read_query(exchange: Exchange) -> ReadRequest:
    """The parameters of a read."""
    number = parse_unsigned
    values = query(
        exchange,
        {
            "seq_num": number,
            "timestamp": number,
            "tail_offset": number,
            "clamp": _parse_bool,
            "count": number,
            "bytes": number,
            "until": number,
            "wait": lambda text: parse_unsigned(text, MAX_U32),
        },
    )
    if sum(name in values for name in ("seq_num", "timestamp", "tail_offset")) > 1:
        raise ApiError("invalid", "a read has one start only")
    return ReadRequest(
        seq_num=values.get("seq_num"),
        timestamp=values.get("timestamp"),
        tail_offset=values.get("tail_offset"),
        clamp=values.get("clamp", False),
        limits=Limits(values.get("count"), values.get("bytes"), values.get("until")),
        wait=values.get("wait"),
    )


def _parse_bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("neither 'true' nor 'false'")
    return text == "true"


# JSON bodies


def parse_json(data: bytes | str, code: str) -> Any:
    """Strict JSON; `ApiError` with ``code`` where it is not."""
    try:
        # Decoded here, since `json` would guess other encodings than UTF-8.
        text = data if isinstance(data, str) else data.decode()
        if is_deeper(data.encode() if isinstance(data, str) else data, _MAX_DEPTH):
            raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ApiError(code, f"not valid JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key is repeated")
    return document


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


async def json_object(exchange: Exchange) -> dict[str, Any]:
    """The body, which must be a JSON object and be labelled so."""
    if not is_json(media_type(exchange.headers.get("content-type"))):
        raise ApiError("bad_json", "the request needs the content-type application/json")
    document = parse_json(await exchange.body("bad_json"), "bad_json")
    if not isinstance(document, dict):
        raise ApiError("bad_json", "the body is an object")
    return document


async def optional_json_object(exchange: Exchange) -> dict[str, Any]:
    """The body as an object; empty where there is no body, or no content-type."""
    if "content-type" not in exchange.headers:
        return {}
    if not is_json(media_type(exchange.headers["content-type"])):
        raise ApiError("bad_json", "the request needs the content-type application/json")
    body = await exchange.body("bad_json")
    if not body:
        return {}
    document = parse_json(body, "bad_json")
    if not isinstance(document, dict):
        raise ApiError("bad_json", "the body is an object")
    return document


def parsed(code: str, parse: Callable[[Any], T], value: Any) -> T:
    """``parse(value)`` with a `ValueError` turned into an `ApiError` with ``code``."""
    try:
        return parse(value)
    except ValueError as error:
        raise ApiError(code, str(error)) from None
