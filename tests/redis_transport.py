"""A second transport for local topics, on Redis pub/sub: what a user's own ``inner`` looks like.

It shows what ``s2pubsub.transport`` asks for, with nothing but the public codec: events reach every process that is
connected to the same Redis. It has no groups and no history. Not part of the library.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Self

import redis

from s2pubsub import ClosedError, Event, GroupNotSupportedError, OperationTimeoutError
from s2pubsub.codec import decode, encode

_MARK = b"\0"
"""First byte of a message that is no event: JSON has none."""


class RedisTransport:
    """Topics as Redis channels. Thread-safe."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._client = redis.Redis(host=host, port=port)
        self._lock = threading.Lock()
        self._open: list[RedisSubscription] = []
        self._callbacks: dict[tuple[str, Callable[..., object]], RedisSubscription] = {}
        self._closed = False

    def publish(self, topic: str, *, type: str, data: Any, run_id: str = "", timeout: float | None = 30.0) -> Event:
        self._check_open()
        event, body = encode(topic, type=type, data=data, run_id=run_id)
        self._client.publish(topic, body)
        return event

    def subscribe(
        self,
        topic: str,
        callback: Callable[..., object] | None = None,
        *,
        start: str | int = "latest",
        group: str | None = None,
        batch: Any = None,
        on_error: Callable[[BaseException], object] | None = None,
        timeout: float | None = 30.0,
    ) -> RedisSubscription:
        if group is not None:
            raise GroupNotSupportedError("Redis pub/sub has no groups: every subscriber gets every event")
        if batch is not None:
            raise ValueError("Redis pub/sub does not batch")
        with self._lock:
            self._check_open()
            found = None if callback is None else self._callbacks.get((topic, callback))
            if found is None or found.closed:
                found = RedisSubscription(self._client, topic, callback, on_error, timeout)
                self._open.append(found)
                if callback is not None:
                    self._callbacks[topic, callback] = found
            return found

    def unsubscribe(self, topic: str, callback: Callable[..., object]) -> None:
        with self._lock:
            found = self._callbacks.pop((topic, callback), None)
        if found is not None:
            found.close()

    def get_history(self, topic: str, offset: int = 0, *, timeout: float | None = 30.0) -> list[Event]:
        self._check_open()
        return []

    def clear_topic(self, topic: str) -> None:
        for subscription in self._subscriptions(topic):
            subscription.close()

    def flush(self, timeout: float | None = None) -> None:
        # Redis delivers a connection's messages in order: when a mark has come back, so has everything before it.
        end = None if timeout is None else time.monotonic() + timeout
        for subscription in self._subscriptions():
            if not subscription.flush(end):
                raise OperationTimeoutError(f"topic {subscription.topic!r} was not flushed in time")

    def close(self, timeout: float | None = 5.0) -> None:
        with self._lock:
            self._closed = True
        for subscription in self._subscriptions():
            subscription.close(timeout)
        self._client.close()

    def _subscriptions(self, topic: str | None = None) -> list[RedisSubscription]:
        with self._lock:
            self._open = [subscription for subscription in self._open if not subscription.closed]
            return [subscription for subscription in self._open if topic in (None, subscription.topic)]

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the Redis transport is closed")


class RedisSubscription:
    """One connection and one thread, which fills a queue or calls a callback."""

    def __init__(
        self,
        client: redis.Redis,
        topic: str,
        callback: Callable[..., object] | None,
        on_error: Callable[[BaseException], object] | None,
        timeout: float | None,
    ) -> None:
        self.topic = topic
        self._client = client
        self._callback = callback
        self._on_error = on_error
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._marks: dict[bytes, threading.Event] = {}
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._pubsub = client.pubsub()
        self._pubsub.subscribe(topic)
        if self._pubsub.get_message(timeout=timeout) is None:  # the confirmation: from now on nothing is missed
            self._pubsub.close()
            raise OperationTimeoutError(f"Redis did not answer the subscription to {topic!r}")
        self._thread = threading.Thread(target=self._read, name=f"redis-{topic}", daemon=True)
        self._thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        event = None if self._stop.is_set() else self._events.get()
        if event is None:
            self._events.put(None)  # for the next one who asks
            raise StopIteration
        return event

    def get(self, timeout: float | None = None) -> Event:
        try:
            event = None if self._stop.is_set() else self._events.get(timeout=timeout)
        except queue.Empty:
            raise OperationTimeoutError(f"no event on topic {self.topic!r} within {timeout} s") from None
        if event is None:
            self._events.put(None)
            raise ClosedError(f"the subscription to topic {self.topic!r} is closed")
        return event

    @property
    def closed(self) -> bool:
        return self._stop.is_set()

    def wait(self, timeout: float | None = None) -> None:
        if not self._ended.wait(timeout):
            raise OperationTimeoutError(f"the subscription to topic {self.topic!r} goes on")

    def close(self, timeout: float | None = 5.0) -> None:
        if not self._stop.is_set():
            self._stop.set()
            self._events.put(None)
            with contextlib.suppress(redis.ConnectionError):
                self._pubsub.unsubscribe()  # its confirmation ends the thread
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def flush(self, end: float | None) -> bool:
        mark = _MARK + uuid.uuid4().bytes
        seen = self._marks[mark] = threading.Event()
        self._client.publish(self.topic, mark)
        try:
            return seen.wait(None if end is None else max(0.0, end - time.monotonic()))
        finally:
            del self._marks[mark]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self) -> None:
        try:
            while True:
                message = self._pubsub.get_message(timeout=None)
                if message is None:
                    continue
                if message["type"] == "unsubscribe":
                    return
                self._take(message["data"])
        except (redis.ConnectionError, ValueError):
            pass  # Redis has gone; what was queued can still be read
        finally:
            for seen in list(self._marks.values()):
                seen.set()
            self._events.put(None)
            self._pubsub.close()
            self._ended.set()

    def _take(self, body: bytes) -> None:
        if body.startswith(_MARK):
            seen = self._marks.get(body)
            if seen is not None:
                seen.set()
            return
        event = decode(self.topic, None, body)
        if self._callback is None:
            self._events.put(event)
        elif not self._stop.is_set():
            try:
                self._callback(event)
            except Exception as error:
                if self._on_error is not None:
                    self._on_error(error)
