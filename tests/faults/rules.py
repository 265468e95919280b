"""Which requests a fault is for, when it strikes, and the log of what passed through the proxy.

Values only: the proxy's thread changes them, tests read them. Not for: carrying a fault out (`http2`).
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Literal
from urllib.parse import parse_qsl, unquote

import attrs

How = Literal["rst", "fin"]
Kind = Literal[
    "append", "append_session", "read", "read_session", "sse", "tail", "streams", "stream", "basins", "other"
]

_RECORDS = re.compile(r"^/v1/streams/([^/]+)/records$")
_TAIL = re.compile(r"^/v1/streams/([^/]+)/records/tail$")
_STREAM = re.compile(r"^/v1/streams/([^/]+)$")


@attrs.define(eq=False, kw_only=True)
class SeenRequest:
    """One request as the proxy saw it.

    Attributes:
        method, path, query: ``path`` is still percent-encoded and has no query; ``query`` is decoded.
        kind: what the request is for; sessions are those with content type ``s2s/proto``.
        stream: decoded name of the S2 stream, or None.
        connection, stream_id: number of the TCP connection (from 1) and id of the HTTP/2 stream.
        at: when it came, by `time.monotonic`.
        ended: whether the client has sent all of the request.
        status: of the response that the client got, or None.
        finished: how the exchange ended: ``"end"`` (complete response), ``"client reset"``, ``"server reset"``,
            ``"closed"`` (with its connection), ``"proxy"`` (a fault ended it), or None while it lasts.
        frames, response_bytes, request_bytes: session frames and body bytes that passed.
    """

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    kind: Kind
    stream: str | None
    connection: int
    stream_id: int
    at: float
    ended: bool = False
    status: int | None = None
    finished: str | None = None
    frames: int = 0
    request_bytes: int = 0
    response_bytes: int = 0

    @property
    def seq_num(self) -> int | None:
        """The sequence number that a read asks for."""
        text = self.query.get("seq_num")
        return None if text is None else int(text)

    @property
    def is_session(self) -> bool:
        """Whether the bodies are framed as S2 sessions."""
        return self.kind in ("append_session", "read_session")


def see(headers: list[tuple[str, str]], *, connection: int, stream_id: int) -> SeenRequest:
    """The request that these HTTP/2 header fields begin."""
    fields = dict(headers)
    path, _, query = fields.get(":path", "").partition("?")
    method = fields.get(":method", "")
    kind, stream = _classify(method, path, fields)
    return SeenRequest(
        method=method,
        path=path,
        query=dict(parse_qsl(query, keep_blank_values=True)),
        headers=fields,
        kind=kind,
        stream=stream,
        connection=connection,
        stream_id=stream_id,
        at=time.monotonic(),
    )


def _classify(method: str, path: str, fields: Mapping[str, str]) -> tuple[Kind, str | None]:
    session = fields.get("content-type", "").startswith("s2s/proto")
    if found := _RECORDS.match(path):
        if method == "POST":
            return ("append_session" if session else "append"), unquote(found[1])
        if session:
            return "read_session", unquote(found[1])
        return ("sse" if "text/event-stream" in fields.get("accept", "") else "read"), unquote(found[1])
    if found := _TAIL.match(path):
        return "tail", unquote(found[1])
    if found := _STREAM.match(path):
        return "stream", unquote(found[1])
    if path == "/v1/streams":
        return "streams", None
    return ("basins" if path.startswith("/v1/basins") else "other"), None


@attrs.frozen(kw_only=True)
class Request:
    """Selects requests; what is None is not asked for.

    Attributes:
        method: ``"GET"`` and the like.
        path: regular expression searched in the percent-encoded path without query.
        kind: as in `SeenRequest`.
        stream: exact decoded name of the S2 stream.
        query: pairs that the decoded query must hold.
        where: any further condition; called on the proxy's thread, once for each request that matches otherwise.
    """

    method: str | None = None
    path: str | None = None
    kind: Kind | None = None
    stream: str | None = None
    query: Mapping[str, str] | None = None
    where: Callable[[SeenRequest], bool] | None = None

    def matches(self, seen: SeenRequest) -> bool:
        """Whether ``seen`` is one of them."""
        return (
            (self.method is None or self.method == seen.method)
            and (self.path is None or re.search(self.path, seen.path) is not None)
            and (self.kind is None or self.kind == seen.kind)
            and (self.stream is None or self.stream == seen.stream)
            and (self.query is None or self.query.items() <= seen.query.items())
            and (self.where is None or self.where(seen))
        )


ANY = Request()
APPEND = Request(kind="append")
APPEND_SESSION = Request(kind="append_session")
READ_SESSION = Request(kind="read_session")
TAIL = Request(kind="tail")


@attrs.frozen(kw_only=True)
class After:
    """When a fault strikes a request. Without any: as soon as the response's headers have passed.

    Attributes:
        request: at once; the server never sees the request.
        frames: after so many session frames have passed to the client.
        records: after so many records have passed in this session; a batch that holds more is cut in two.
        index: after the record with this sequence number has passed; a batch that holds more is cut in two.
        seconds: so long after the response's headers have passed.
    """

    request: bool = False
    frames: int | None = None
    records: int | None = None
    index: int | None = None
    seconds: float | None = None

    @property
    def counts_records(self) -> bool:
        """Whether whole session frames must be looked into."""
        return self.records is not None or self.index is not None

    @property
    def at_headers(self) -> bool:
        """Whether it strikes right behind the response's headers, or before them if the response is to be lost."""
        return not self.request and self.frames is self.records is self.index is self.seconds is None


@attrs.frozen(kw_only=True)
class Effect:
    """What happens to a request.

    - ``answer``: the proxy answers with ``status`` and an error body; the server does not see the request.
    - ``lose``: the server's answer (of a session: its next frame) is dropped when it comes; then the connection is cut
      unless ``how`` is None.
    - ``end``: a terminal session frame. ``finish``: the response just ends. ``reset``: RST_STREAM.
    - ``silence``: nothing more passes to the client on this stream.
    - ``hold``: the answer waits ``seconds``, or until the rule is removed.
    - ``cut``: the connection is closed.
    - ``goaway``: GOAWAY; the connection is closed when its last exchange has ended, at the latest after ``seconds``.
    """

    do: Literal["answer", "lose", "end", "finish", "reset", "silence", "hold", "cut", "goaway"]
    status: int = 503
    code: str = "unavailable"
    message: str = "injected fault"
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()
    how: How | None = "fin"
    seconds: float | None = None


@attrs.define(eq=False, kw_only=True)
class Rule:
    """A fault in force; the handle that the proxy's methods return.

    Attributes:
        times: for how many requests, None for ever. for_seconds: for how long, counted from the first one.
        skip: let so many matching requests pass first.
        hits: requests taken. fired: times it has struck.
    """

    match: Request
    effect: Effect
    after: After = attrs.field(factory=After)
    times: int | None = 1
    for_seconds: float | None = None
    skip: int = 0
    hits: int = 0
    fired: int = 0
    removed: bool = False
    release: list[Callable[[], None]] = attrs.field(factory=list, repr=False)
    _until: float | None = None
    _struck: threading.Condition = attrs.field(factory=threading.Condition, repr=False)

    def take(self, seen: SeenRequest) -> bool:
        """Whether this rule is for ``seen``; counts it if so. On the proxy's thread only."""
        if self.removed or (self.times is not None and self.hits >= self.times):
            return False
        if self._until is not None and time.monotonic() >= self._until:
            return False
        if not self.match.matches(seen):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.for_seconds is not None and self._until is None:
            self._until = time.monotonic() + self.for_seconds
        self.hits += 1
        return True

    def loses_next(self, seen: SeenRequest) -> bool:
        """Whether the next session frame of ``seen`` is the one to be lost."""
        after = self.after
        return self.effect.do == "lose" and not after.counts_records and seen.frames >= (after.frames or 0)

    def strike(self) -> None:
        """Count that the effect has happened. On the proxy's thread only."""
        with self._struck:
            self.fired += 1
            self._struck.notify_all()

    def wait(self, times: int = 1, timeout: float = 10.0) -> None:
        """Block until the fault has struck ``times`` times; AssertionError if it does not."""
        with self._struck:
            if not self._struck.wait_for(lambda: self.fired >= times, timeout):
                raise AssertionError(f"fault struck {self.fired} of {times} times within {timeout} s: {self}")
