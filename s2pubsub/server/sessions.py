"""Sessions: appends and reads that last, over ``s2s/proto``, and reads as server-sent events.

An append session is two tasks. One takes inputs in and gives each its place in the stream; the other sends
acknowledgements in the same order as they become durable. The first failure ends both: what came before it is
acknowledged, one terminal frame says what went wrong, what came after it is dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing

from s2pubsub.server import forms
from s2pubsub.server.compression import choose
from s2pubsub.server.exchange import Exchange, Fields
from s2pubsub.server.failure import ApiError, DisconnectedError
from s2pubsub.server.frames import FrameDecoder, encode_frame, encode_terminal
from s2pubsub.server.log import Ack, StreamLog
from s2pubsub.server.protobuf import ProtobufError, decode_append_input, encode_ack, encode_tail
from s2pubsub.server.reading import Reader
from s2pubsub.server.record import AppendInput, make_input
from s2pubsub.server.request import Format
from s2pubsub.server.sealing import Seal

Clock = Callable[[], int]

_MAX_PENDING = 1000
_MAX_PENDING_BYTES = 8 * 1024 * 1024
_UNCACHED: Fields = [("cache-control", "no-cache, no-transform"), ("x-accel-buffering", "no")]
_SESSION_FIELDS: Fields = [("content-type", "s2s/proto"), *_UNCACHED]


def parse_append(data: bytes, code: str) -> AppendInput:
    """The append in a protobuf message; `ApiError` with ``code`` when it is none."""
    try:
        return make_input(*decode_append_input(data))
    except ProtobufError as error:
        raise ApiError(code, f"not an AppendInput: {error}") from None


class AppendSession:
    """One append session on one exchange."""

    def __init__(self, exchange: Exchange, log: StreamLog, seal: Seal | None, clock: Clock) -> None:
        self._exchange = exchange
        self._log = log
        self._seal = seal
        self._clock = clock
        self._pending: deque[tuple[asyncio.Future[Ack], int]] = deque()
        self._pending_bytes = 0
        self._wakeup: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._input_ended = False

    async def run(self) -> None:
        """Take inputs and send acknowledgements until the client ends, or something fails."""
        self._exchange.start(200, _SESSION_FIELDS)
        intake = asyncio.get_running_loop().create_task(self._take_inputs())
        try:
            await self._send_acks()
        finally:
            intake.cancel()
            # Its outcome is in the queue; waiting for it keeps the task from outliving the session.
            await asyncio.gather(intake, return_exceptions=True)
            for future, _ in self._pending:
                future.add_done_callback(_take_exception)

    def stop(self, code: str, message: str) -> None:
        """End the session with that error after the acknowledgements that are under way."""
        self._fail(ApiError(code, message))

    # Inputs

    async def _take_inputs(self) -> None:
        decoder = FrameDecoder()
        try:
            while data := await self._exchange.receive():
                for body in decoder.feed(data):
                    if self._input_ended or not self._take(parse_append(body, "bad_frame")):
                        return
                while len(self._pending) > _MAX_PENDING or self._pending_bytes > _MAX_PENDING_BYTES:
                    self._room = asyncio.get_running_loop().create_future()
                    await self._room
            if decoder.pending:
                raise ApiError("bad_frame", "the last frame is cut short")
        except ApiError as error:
            self._fail(error)
        except DisconnectedError:
            pass
        self._input_ended = True
        self._wake()

    def _take(self, append: AppendInput) -> bool:
        """Append one input; False when it, or one before it, was refused."""
        if self._pending:
            last = self._pending[-1][0]
            if last.done() and last.exception() is not None:
                return False
        metered = append.metered
        if self._seal is not None:
            append = self._seal.close(append)
        accepted, future = self._log.append(append, self._clock())
        self._pending.append((future, metered))
        self._pending_bytes += metered
        self._wake()
        if not accepted:
            self._input_ended = True
        return accepted

    def _fail(self, error: ApiError) -> None:
        if not self._input_ended:
            self._input_ended = True
            future: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
            future.set_exception(error)
            self._pending.append((future, 0))
            self._wake()

    # Acknowledgements

    async def _send_acks(self) -> None:
        codec = choose(self._exchange.headers.get("accept-encoding"))
        while True:
            while not self._pending:
                if self._input_ended:
                    await self._exchange.send(b"", end=True)
                    return
                self._wakeup = asyncio.get_running_loop().create_future()
                await self._wakeup
            try:
                await self._pending[0][0]
            except ApiError:
                pass  # told below, in its place
            frames: list[bytes] = []
            failed = False
            while self._pending and self._pending[0][0].done() and not failed:
                future, metered = self._pending.popleft()
                self._pending_bytes -= metered
                try:
                    frames.append(encode_frame(encode_ack(*future.result()), codec))
                except ApiError as error:
                    frames.append(encode_terminal(error))
                    failed = True
            await self._exchange.send(b"".join(frames), end=failed)
            if failed:
                return
            if self._room is not None and not self._room.done():
                self._room.set_result(None)

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)


def _take_exception(future: asyncio.Future[Ack]) -> None:
    if not future.cancelled():
        future.exception()


async def read_session(exchange: Exchange, reader: Reader, seal: Seal | None) -> None:
    """Send what ``reader`` gives as frames until it ends; an error becomes the terminal frame."""
    codec = choose(exchange.headers.get("accept-encoding"))
    exchange.start(200, _SESSION_FIELDS)
    try:
        async with aclosing(reader.outputs()) as outputs:
            async for output in outputs:
                data = b"" if output.chunk is None else output.chunk.data
                if seal is not None:
                    data = seal.open(data)
                if output.tail is not None:
                    data += encode_tail(*output.tail)
                await exchange.send(encode_frame(data, codec))
    except ApiError as error:
        await exchange.send(encode_terminal(error), end=True)
    else:
        await exchange.send(b"", end=True)


async def read_events(
    exchange: Exchange, reader: Reader, seal: Seal | None, form: Format, seen: tuple[int, int], clock: Clock
) -> None:
    """Send what ``reader`` gives as server-sent events. ``seen`` counts the records and bytes delivered before."""
    exchange.start(200, [("content-type", "text/event-stream"), *_UNCACHED])
    count, size = seen
    try:
        async with aclosing(reader.outputs()) as outputs:
            async for output in outputs:
                if output.chunk is None:
                    tail = None if output.tail is None else forms.position(output.tail)
                    event = forms.event("ping", forms.dump({"timestamp": clock(), "tail": tail}))
                else:
                    chunk = output.chunk
                    data = chunk.data if seal is None else seal.open(chunk.data)
                    count += chunk.count
                    size += chunk.metered
                    batch = forms.read_batch(data, output.tail, form)
                    event = forms.event("batch", batch, f"{chunk.last_seq_num},{count},{size}")
                await exchange.send(event)
    except ApiError as error:
        await exchange.send(forms.event("error", error.body), end=True)
    else:
        await exchange.send(forms.event("", b"[DONE]"), end=True)
