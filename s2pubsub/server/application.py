"""The application: routes, access, the handlers of the data plane, and the end of it all.

An `Application` answers exchanges whatever transport they come over. One task per exchange; an error that nobody
foresaw answers 500 and is logged, and touches no other exchange.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable

from s2pubsub.server import forms
from s2pubsub.server.catalog import Catalog
from s2pubsub.server.chunk import Limits
from s2pubsub.server.config import StreamConfig, stream_config
from s2pubsub.server.control import Control
from s2pubsub.server.exchange import Exchange
from s2pubsub.server.failure import ApiError, BareError, DisconnectedError
from s2pubsub.server.names import check_stream
from s2pubsub.server.protobuf import encode_ack, encode_tail
from s2pubsub.server.reading import Reader, ReadRequest
from s2pubsub.server.request import (
    basin_header,
    encryption_key,
    header,
    is_protobuf,
    is_session,
    json_object,
    last_event_id,
    media_type,
    parse_json,
    path_name,
    read_query,
    record_format,
    wants_protobuf,
)
from s2pubsub.server.sealing import make_seal
from s2pubsub.server.sessions import AppendSession, parse_append, read_events, read_session
from s2pubsub.server.store import Store

_log = logging.getLogger("s2pubsub.server")

_JSON = "application/json"
_PROTOBUF = "application/protobuf"
Handler = Callable[..., Awaitable[None]]
_NAME = None
"""Stands in a route for a name; no text, since any text may be a name."""


def now_ms() -> int:
    """The wall clock in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Application:
    """The S2 API over ``store``. ``token``, where given, must come with every request under ``/v1``."""

    def __init__(self, store: Store, token: str | None, clock: Callable[[], int] = now_ms) -> None:
        self.catalog = Catalog(store, clock)
        self._store = store
        self._token = token
        self._clock = clock
        self._sessions: set[AppendSession] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        control = Control(self.catalog)
        self._routes: dict[tuple[str | None, ...], dict[str, Handler]] = {
            ("health",): {"GET": self._health},
            ("ping",): {"GET": self._health},
            ("metrics",): {"GET": self._process_metrics},
            ("v1", "basins"): {"GET": control.list_basins, "POST": control.create_basin},
            ("v1", "basins", _NAME): {
                "GET": control.get_basin,
                "PUT": control.ensure_basin,
                "PATCH": control.reconfigure_basin,
                "DELETE": control.delete_basin,
            },
            ("v1", "streams"): {"GET": control.list_streams, "POST": control.create_stream},
            ("v1", "streams", _NAME): {
                "GET": control.get_stream,
                "PUT": control.ensure_stream,
                "PATCH": control.reconfigure_stream,
                "DELETE": control.delete_stream,
            },
            ("v1", "streams", _NAME, "records"): {"GET": self._read, "POST": self._append},
            ("v1", "streams", _NAME, "records", "tail"): {"GET": self._check_tail},
            ("v1", "locations"): {"GET": control.locations},
            ("v1", "locations", "default"): {"GET": control.locations, "PUT": control.set_location},
            ("v1", "metrics"): {"GET": control.metrics},
            ("v1", "metrics", _NAME): {"GET": control.metrics},
            ("v1", "metrics", _NAME, _NAME): {"GET": control.metrics},
            ("v1", "access-tokens"): {"GET": control.list_tokens, "POST": control.issue_token},
            ("v1", "access-tokens", _NAME): {"DELETE": control.revoke_token},
        }

    async def stop(self, grace: float) -> None:
        """End what lasts with a last word (503 unavailable), and wait at most ``grace`` seconds for all answers."""
        self._stopping = True
        reason = ("unavailable", "the server is stopping")
        for session in self._sessions:
            session.stop(*reason)
        for _, stream in self.catalog.streams():
            stream.log.close(*reason)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.catalog.close()

    async def serve(self, exchange: Exchange) -> None:
        """Answer ``exchange``. Raises nothing but a cancellation."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            handler, segments = self._route(exchange)
            await handler(exchange, *segments)
        except DisconnectedError:
            pass
        except ApiError as error:
            await self._refuse(exchange, error)
        except Exception:  # noqa: BLE001 - whatever it was, it must not touch other requests
            _log.exception("the request %s %s failed", exchange.method, exchange.raw_path)
            await self._refuse(exchange, ApiError("other", "the server failed on this request"))
        finally:
            self._tasks.discard(task)

    async def _refuse(self, exchange: Exchange, error: ApiError) -> None:
        if exchange.started:
            if not exchange.finished:
                exchange.abort()
            return
        fields = [("allow", error.allow)] if isinstance(error, BareError) and error.allow else None
        body = error.body
        try:
            await exchange.respond(error.status, body, _JSON if body else "", fields)
        except DisconnectedError:
            pass

    def _route(self, exchange: Exchange) -> tuple[Handler, list[str]]:
        segments = exchange.raw_path.split("/")[1:]
        methods = self._routes.get(tuple(segments))
        variable: list[str] = []
        if methods is None:
            places = (2, 3) if segments[1:2] == ["metrics"] else (2,)
            pattern = tuple(_NAME if place in places else segment for place, segment in enumerate(segments))
            methods = self._routes.get(pattern)
            variable = [segments[place] for place in places if place < len(segments)]
        if methods is None or not segments[-1]:
            raise BareError(404)
        if segments[0] == "v1":
            self._authorize(exchange)
        handler = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
        if handler is not None:
            return handler, variable
        allowed = ",".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
        if exchange.method == "OPTIONS":
            return self._preflight, [allowed]
        raise BareError(405, allowed)

    def _authorize(self, exchange: Exchange) -> None:
        if self._token is None or exchange.method == "OPTIONS":
            return
        scheme, _, token = exchange.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self._token.encode()):
            raise ApiError("authn", "the access token is missing or wrong")

    # Outside the API

    async def _health(self, exchange: Exchange) -> None:
        if self._store.failed or self._stopping:
            await exchange.respond(503, b"unavailable", "text/plain; charset=utf-8")
        else:
            await exchange.respond(200, b"OK", "text/plain; charset=utf-8")

    async def _preflight(self, exchange: Exchange, allowed: str) -> None:
        await exchange.respond(200, fields=[("allow", allowed)])

    async def _process_metrics(self, exchange: Exchange) -> None:
        streams = self.catalog.streams()
        lines = [
            "# TYPE s2pubsub_basins gauge",
            f"s2pubsub_basins {len(self.catalog.basins)}",
            "# TYPE s2pubsub_streams gauge",
            f"s2pubsub_streams {len(streams)}",
            "# TYPE s2pubsub_requests_in_progress gauge",
            f"s2pubsub_requests_in_progress {len(self._tasks)}",
        ]
        await exchange.respond(200, ("\n".join(lines) + "\n").encode(), "text/plain; version=0.0.4")

    # Records

    async def _check_tail(self, exchange: Exchange, segment: str) -> None:
        basin, name = basin_header(exchange), path_name(segment, check_stream)
        stream = await self.catalog.open(basin, name, writing=False, config=None)
        await exchange.respond(200, forms.dump({"tail": forms.position(stream.log.tail)}), _JSON)

    async def _append(self, exchange: Exchange, segment: str) -> None:
        basin, name = basin_header(exchange), path_name(segment, check_stream)
        key, config = encryption_key(exchange), header(exchange, "s2-stream-config", _parse_stream_config)
        if is_session(exchange):
            stream = await self.catalog.open(basin, name, writing=True, config=config)
            session = AppendSession(exchange, stream.log, make_seal(stream.cipher, key), self._clock)
            self._sessions.add(session)
            try:
                await session.run()
            finally:
                self._sessions.discard(session)
            return
        if is_protobuf(media_type(exchange.headers.get("content-type"))):
            append = parse_append(await exchange.body("bad_proto"), "bad_proto")
        else:
            form = record_format(exchange)
            append = forms.append_input(await json_object(exchange), form)
        stream = await self.catalog.open(basin, name, writing=True, config=config)
        seal = make_seal(stream.cipher, key)
        if seal is not None:
            append = seal.close(append)
        _, future = stream.log.append(append, self._clock())
        ack = await future
        if wants_protobuf(exchange):
            await exchange.respond(200, encode_ack(*ack), _PROTOBUF)
        else:
            await exchange.respond(200, forms.ack(ack), _JSON)

    async def _read(self, exchange: Exchange, segment: str) -> None:
        basin, name = basin_header(exchange), path_name(segment, check_stream)
        request = read_query(exchange)
        key, config = encryption_key(exchange), header(exchange, "s2-stream-config", _parse_stream_config)
        session = is_session(exchange)
        events = not session and media_type(exchange.headers.get("accept")) == "text/event-stream"
        form = "raw" if session else record_format(exchange)
        seen = (0, 0)
        if events:
            event_id = last_event_id(exchange)
            if event_id is not None:
                request, seen = _resume(request, event_id)
        elif not session:
            request = request.unary()
        request.check()
        stream = await self.catalog.open(basin, name, writing=False, config=config)
        seal = make_seal(stream.cipher, key)
        reader = Reader(stream.log, request, self._clock)
        if not request.empty:
            await reader.start()
        else:
            reader.skip()
        if session:
            await read_session(exchange, reader, seal)
        elif events:
            await read_events(exchange, reader, seal, form, seen, self._clock)
        else:
            chunks, tail = await reader.once()
            data = b"".join(chunk.data for chunk in chunks)
            if seal is not None:
                data = seal.open(data)
            if wants_protobuf(exchange):
                await exchange.respond(200, data + (b"" if tail is None else encode_tail(*tail)), _PROTOBUF)
            else:
                await exchange.respond(200, forms.read_batch(data, tail, form), _JSON)


def _parse_stream_config(value: str) -> StreamConfig:
    try:
        return stream_config(parse_json(value, "bad_header"))
    except ApiError as error:
        raise ValueError(str(error)) from None


def _resume(request: ReadRequest, event_id: tuple[int, int, int]) -> tuple[ReadRequest, tuple[int, int]]:
    """``request`` from after the event that the client saw last, and what had been delivered until then."""
    seq_num, count, size = event_id
    limits = Limits(
        None if request.limits.count is None else max(0, request.limits.count - count),
        None if request.limits.size is None else max(0, request.limits.size - size),
        request.limits.until,
    )
    resumed = ReadRequest(seq_num=seq_num + 1, clamp=request.clamp, limits=limits, wait=request.wait)
    return resumed, (count, size)
