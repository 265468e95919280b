"""The I/O loop's economy: nothing is lost, reordered or left lying by asking the system less often."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from functools import partial

import pytest

from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.loop import IOLoop
from s2pubsub.runtime.turns import Bell, Gathering, Selector
from tests.waiting import LONG


class Written:
    """Where a transport writes to."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.calls.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def test_one_turn_one_write() -> None:
    """What is written in one turn is sent in one call, in order; what is held when it is closed is sent before."""

    async def run() -> Written:
        below = Written()
        transport = Gathering(below, asyncio.get_running_loop())  # type: ignore[arg-type]
        for part in (b"a", b"b", b"c"):
            transport.write(part)
        assert below.calls == []
        await asyncio.sleep(0)
        assert below.calls == [b"abc"]
        transport.write(b"d")
        await asyncio.sleep(0)
        transport.write(b"e")
        transport.write(b"f")
        transport.close()
        assert transport.is_closing()
        transport.write(b"late")
        await asyncio.sleep(0)
        return below

    assert asyncio.run(run()).calls == [b"abc", b"d", b"ef"]


def test_busy_loop_looks_at_its_sockets() -> None:
    """A loop that never runs out of work hears its sockets all the same."""
    loop = asyncio.SelectorEventLoop(Selector())
    ours, theirs = socket.socketpair()
    try:

        def work() -> None:
            loop.call_soon(work)

        async def run() -> bytes:
            work()
            heard = asyncio.ensure_future(loop.sock_recv(ours, 10))
            loop.call_soon(theirs.send, b"x")
            return await asyncio.wait_for(heard, LONG)

        ours.setblocking(False)
        assert loop.run_until_complete(run()) == b"x"
    finally:
        loop.close()
        ours.close()
        theirs.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="this system decides by itself")
def test_prompt_acknowledgement() -> None:
    """Whatever comes on a connection of the I/O loop is acknowledged at once; without that the system soon waits."""
    loop = IOLoop(logging.getLogger(__name__))
    prompt = loop.call(_quick_acknowledgements(), Deadline.after(LONG))
    assert loop.close(Deadline.after(LONG))
    assert prompt == [1] * len(prompt)
    assert 0 in asyncio.run(_quick_acknowledgements())


async def _quick_acknowledgements() -> list[int]:
    """For each of many answers, whether the connection acknowledges at once what comes next."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while question := await reader.read(10):
            writer.write(question)
        writer.close()
        answered.set()

    answered = asyncio.Event()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        connection = writer.get_extra_info("socket")
        found = []
        for _ in range(20):
            writer.write(b"?")
            assert await reader.readexactly(1) == b"?"
            found.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))
        writer.close()
        await answered.wait()
    return found


def test_a_loop_that_ends_lets_go_of_its_sockets() -> None:
    """Also of a connection that was closed and could not send all of its data: the socket does not outlive the loop."""

    async def leave(address: tuple[str, int]) -> socket.socket:
        _, writer = await asyncio.open_connection(*address)
        writer.write(bytes(2**24))
        writer.close()
        return writer.get_extra_info("socket")  # type: ignore[no-any-return]

    loop = IOLoop(logging.getLogger(__name__))
    with socket.create_server(("127.0.0.1", 0)) as server:  # nobody reads
        connection = loop.call(leave(server.getsockname()), Deadline.after(LONG))
        assert connection.fileno() >= 0
        assert loop.close(Deadline.after(LONG))
        assert connection.fileno() == -1


def test_bell() -> None:
    """Every action is called on the loop, those of one thread in order, and ringing a closed bell does nothing."""
    bells: list[Bell] = []
    done: list[tuple[int, int]] = []

    async def run() -> None:
        bell = Bell(asyncio.get_running_loop())
        bells.append(bell)
        all_done = asyncio.Event()
        here = threading.get_ident()

        def act(thread: int, number: int) -> None:
            assert threading.get_ident() == here
            done.append((thread, number))
            if len(done) == 4000:
                all_done.set()

        def ring(thread: int) -> None:
            for number in range(1000):
                bell.ring(partial(act, thread, number))

        threads = [threading.Thread(target=ring, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(all_done.wait(), LONG)
        for thread in threads:
            thread.join(LONG)
        asyncio.get_running_loop().remove_reader(bell._reading)

    asyncio.run(run())
    [bell] = bells
    bell.close()
    bell.ring(lambda: done.clear())
    for thread in range(4):
        assert [number for of, number in done if of == thread] == list(range(1000))
