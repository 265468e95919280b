"""The HTTP/2 layer of the proxy: sees requests, carries out rules, forwards everything else frame by frame.

Frames pass one by one with their flow control untouched, so a slow client slows down the server and not the proxy.
What the proxy itself swallows or adds it also accounts for: bytes swallowed are credited to their sender on the
connection; bytes added are withheld from later credit, after a first reserve taken from the client's large window.
Header blocks are decoded and encoded anew, since a request that never reaches the server would otherwise leave the two
compression states apart. Connections that do not begin with the HTTP/2 preface pass as bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.faults import frames as f
from tests.faults.link import Link
from tests.faults.rules import Effect, Rule, see
from tests.faults.streams import Peer, Registry, Stream

RESERVE = 65536


class Http2Tap:
    """Both directions of one connection."""

    def __init__(self, link: Link, registry: Registry) -> None:
        self._link = link
        self._registry = registry
        self._start = bytearray()
        self._early = bytearray()
        self._http2: bool | None = None
        self._client = Peer()
        self._server = Peer()
        self._debt: int | None = None
        self.streams: dict[int, Stream] = {}
        self._highest = 0
        self._last_allowed: int | None = None
        self._goodbye: asyncio.TimerHandle | None = None

    # Bytes in.

    def from_client(self, data: bytes) -> None:
        """See `link.Tap`."""
        if self._http2 is None:
            self._start += data
            head = bytes(self._start[: len(f.PREFACE)])
            if f.PREFACE.startswith(head) and len(head) < len(f.PREFACE):
                return
            self._http2 = head == f.PREFACE
            data = bytes(self._start)
            if self._http2:
                self._to_server(f.PREFACE)
                data = data[len(f.PREFACE) :]
            self.from_server(bytes(self._early))
        if self._http2:
            for frame in self._client.feed(data):
                if not self._link.over:
                    self._client_frame(frame)
        else:
            self._to_server(data)

    def from_server(self, data: bytes) -> None:
        """See `link.Tap`."""
        if self._http2 is None:
            self._early += data
        elif self._http2:
            for frame in self._server.feed(data):
                if not self._link.over:
                    self._server_frame(frame)
        else:
            self._to_client(data)

    def closed(self) -> None:
        """See `link.Tap`."""
        for stream in self.streams.values():
            stream.seen.finished = stream.seen.finished or "closed"
            if stream.timer is not None:
                stream.timer.cancel()
        self.streams.clear()
        if self._goodbye is not None:
            self._goodbye.cancel()

    def _to_client(self, data: bytes) -> None:
        assert self._link.to_client is not None
        self._link.to_client.put(data)

    def _to_server(self, data: bytes) -> None:
        assert self._link.to_server is not None
        self._link.to_server.put(data)

    # From the client.

    def _client_frame(self, frame: f.Frame) -> None:
        stream = self.streams.get(frame.stream_id)
        if frame.kind in (f.HEADERS, f.CONTINUATION):
            if found := self._client.fields_of(frame):
                self._request_headers(*found)
        elif frame.kind == f.DATA:
            self._request_data(stream, frame)
        elif frame.kind == f.WINDOW_UPDATE and frame.stream_id == 0:
            self._connection_credit(int.from_bytes(frame.payload, "big") & 0x7FFFFFFF)
        elif frame.kind == f.RST_STREAM:
            if stream is not None:
                stream.seen.finished = stream.seen.finished or "client reset"
                if not stream.ours:
                    self._to_server(frame.raw)
                self._drop(stream)
        elif frame.stream_id and (stream is None or stream.ours):
            return
        elif frame.kind != f.PRIORITY:
            if frame.kind == f.GOAWAY:
                self._link.said_goaway = True
            self._to_server(frame.raw)

    def _request_headers(self, frame: f.Frame, headers: list[tuple[str, str]]) -> None:
        end = bool(frame.flags & f.END_STREAM)
        stream = self.streams.get(frame.stream_id)
        if stream is None and frame.stream_id > self._highest:
            stream = self._begin(frame.stream_id, headers, end=end)
        if stream is not None and not stream.ours:
            block = self._server.encode(headers)
            self._to_server(f.build_headers(frame.stream_id, block, end=end))
        if stream is not None and end:
            self._request_ended(stream)

    def _begin(self, stream_id: int, headers: list[tuple[str, str]], *, end: bool) -> Stream | None:
        self._highest = stream_id
        seen = see(headers, connection=self._link.number, stream_id=stream_id)
        stream = self.streams[stream_id] = Stream(stream_id, seen)
        if self._last_allowed is not None and stream_id > self._last_allowed:
            stream.ours = True
            self._leave(stream)
            return None
        rule = stream.rule = self._registry.rule_for(seen)
        self._registry.saw(seen)
        if seen.is_session:
            stream.session = f.SessionFrames()
        if rule is not None:
            stream.ours = rule.effect.do == "answer" or rule.after.request
            if stream.ours and (rule.effect.do != "answer" or (seen.kind == "append_session" and not end)):
                self._strike(stream)
        return self.streams.get(stream_id)

    def _request_data(self, stream: Stream | None, frame: f.Frame) -> None:
        end = bool(frame.flags & f.END_STREAM)
        if stream is not None:
            stream.seen.request_bytes += len(frame.content())
        if stream is not None and not stream.ours:
            self._to_server(frame.raw)
        elif frame.payload:
            credit = f.build_window_update(0, len(frame.payload))
            if stream is not None and not end:
                credit += f.build_window_update(stream.id, len(frame.payload))
            self._to_client(credit)
        if stream is not None and end:
            self._request_ended(stream)

    def _request_ended(self, stream: Stream) -> None:
        stream.seen.ended = True
        if stream.ours and stream.rule is not None and stream.rule.effect.do == "answer":
            self._strike(stream)
        elif stream.response_done:
            self._drop(stream)

    def _connection_credit(self, increment: int) -> None:
        if self._debt is None:
            self._debt = RESERVE if increment >= 4 * RESERVE else 0
        kept = min(self._debt, increment)
        self._debt -= kept
        if increment > kept:
            self._to_server(f.build_window_update(0, increment - kept))

    # From the server.

    def _server_frame(self, frame: f.Frame) -> None:
        stream = self.streams.get(frame.stream_id)
        if frame.kind in (f.HEADERS, f.CONTINUATION):
            if found := self._server.fields_of(frame):
                first, headers = found
                self._response_headers(self.streams.get(first.stream_id), headers, bool(first.flags & f.END_STREAM))
        elif frame.kind == f.DATA:
            data = frame.content()
            self._credit_server(len(frame.payload) - len(data))
            self._response_data(stream, data, bool(frame.flags & f.END_STREAM))
        elif frame.kind == f.PUSH_PROMISE:
            raise ValueError("the proxy knows no server push")
        elif frame.stream_id and (stream is None or stream.ours or stream.muted):
            return
        elif frame.kind == f.RST_STREAM and stream is not None:
            self._pass(stream, lambda: self._response_reset(stream, frame.raw))
        else:
            self._to_client(frame.raw)

    def _response_reset(self, stream: Stream, raw: bytes) -> None:
        stream.seen.finished = stream.seen.finished or "server reset"
        self._to_client(raw)
        self._drop(stream)

    def _pass(self, stream: Stream, action: Callable[[], None]) -> None:
        """Do ``action`` now, or when the stream's response is no longer held back."""
        if stream.held is not None:
            stream.held.append(action)
        else:
            action()

    def _response_headers(self, stream: Stream | None, headers: list[tuple[str, str]], end: bool) -> None:
        if stream is None or stream.muted:
            return
        rule = stream.rule
        if rule is not None and not stream.headers_passed and stream.held is None:
            if rule.effect.do == "lose" and rule.after.at_headers and not stream.seen.is_session:
                self._strike(stream)
                return
            if rule.effect.do == "hold" and not rule.removed:
                self._hold(stream, rule)
        self._pass(stream, lambda: self._pass_headers(stream, headers, end))

    def _pass_headers(self, stream: Stream, headers: list[tuple[str, str]], end: bool) -> None:
        self._to_client(f.build_headers(stream.id, self._client.encode(headers), end=end))
        status = dict(headers).get(":status", "")
        if status.startswith("1"):
            return
        first, stream.headers_passed = not stream.headers_passed, True
        if first:
            stream.seen.status = int(status)
        if end:
            self._response_ended(stream)
        elif stream.rule is not None and first and (status == "200" or not stream.seen.is_session):
            after, do = stream.rule.after, stream.rule.effect.do
            if after.at_headers and do not in ("lose", "hold"):
                self._strike(stream)
            elif after.seconds is not None:
                stream.timer = asyncio.get_running_loop().call_later(after.seconds, self.strike_at_boundary, stream)

    def _response_data(self, stream: Stream | None, data: bytes, end: bool) -> None:
        if stream is None or stream.muted:
            self._credit_server(len(data))
        else:
            self._pass(stream, lambda: self._pass_data(stream, data, end))

    def _pass_data(self, stream: Stream, data: bytes, end: bool) -> None:
        if stream.session is None or stream.seen.status != 200:
            self._send(stream, data)
        else:
            for piece, boundary in stream.session.split(data):
                self._pass_piece(stream, piece, boundary)
        if end and stream.id in self.streams and not stream.muted:
            self._to_client(f.build_data(stream.id, b"", end=True))
            self._response_ended(stream)

    def _pass_piece(self, stream: Stream, piece: bytes, boundary: bool) -> None:
        if stream.id not in self.streams or stream.muted:
            self._credit_server(len(piece))
            return
        rule = stream.rule
        if rule is not None and rule.loses_next(stream.seen):
            self._credit_server(len(piece))
            self._strike(stream)
            return
        if rule is not None and rule.after.counts_records:
            stream.partial += piece
            if not boundary:
                return
            whole = bytes(stream.partial)
            stream.partial.clear()
            self._pass_records(stream, rule, whole)
        else:
            self._send(stream, piece)
        if boundary:
            stream.seen.frames += 1
            if rule is not None and rule.effect.do != "lose" and rule.after.frames is not None:
                stream.due = stream.due or stream.seen.frames >= rule.after.frames
            if stream.due:
                self._strike(stream)

    def _pass_records(self, stream: Stream, rule: Rule, frame: bytes) -> None:
        records = f.records_of(frame)
        if records is None:
            self._send(stream, frame)
            return
        kept = records
        if rule.after.index is not None:
            last = rule.after.index
            kept = [record for record in kept if record[0] <= last]
            stream.due = bool(records) and records[-1][0] >= last
        if rule.after.records is not None:
            kept = kept[: rule.after.records - stream.records]
            stream.records += len(kept)
            stream.due = stream.due or stream.records >= rule.after.records
        if len(kept) < len(records):
            whole, frame = frame, f.build_batch(kept) if kept else b""
            self._credit_server(len(whole) - len(frame))
        self._send(stream, frame)

    def _send(self, stream: Stream, data: bytes) -> None:
        stream.seen.response_bytes += len(data)
        self._to_client(f.build_data(stream.id, data))

    def _response_ended(self, stream: Stream) -> None:
        stream.seen.finished = stream.seen.finished or "end"
        stream.response_done = True
        if stream.seen.ended:
            self._drop(stream)

    def _credit_server(self, size: int) -> None:
        if size > 0 and not self._link.over:
            self._to_server(f.build_window_update(0, size))

    # Faults.

    def strike_at_boundary(self, stream: Stream, rule: Rule | None = None) -> None:
        """Carry out ``rule``, or the stream's own, now or as soon as a session frame ends."""
        stream.rule = rule or stream.rule
        if stream.id in self.streams:
            if stream.session is None or stream.session.at_boundary:
                self._strike(stream)
            else:
                stream.due = True

    def _strike(self, stream: Stream) -> None:
        assert stream.rule is not None
        rule, stream.rule, stream.due = stream.rule, None, False
        effect = rule.effect
        if effect.do == "answer" or (effect.do == "end" and not stream.headers_passed):
            self._answer(stream, effect)
        elif effect.do == "end":
            self._add(f.build_data(stream.id, f.build_terminal(effect.status, effect.code, effect.message), end=True))
            self._leave(stream)
        elif effect.do == "finish":
            if stream.headers_passed:
                self._to_client(f.build_data(stream.id, b"", end=True))
                self._leave(stream)
            else:
                self._answer(stream, Effect(do="answer", status=200, body=b""))
        elif effect.do == "reset":
            self._to_client(f.build_reset(stream.id, 2))
            self._leave(stream)
        elif effect.do == "goaway":
            self.goaway(effect.seconds or 0.0)
        elif effect.do == "cut" or (effect.do == "lose" and effect.how is not None):
            stream.seen.finished = "proxy"
            self._link.cut(effect.how or "fin")
        else:
            stream.muted = True
        rule.strike()

    def _answer(self, stream: Stream, effect: Effect) -> None:
        body = effect.body if effect.body is not None else f.error_body(effect.code, effect.message)
        fields = [(":status", str(effect.status)), ("content-type", "application/json")]
        fields += [("content-length", str(len(body))), *effect.headers]
        self._to_client(f.build_headers(stream.id, self._client.encode(fields), end=not body))
        self._add(f.build_data(stream.id, body, end=True) if body else b"")
        stream.seen.status = effect.status
        self._leave(stream)

    def _add(self, data: bytes) -> None:
        """Send the client DATA of our own: later credit for as much is not the server's."""
        self._debt = (self._debt or 0) + max(0, len(data) - 9)
        self._to_client(data)

    def _hold(self, stream: Stream, rule: Rule) -> None:
        held = stream.held = []
        stream.rule = None

        def release() -> None:
            if stream.held is held:
                stream.held = None
                rule.strike()
                for action in held:
                    if stream.id in self.streams:
                        action()

        rule.release.append(release)
        if rule.effect.seconds is not None:
            stream.timer = asyncio.get_running_loop().call_later(rule.effect.seconds, release)

    def goaway(self, grace: float) -> None:
        """Send GOAWAY; close behind the last exchange, at the latest after ``grace`` seconds."""
        self._last_allowed = self._highest
        self._to_client(f.build_goaway(self._highest, f.NO_ERROR))
        if grace and self.streams:
            self._goodbye = asyncio.get_running_loop().call_later(grace, self._link.cut, "fin")
        else:
            self._link.cut("fin")

    def _leave(self, stream: Stream) -> None:
        """Forget a stream that the proxy has ended towards the client."""
        if not stream.ours:
            self._to_server(f.build_reset(stream.id, f.CANCEL))
        stream.seen.finished = stream.seen.finished or "proxy"
        self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        self._credit_server(len(stream.partial))
        stream.partial.clear()
        if stream.timer is not None:
            stream.timer.cancel()
        self.streams.pop(stream.id, None)
        if self._goodbye is not None and not self.streams:
            self._link.cut("fin")
