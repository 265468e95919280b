"""The handlers of the control plane: basins and streams, and the parts of the API that this server does not have."""

from __future__ import annotations

from typing import Any

from s2pubsub.server import forms
from s2pubsub.server.catalog import Catalog, Outcome
from s2pubsub.server.config import BasinConfig, StreamConfig, basin_config, basin_patch, stream_config, stream_patch
from s2pubsub.server.exchange import Exchange, Fields
from s2pubsub.server.failure import ApiError
from s2pubsub.server.names import (
    check_basin,
    check_basin_prefix,
    check_location,
    check_stream,
    check_stream_prefix,
    check_token_id,
    check_token_id_prefix,
)
from s2pubsub.server.request import (
    basin_header,
    is_json,
    json_object,
    media_type,
    optional_json_object,
    page_query,
    parse_json,
    parse_unsigned,
    parsed,
    path_name,
    query,
    request_token,
)

_JSON = "application/json"
_INTERVALS = ("minute", "hour", "day")
_METRIC_SETS = (
    ("active-basins", "account-ops"),
    ("storage", "append-ops", "read-ops", "append-throughput", "read-throughput", "basin-ops"),
    ("storage",),
)
"""The sets of metrics of an account, a basin and a stream."""


class Control:
    """The control plane of ``catalog``."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    # Basins

    async def list_basins(self, exchange: Exchange) -> None:
        basins, more = self._catalog.basins.page(*page_query(exchange, check_basin_prefix))
        await _answer(exchange, 200, {"basins": [basin.info() for basin in basins], "has_more": more})

    async def create_basin(self, exchange: Exchange) -> None:
        token = request_token(exchange)
        document = await json_object(exchange)
        name, config = parsed("bad_json", _basin_creation, document)
        basin, outcome = await self._catalog.create_basin(name, config, token)
        await _answer(exchange, 201, basin.info(), outcome)

    async def ensure_basin(self, exchange: Exchange, segment: str) -> None:
        name = path_name(segment, check_basin)
        document = await optional_json_object(exchange)
        config = parsed("bad_json", _config_of_basin, document)
        basin, outcome = await self._catalog.ensure_basin(name, config)
        await _answer(exchange, 201 if outcome == "created" else 200, basin.info(), outcome)

    async def get_basin(self, exchange: Exchange, segment: str) -> None:
        await _answer(exchange, 200, self._catalog.basin(path_name(segment, check_basin)).config.document())

    async def reconfigure_basin(self, exchange: Exchange, segment: str) -> None:
        name = path_name(segment, check_basin)
        patch = parsed("bad_json", basin_patch, await json_object(exchange))
        basin = await self._catalog.reconfigure_basin(name, patch)
        await _answer(exchange, 200, basin.config.document())

    async def delete_basin(self, exchange: Exchange, segment: str) -> None:
        await self._catalog.delete_basin(path_name(segment, check_basin))
        await exchange.respond(202)

    # Streams

    async def list_streams(self, exchange: Exchange) -> None:
        basin = basin_header(exchange)
        page = page_query(exchange, check_stream_prefix)
        streams, more = self._catalog.basin(basin).streams.page(*page)
        await _answer(exchange, 200, {"streams": [stream.info() for stream in streams], "has_more": more})

    async def create_stream(self, exchange: Exchange) -> None:
        token = request_token(exchange)
        basin = basin_header(exchange)
        name, config = parsed("bad_json", _stream_creation, await json_object(exchange))
        stream, outcome = await self._catalog.create_stream(basin, name, config, token)
        await _answer(exchange, 201, stream.info(), outcome)

    async def ensure_stream(self, exchange: Exchange, segment: str) -> None:
        basin = basin_header(exchange)
        name = path_name(segment, check_stream)
        config = parsed("bad_json", stream_config, await optional_json_object(exchange))
        stream, outcome = await self._catalog.ensure_stream(basin, name, config)
        await _answer(exchange, 201 if outcome == "created" else 200, stream.info(), outcome)

    async def get_stream(self, exchange: Exchange, segment: str) -> None:
        basin = basin_header(exchange)
        stream = self._catalog.stream(basin, path_name(segment, check_stream))
        await _answer(exchange, 200, stream.log.config.document())

    async def reconfigure_stream(self, exchange: Exchange, segment: str) -> None:
        basin = basin_header(exchange)
        name = path_name(segment, check_stream)
        patch = parsed("bad_json", stream_patch, await json_object(exchange))
        stream = await self._catalog.reconfigure_stream(basin, name, patch)
        await _answer(exchange, 200, stream.log.config.document())

    async def delete_stream(self, exchange: Exchange, segment: str) -> None:
        basin = basin_header(exchange)
        await self._catalog.delete_stream(basin, path_name(segment, check_stream))
        await exchange.respond(202)

    # What this server does not have: the requests are checked, then refused

    async def locations(self, exchange: Exchange) -> None:
        raise _missing()

    async def set_location(self, exchange: Exchange) -> None:
        if not is_json(media_type(exchange.headers.get("content-type"))):
            raise ApiError("bad_json", "the request needs the content-type application/json")
        name = parse_json(await exchange.body("bad_json"), "bad_json")
        if not isinstance(name, str):
            raise ApiError("bad_json", "the body is a string")
        parsed("bad_json", check_location, name)
        raise _missing()

    async def metrics(self, exchange: Exchange, *segments: str) -> None:
        for segment, check in zip(segments, (check_basin, check_stream), strict=False):
            path_name(segment, check)
        sets = _METRIC_SETS[len(segments)]
        values = query(
            exchange,
            {
                "set": lambda value: _one_of(value, sets),
                "start": parse_unsigned,
                "end": parse_unsigned,
                "interval": lambda value: _one_of(value, _INTERVALS),
            },
        )
        if "set" not in values:
            raise ApiError("bad_query", "the parameter set is missing")
        raise _missing()

    async def list_tokens(self, exchange: Exchange) -> None:
        page_query(exchange, check_token_id_prefix)
        raise _missing()

    async def issue_token(self, exchange: Exchange) -> None:
        document = await json_object(exchange)
        parsed("bad_json", _token_request, document)
        raise _missing()

    async def revoke_token(self, exchange: Exchange, segment: str) -> None:
        path_name(segment, check_token_id)
        raise _missing()


async def _answer(exchange: Exchange, status: int, document: Any, outcome: Outcome | None = None) -> None:
    fields: Fields | None = None if outcome is None else [("s2-provision-result", outcome)]
    await exchange.respond(status, forms.dump(document), _JSON, fields)


def _basin_creation(document: dict[str, Any]) -> tuple[str, BasinConfig]:
    return check_basin(_string(document, "basin")), _config_of_basin(document)


def _config_of_basin(document: dict[str, Any]) -> BasinConfig:
    location = document.get("location")
    if location is not None:
        check_location(_string(document, "location"))
    config = document.get("config")
    return BasinConfig() if config is None else basin_config(config)


def _stream_creation(document: dict[str, Any]) -> tuple[str, StreamConfig]:
    config = document.get("config")
    return check_stream(_string(document, "stream")), StreamConfig() if config is None else stream_config(config)


def _token_request(document: dict[str, Any]) -> None:
    check_token_id(_string(document, "id"))
    if not isinstance(document.get("scope"), dict):
        raise ValueError("scope is an object")


def _string(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is a string")
    return value


def _one_of(value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"one of {', '.join(choices)}")
    return value


def _missing() -> ApiError:
    return ApiError("not_implemented", "this server does not have this part of the API")
