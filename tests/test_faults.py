"""The fault proxy itself: each fault really happens, and without a fault nothing does.

The clients are the raw SDK and plain sockets, the server is `s2 lite`, so that nothing of the library is involved.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import s2_sdk
from s2_sdk import AppendInput, Endpoints, ReadLimit, Record, Retry, S2ClientError, S2ServerError, SeqNum

from tests.faults import (
    APPEND,
    APPEND_SESSION,
    READ_SESSION,
    TAIL,
    After,
    Effect,
    FaultProxy,
    Request,
)
from tests.servers import ON_LITE
from tests.waiting import LONG, eventually

pytestmark = ON_LITE

HEALTH = b"GET /health HTTP/1.1\r\nhost: test\r\n\r\n"
ONCE = Retry(max_attempts=1)
HASTY = s2_sdk.Timeout(request=timedelta(seconds=0.5))


@contextlib.asynccontextmanager
async def open_stream(
    proxy: FaultProxy, basin: str, *, retry: Retry = ONCE, times: s2_sdk.Timeout | None = None
) -> AsyncIterator[s2_sdk.S2Stream]:
    """The stream ``s`` of the basin over an SDK client of its own."""
    endpoints = Endpoints(account=proxy.url, basin=proxy.url)
    async with s2_sdk.S2("test", endpoints=endpoints, retry=retry, timeout=times) as s2:
        yield s2.basin(basin).stream("s")


def batch(*bodies: bytes) -> AppendInput:
    return AppendInput(records=[Record(body=body) for body in bodies])


async def read_until(session: s2_sdk.ReadSession, last: int) -> list[int]:
    """Sequence numbers up to ``last``; the session is closed."""
    numbers: list[int] = []
    async for found in session:
        numbers += [record.seq_num for record in found.records]
        if numbers and numbers[-1] >= last:
            break
    await close(session)
    return numbers


async def close(session: s2_sdk.ReadSession) -> None:
    """Close a session; on Python 3.11 one cancellation may be swallowed."""
    closing = asyncio.ensure_future(session.close())
    while not closing.done():
        await asyncio.wait([closing], timeout=0.2)
        if not closing.done() and session._task is not None:
            session._task.cancel()
    await closing


def connect(proxy: FaultProxy) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", proxy.port), LONG)
    sock.settimeout(LONG)
    return sock


def ask(sock: socket.socket) -> bytes:
    sock.sendall(HEALTH)
    return sock.recv(65536)


# Bytes.


def test_without_faults_it_is_transparent(proxy: FaultProxy, basin: str) -> None:
    """Records up to the largest go through and come back equal, over one connection and in any direction."""
    bodies = [os.urandom(size) for size in (0, 1, 1000, 70_000, 1_000_000, 1_048_568)]

    async def main() -> list[bytes]:
        async with open_stream(proxy, basin) as stream:
            for body in bodies:
                await stream.append(batch(body))
            found: list[bytes] = []
            async for read in stream.read_session(start=SeqNum(0), limit=ReadLimit(count=len(bodies))):
                found += [record.body for record in read.records]
            return found

    assert asyncio.run(main()) == bodies
    assert proxy.accepted == 1
    assert proxy.passed("to_server") > sum(map(len, bodies))
    assert proxy.passed("to_client") > sum(map(len, bodies))
    with connect(proxy) as sock:
        assert ask(sock).startswith(b"HTTP/1.1 200")


def test_requests_are_logged(proxy: FaultProxy, basin: str) -> None:
    """The log tells kind, stream, decoded query, connection, and how each exchange went."""

    async def main() -> None:
        async with open_stream(proxy, basin) as stream:
            await stream.append(batch(b"a", b"b"))
            await read_until(stream.read_session(start=SeqNum(1)), 1)

    asyncio.run(main())
    append, read = proxy.requests
    assert (append.kind, append.stream, append.ended, append.status, append.finished) == (
        "append",
        "s",
        True,
        200,
        "end",
    )
    assert append.request_bytes > 0
    assert append.response_bytes > 0
    assert (read.kind, read.seq_num, read.connection, read.status) == ("read_session", 1, 1, 200)
    assert read.query == {"seq_num": "1"}
    eventually(lambda: read.finished == "client reset")
    link = proxy.connections[0]
    eventually(lambda: link.over)
    assert link.said_goaway
    assert link.ended_by in ("client", "server")  # the server, told goodbye, may be the quicker one


@pytest.mark.parametrize("how", ["rst", "fin"])
def test_cut(proxy: FaultProxy, how: str) -> None:
    """A cut by RST is a reset at the client, one by FIN is an end; both are over at the server too."""
    with connect(proxy) as sock:
        ask(sock)
        assert proxy.cut(how=how) == 1
        if how == "rst":
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
        else:
            assert sock.recv(1) == b""
    assert proxy.open_connections == 0
    assert proxy.connections[0].ended_by == "proxy"
    assert proxy.cut() == 0


def test_cut_chosen_connections(proxy: FaultProxy) -> None:
    """One, a random one, or the one of a number can be cut; the others go on."""
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connect(proxy)) for _ in range(4)]
        for sock in socks:
            ask(sock)
        assert proxy.cut("one", "fin") == 1
        assert socks[3].recv(1) == b""
        assert proxy.cut(2, "fin") == 1
        assert socks[1].recv(1) == b""
        assert proxy.cut("random", "fin") == 1
        assert proxy.open_connections == 1
        left = next(link.number for link in proxy.connections if not link.over)
        assert ask(socks[left - 1]).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("scope", ["open", "new"])
def test_cut_after_bytes(proxy: FaultProxy, scope: str) -> None:
    """Exactly so many bytes arrive, then the end; counted from when it is set, or from a connection's begin."""
    if scope == "new":
        proxy.cut_after(7, scope="new")
    with connect(proxy) as sock:
        if scope == "open":
            ask(sock)
            proxy.cut_after(7)
        sock.sendall(HEALTH)
        received = b""
        while piece := sock.recv(100):
            received += piece
    assert received == b"HTTP/1."


def test_stalled_connection_is_frozen_while_new_ones_work(proxy: FaultProxy) -> None:
    """Frozen: nothing passes and nothing closes; new connections work; afterwards the answer arrives."""
    with connect(proxy) as frozen, connect(proxy) as other:
        ask(frozen)
        proxy.stall()
        before = proxy.connections[0].to_server.passed
        frozen.sendall(HEALTH)
        with connect(proxy) as fresh:
            assert ask(fresh).startswith(b"HTTP/1.1 200")
        frozen.settimeout(0.2)
        with pytest.raises(TimeoutError):
            frozen.recv(1)
        assert proxy.connections[0].to_server.passed == before
        proxy.resume()
        frozen.settimeout(LONG)
        assert frozen.recv(100).startswith(b"HTTP/1.1 200")
        assert ask(other).startswith(b"HTTP/1.1 200")


def test_stall_one_way(proxy: FaultProxy) -> None:
    """With the way to the client stalled the server still hears the request, and answers to nobody."""
    with connect(proxy) as sock:
        ask(sock)
        proxy.stall("to_client")
        before = proxy.connections[0].to_server.passed
        sock.sendall(HEALTH)
        eventually(lambda: proxy.connections[0].to_server.passed == before + len(HEALTH))
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sock.recv(1)


def test_refuse_and_accept_again(proxy: FaultProxy) -> None:
    """The port is closed and opened again; open connections stay."""
    with connect(proxy) as sock:
        ask(sock)
        for _ in range(5):
            with proxy.refusing(), pytest.raises(ConnectionRefusedError):
                connect(proxy)
            with connect(proxy) as fresh:
                assert ask(fresh).startswith(b"HTTP/1.1 200")
        assert ask(sock).startswith(b"HTTP/1.1 200")


def test_delay(proxy: FaultProxy) -> None:
    """Each way takes as long as asked."""
    proxy.delay(0.15)
    with connect(proxy) as sock:
        begin = time.monotonic()
        assert ask(sock).startswith(b"HTTP/1.1 200")
        assert 0.3 <= time.monotonic() - begin < 3
        proxy.clear()
        begin = time.monotonic()
        ask(sock)
        assert time.monotonic() - begin < 0.15


def test_drip(proxy: FaultProxy) -> None:
    """Bytes arrive one by one at the rate."""
    proxy.drip(50)
    with connect(proxy) as sock:
        sock.sendall(HEALTH)
        begin = time.monotonic()
        assert [len(sock.recv(100)) for _ in range(10)] == [1] * 10
        assert 0.15 <= time.monotonic() - begin < 2


def test_half_close(proxy: FaultProxy) -> None:
    """The client reads an end while the server still hears the client."""
    with connect(proxy) as sock:
        ask(sock)
        proxy.half_close()
        assert sock.recv(1) == b""
        before = proxy.connections[0].to_server.passed
        sock.sendall(HEALTH)
        eventually(lambda: proxy.connections[0].to_server.passed == before + len(HEALTH))
        assert sock.recv(1) == b""


def test_silent(proxy: FaultProxy) -> None:
    """New connections are accepted and never answered; the server sees nothing of them."""
    proxy.silent()
    with connect(proxy) as sock:
        sock.sendall(HEALTH)
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        assert proxy.connections[0].to_server is None
        proxy.silent(False)
        with connect(proxy) as fresh:
            assert ask(fresh).startswith(b"HTTP/1.1 200")


def test_server_down(proxy: FaultProxy) -> None:
    """With nothing behind it the proxy resets what connects."""
    proxy.upstream_port = 1
    with pytest.raises(ConnectionResetError), connect(proxy) as sock:
        ask(sock)


def test_lost_acknowledgements(proxy: FaultProxy, basin: str) -> None:
    """With all bytes to the client dropped an append is stored, and its client knows nothing of it."""

    async def main() -> int:
        async with open_stream(proxy, basin, times=HASTY) as stream:
            await stream.append(batch(b"heard"))
            proxy.lose()
            with pytest.raises(S2ClientError):
                await stream.append(batch(b"unheard"))
            proxy.cut()
        async with open_stream(proxy, basin) as stream:
            return (await stream.check_tail()).seq_num

    assert asyncio.run(main()) == 2
    assert proxy.connections[0].to_client.discarded > 0


def test_strand_delivers_late(proxy: FaultProxy, basin: str) -> None:
    """What was sent on a connection that was stranded is stored behind what its client sent on the next one."""

    async def main() -> list[bytes]:
        async with open_stream(proxy, basin) as stream:
            await stream.append(batch(b"first"))
            assert proxy.strand(catch=0.3, hold=1.0) == 1
            with pytest.raises(S2ClientError):
                await stream.append(batch(b"late"))
            await stream.append(batch(b"next"))
            assert await read_until(stream.read_session(start=SeqNum(0)), 2) == [0, 1, 2]
            found = await stream.read(start=SeqNum(0), limit=ReadLimit(count=3))
            return [record.body for record in found.records]

    assert asyncio.run(main()) == [b"first", b"next", b"late"]


def test_random_cuts_leave_nothing_behind(proxy: FaultProxy) -> None:
    """After hundreds of random cuts under traffic no connection, descriptor or thread is left, and it still works."""
    stop = threading.Event()
    seed = random.randrange(1 << 30)
    print("seed", seed)
    choose = random.Random(seed)

    def traffic() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError), connect(proxy) as sock:
                while not stop.is_set() and ask(sock):
                    pass

    descriptors = len(os.listdir("/proc/self/fd"))
    workers = [threading.Thread(target=traffic) for _ in range(8)]
    for worker in workers:
        worker.start()
    cuts = 0
    try:
        while cuts < 1000:
            cuts += proxy.cut("random", choose.choice(["rst", "fin"]))
    finally:
        stop.set()
        proxy.cut()
        for worker in workers:
            worker.join(LONG)
    eventually(lambda: proxy.open_connections == 0)
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
    with connect(proxy) as sock:
        assert ask(sock).startswith(b"HTTP/1.1 200")


def test_proxies_leave_nothing_behind(server, basin: str) -> None:
    """Thirty proxies, closed with connections and held answers open, leave the same threads and descriptors."""

    def once() -> None:
        with FaultProxy(server.port) as proxy, contextlib.ExitStack() as stack:
            for _ in range(3):
                ask(stack.enter_context(connect(proxy)))
            proxy.delay(30)
            stack.enter_context(connect(proxy)).sendall(HEALTH)
            proxy.silent()
            stack.enter_context(connect(proxy))
            proxy.close()

    once()
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        once()
    assert threading.active_count() == threads
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)


# Requests.


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "bad_query"),
        (401, "authn"),
        (403, "permission_denied"),
        (404, "stream_not_found"),
        (409, "stream_deletion_pending"),
        (429, "rate_limited"),
        (500, "storage"),
        (502, "hot_server"),
        (503, "unavailable"),
    ],
)
def test_answer(proxy: FaultProxy, basin: str, status: int, code: str) -> None:
    """The proxy answers so many requests in the server's place, which sees the next one first."""
    rule = proxy.answer(Request(method="POST", path="/records$"), status=status, code=code, times=2)

    async def main() -> int:
        async with open_stream(proxy, basin) as stream:
            for _ in range(2):
                with pytest.raises(S2ServerError) as caught:
                    await stream.append(batch(b"x"))
                assert (caught.value.status_code, caught.value.code) == (status, code)
            return (await stream.append(batch(b"x"))).start.seq_num

    assert asyncio.run(main()) == 0
    assert (rule.hits, rule.fired) == (2, 2)
    assert [seen.finished for seen in proxy.seen(APPEND)] == ["proxy", "proxy", "end"]
    assert proxy.accepted == 1


def test_answer_chosen_requests(proxy: FaultProxy, basin: str) -> None:
    """Requests can be let pass first, chosen by a condition or by stream, for a time; a rule can be removed."""
    third = proxy.answer(APPEND, status=503, skip=2)
    odd: list[str] = []

    def every_other(seen: object) -> bool:
        odd.append("x")
        return len(odd) % 2 == 0

    async def outcome(stream: s2_sdk.S2Stream) -> bool:
        try:
            await stream.append(batch(b"x"))
        except S2ServerError:
            return False
        return True

    async def main() -> None:
        async with open_stream(proxy, basin) as stream:
            assert [await outcome(stream) for _ in range(4)] == [True, True, False, True]
            rule = proxy.answer(Request(kind="append", where=every_other), status=503, times=None)
            assert [await outcome(stream) for _ in range(4)] == [True, False, True, False]
            proxy.remove(rule)
            proxy.answer(Request(stream="other"), status=503, times=None)
            assert await outcome(stream)
            proxy.answer(Request(stream="s"), status=503, times=None, for_seconds=0.3)
            begin = time.monotonic()
            while not await outcome(stream):
                assert time.monotonic() - begin < LONG
                await asyncio.sleep(0.02)
            assert time.monotonic() - begin >= 0.3

    asyncio.run(main())
    third.wait()


def test_answered_bodies_do_not_use_up_the_connection(proxy: FaultProxy, basin: str) -> None:
    """Bodies that the server never sees are credited back: far more than its window goes through."""
    proxy.answer(APPEND, status=503, times=30)

    async def main() -> None:
        async with open_stream(proxy, basin) as stream:
            for _ in range(30):
                with pytest.raises(S2ServerError):
                    await stream.append(batch(bytes(1_000_000)))
            await stream.append(batch(bytes(1_000_000)))

    asyncio.run(main())
    assert proxy.accepted == 1


def test_answer_refuses_sessions(proxy: FaultProxy, basin: str) -> None:
    """Sessions are answered before their body ends."""
    proxy.answer(APPEND_SESSION, status=403, code="permission_denied")
    proxy.answer(READ_SESSION, status=409, code="stream_deletion_pending")

    async def main() -> None:
        async with open_stream(proxy, basin) as stream:
            with pytest.raises(S2ServerError, match="injected"):
                async with stream.append_session() as session:
                    await (await session.submit(batch(b"x")))
            with pytest.raises(S2ServerError) as caught:
                await read_until(stream.read_session(start=SeqNum(0)), 0)
            assert caught.value.code == "stream_deletion_pending"
            assert (await stream.append(batch(b"x"))).start.seq_num == 0

    asyncio.run(main())


@pytest.mark.parametrize("how", ["rst", "fin", None])
def test_lose_response(proxy: FaultProxy, basin: str, how: str | None) -> None:
    """The append is stored, its acknowledgement is lost; a later call works, on a new connection after a cut."""
    rule = proxy.lose_response(APPEND, how=how)

    async def main() -> int:
        async with open_stream(proxy, basin, times=HASTY) as stream:
            with pytest.raises(S2ClientError):
                await stream.append(batch(b"x"))
            rule.wait()
            return (await stream.append(batch(b"y"))).start.seq_num

    assert asyncio.run(main()) == 1
    assert proxy.accepted == (1 if how is None else 2)


def test_lose_acknowledgement_in_a_session(proxy: FaultProxy, basin: str) -> None:
    """In an append session the first acknowledgement passes and the second is lost; both inputs are stored."""
    proxy.lose_response(APPEND_SESSION, after=After(frames=1))

    async def main() -> int:
        async with open_stream(proxy, basin) as stream:
            with pytest.raises(S2ClientError):
                async with stream.append_session() as session:
                    first = await (await session.submit(batch(b"x")))
                    assert first.start.seq_num == 0
                    await (await session.submit(batch(b"y")))
            return (await stream.check_tail()).seq_num

    assert asyncio.run(main()) == 2


def test_end_session_by_terminal_frame(proxy: FaultProxy, basin: str) -> None:
    """A read session gets its records, then after its silence the error in a terminal frame; its neighbours go on."""
    proxy.end_session(READ_SESSION, status=403, code="permission_denied", after=After(seconds=0.3))

    async def main() -> None:
        async with open_stream(proxy, basin) as stream:
            await stream.append(batch(b"x"))
            numbers = []
            begin = time.monotonic()
            with pytest.raises(S2ServerError) as caught:
                async for found in stream.read_session(start=SeqNum(0)):
                    numbers += [record.seq_num for record in found.records]
            assert (caught.value.status_code, caught.value.code) == (403, "permission_denied")
            assert 0.3 <= time.monotonic() - begin < 3
            assert numbers == [0]
            await stream.append(batch(b"x"))

    asyncio.run(main())
    assert proxy.accepted == 1
    assert proxy.seen(READ_SESSION)[0].finished == "proxy"


def test_end_append_session_by_terminal_frame(proxy: FaultProxy, basin: str) -> None:
    """An append session can be ended by a terminal frame after an acknowledgement."""
    proxy.end_session(APPEND_SESSION, status=409, code="stream_deletion_pending", after=After(frames=1))

    async def main() -> None:
        async with open_stream(proxy, basin) as stream:
            with pytest.raises(S2ServerError, match="injected"):
                async with stream.append_session() as session:
                    await (await session.submit(batch(b"x")))
                    await (await session.submit(batch(b"y")))

    asyncio.run(main())


@pytest.mark.parametrize("fault", ["cut", "end"])
def test_strike_between_records_of_one_batch(proxy: FaultProxy, basin: str, fault: str) -> None:
    """A batch is cut in two where asked: sessions ask for 0, 3, 6, and every record arrives once."""

    def strike(**when: object) -> None:
        if fault == "cut":
            proxy.cut_on(READ_SESSION, **when)
        else:
            proxy.end_session(READ_SESSION, **when)

    strike(after=After(index=2))
    strike(after=After(records=3))

    async def main() -> list[int]:
        async with open_stream(proxy, basin, retry=Retry(max_attempts=5)) as stream:
            await stream.append(batch(*[b"x"] * 7))
            return await read_until(stream.read_session(start=SeqNum(0)), 6)

    assert asyncio.run(main()) == [0, 1, 2, 3, 4, 5, 6]
    assert [seen.seq_num for seen in proxy.seen(READ_SESSION)] == [0, 3, 6]


def test_cut_on_request(proxy: FaultProxy, basin: str) -> None:
    """A request can cut its connection before the server sees it."""
    proxy.cut_on(APPEND, after=After(request=True))

    async def main() -> int:
        async with open_stream(proxy, basin) as stream:
            with pytest.raises(S2ClientError):
                await stream.append(batch(b"x"))
            return (await stream.append(batch(b"x"))).start.seq_num

    assert asyncio.run(main()) == 0


@pytest.mark.parametrize("after", [After(request=True), After(), After(frames=1)], ids=["request", "headers", "frame"])
def test_finish_session(proxy: FaultProxy, basin: str, after: After) -> None:
    """A session ends in an orderly way although more would come."""
    proxy.finish_session(READ_SESSION, after=after)

    async def main() -> int:
        async with open_stream(proxy, basin) as stream:
            await stream.append(batch(b"x"))
            return sum([len(found.records) async for found in stream.read_session(start=SeqNum(0))])

    assert asyncio.run(main()) == (0 if after != After(frames=1) else 1)


def test_reset_stream(proxy: FaultProxy, basin: str) -> None:
    """RST_STREAM ends one exchange and leaves its connection."""
    proxy.reset_stream(READ_SESSION)

    async def main() -> None:
        async with open_stream(proxy, basin) as stream:
            await stream.append(batch(b"x"))
            with pytest.raises(S2ClientError):
                await read_until(stream.read_session(start=SeqNum(0)), 0)
            await stream.append(batch(b"x"))

    asyncio.run(main())
    assert proxy.accepted == 1


def test_silence_one_session(proxy: FaultProxy, basin: str) -> None:
    """One session hears nothing more, another one on the same connection goes on."""
    proxy.silence(READ_SESSION, after=After(records=1))

    async def main() -> None:
        async with open_stream(proxy, basin) as stream:
            await stream.append(batch(b"x"))
            quiet, lively = stream.read_session(start=SeqNum(0)), stream.read_session(start=SeqNum(0))
            assert [record.seq_num for record in (await anext(quiet)).records] == [0]
            assert [record.seq_num for record in (await anext(lively)).records] == [0]
            waiting = asyncio.ensure_future(anext(quiet))
            for number in range(1, 20):
                await stream.append(batch(b"x"))
                assert [record.seq_num for record in (await anext(lively)).records] == [number]
            assert not waiting.done()
            waiting.cancel()
            await close(lively)
            await close(quiet)
            await asyncio.wait([waiting])

    asyncio.run(main())
    assert proxy.accepted == 1


def test_silence_a_request(proxy: FaultProxy, basin: str) -> None:
    """A request is never answered and never reaches the server; the next one does."""
    proxy.silence(APPEND, after=After(request=True))

    async def main() -> int:
        async with open_stream(proxy, basin, times=HASTY) as stream:
            with pytest.raises(S2ClientError):
                await stream.append(batch(b"x"))
            return (await stream.append(batch(b"x"))).start.seq_num

    assert asyncio.run(main()) == 0
    assert proxy.accepted == 1
    assert proxy.seen(APPEND)[0].finished == "client reset"


def test_hold_response(proxy: FaultProxy, basin: str) -> None:
    """An answer is held back for a time, or until released, while others pass."""
    timed = proxy.hold_response(TAIL, 0.3)
    held = proxy.hold_response(TAIL)

    async def main() -> None:
        async with open_stream(proxy, basin) as stream:
            begin = time.monotonic()
            await stream.check_tail()
            assert 0.3 <= time.monotonic() - begin < 3
            waiting = asyncio.ensure_future(stream.check_tail())
            await asyncio.to_thread(proxy.wait_for, TAIL, 2)
            for _ in range(20):
                await stream.append(batch(b"x"))
            assert not waiting.done()
            proxy.remove(held)
            assert (await waiting).seq_num < 20

    asyncio.run(main())
    assert (timed.fired, held.fired) == (1, 1)


@pytest.mark.parametrize("grace", [5.0, 0.0], ids=["graceful", "at once"])
def test_goaway(proxy: FaultProxy, basin: str, grace: float) -> None:
    """With a grace the exchange in flight still gets its whole answer, and the connection closes behind it; without,
    it ends with its connection. Later calls use a new connection.

    The client takes neither well: its HTTP/2 library accepts no frame at all after GOAWAY, so that an append in
    flight fails although its answer came. The proxy's log is what tells the two apart.
    """
    held = proxy.hold_response(APPEND, skip=1)

    async def main() -> None:
        async with open_stream(proxy, basin) as stream:
            await stream.append(batch(b"x"))
            waiting = asyncio.ensure_future(stream.append(batch(b"y")))
            await asyncio.to_thread(proxy.wait_for, APPEND, 2)
            assert await asyncio.to_thread(proxy.goaway, grace=grace) == 1
            begin = time.monotonic()
            while proxy.accepted < 2:
                assert time.monotonic() - begin < LONG
                with contextlib.suppress(S2ClientError):
                    await stream.check_tail()
            assert proxy.connections[0].over is (not grace)
            proxy.remove(held)
            with pytest.raises(S2ClientError):
                await waiting
            await asyncio.to_thread(eventually, lambda: proxy.connections[0].over)

    asyncio.run(main())
    answered = proxy.seen(APPEND)[1]
    assert (answered.status, answered.finished) == ((200, "end") if grace else (None, "closed"))
    assert proxy.seen(TAIL)[-1].connection == 2


def test_goaway_on_a_request(proxy: FaultProxy, basin: str) -> None:
    """A session can bring GOAWAY behind a record; it goes on elsewhere, and nothing is lost or repeated.

    Where it goes on from is the client's affair: what arrives together with GOAWAY may be lost on it.
    """
    proxy.goaway_on(READ_SESSION, grace=0.3, after=After(records=1))

    async def main() -> list[int]:
        async with open_stream(proxy, basin, retry=Retry(max_attempts=5)) as stream:
            await stream.append(batch(b"x"))
            reading = asyncio.ensure_future(read_until(stream.read_session(start=SeqNum(0)), 1))
            await asyncio.to_thread(proxy.wait_for, READ_SESSION, 2)
            await stream.append(batch(b"x"))
            return await reading

    assert asyncio.run(main()) == [0, 1]
    assert [seen.connection for seen in proxy.seen(READ_SESSION)] == [1, 2]


def test_strike_open_sessions(proxy: FaultProxy, basin: str) -> None:
    """Sessions under way can be struck from outside, wherever their frames stand."""

    async def main() -> None:
        async with open_stream(proxy, basin) as stream:
            await stream.append(batch(b"x"))
            session = stream.read_session(start=SeqNum(0))
            assert len((await anext(session)).records) == 1
            struck = proxy.strike(READ_SESSION, Effect(do="end", status=404, code="stream_not_found"))
            assert struck == 1
            with pytest.raises(S2ServerError) as caught:
                await anext(session)
            assert caught.value.code == "stream_not_found"
            await close(session)

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.stress
@pytest.mark.limit(60)
def test_cuts_under_sessions(proxy: FaultProxy, basin: str) -> None:
    """Five readers resume exactly through random cuts of their sessions while records are appended beside them."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    choose = random.Random(seed)
    count, readers = 2000, 5
    retry = Retry(max_attempts=1000, min_base_delay=timedelta(0), max_base_delay=timedelta(milliseconds=10))

    async def main() -> list[list[int]]:
        async with contextlib.AsyncExitStack() as stack:
            streams = [
                await stack.enter_async_context(open_stream(proxy, basin, retry=retry)) for _ in range(readers + 1)
            ]
            await streams[0].append(batch(b"0"))
            link = proxy.connections[0]
            reading = [
                asyncio.ensure_future(read_until(stream.read_session(start=SeqNum(0)), count - 1))
                for stream in streams[1:]
            ]
            for number in range(1, count, 40):
                await streams[0].append(batch(*[b"x"] * min(40, count - number)))
                others = await asyncio.to_thread(
                    eventually, lambda: [o.number for o in proxy.connections if not o.over and o is not link]
                )
                await asyncio.to_thread(proxy.cut, choose.choice(others), choose.choice(["rst", "fin"]))
            return await asyncio.gather(*reading)

    for numbers in asyncio.run(main()):
        assert numbers == list(range(count))
    assert proxy.accepted > 40


# Flow control.


def test_slow_reader_holds_back_the_server(proxy: FaultProxy, basin: str) -> None:
    """A client that does not read stops the server at one window; what was answered by the proxy meanwhile, on the
    same connection, breaks nothing; then all arrives.
    """
    count, size = 30, 1_000_000

    async def main() -> None:
        async with open_stream(proxy, basin) as stream:
            for _ in range(count):
                await stream.append(batch(bytes(size)))
            before = proxy.passed("to_client")
            session = stream.read_session(start=SeqNum(0))
            await anext(session)
            await asyncio.to_thread(eventually, lambda: proxy.passed("to_client") - before > 10 * 2**20 - 2 * 65536)
            proxy.answer(TAIL, status=503, times=100)
            for _ in range(100):
                with pytest.raises(S2ServerError):
                    await stream.check_tail()
            assert proxy.passed("to_client") - before < 13 * 2**20
            assert await read_until(session, count - 1) == list(range(1, count))

    asyncio.run(main())
    assert proxy.accepted == 1
