"""What a web application has of this library: one client and one ``Runs``, made on first use from its configuration.

Not for any one framework: ``flask`` and ``django`` read their configuration into it.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Self

import attrs

from s2pubsub.client import S2PubSub
from s2pubsub.codec import structure
from s2pubsub.runs import Runs
from s2pubsub.runtime.fork import reset_in_child
from s2pubsub.settings import Settings, make_endpoints
from s2pubsub.sse.limiter import Limiter

_log = logging.getLogger("s2pubsub")


@attrs.frozen(kw_only=True)
class WebSettings:
    """What responses are made of, where a call does not say otherwise.

    Attributes:
        cleanup_timeout: see ``Runs``.
        heartbeat: see ``sse.stream``.
        lifetime: see ``sse.stream``; for the format ``events``.
        retry: see ``sse.stream``.
        show_errors: see ``sse.stream``.
        idle_timeout: see ``Runs.observe``.
        max_streams: how many streams one process sends at once; the next ones get 503. None for any number.
    """

    cleanup_timeout: float = 30.0
    heartbeat: float = 15.0
    lifetime: float | None = None
    retry: float = 1.0
    show_errors: bool = False
    idle_timeout: float | None = None
    max_streams: int | None = None

    def of_answers(self) -> dict[str, Any]:
        """The arguments of ``sse.answer_run``."""
        names = ("heartbeat", "lifetime", "retry", "show_errors", "idle_timeout")
        return {name: getattr(self, name) for name in names}


_CLIENT = frozenset(attrs.fields_dict(Settings))
_WEB = frozenset(attrs.fields_dict(WebSettings))
_ENDPOINTS = ("account_endpoint", "basin_endpoint")


class Site:
    """One application's client, runs and limit of streams. Thread-safe; works on in a forked child.

    Args:
        client: arguments of ``S2PubSub``.
        web: the rest.
    """

    def __init__(self, client: Mapping[str, Any], web: WebSettings) -> None:
        self.web = web
        self.limiter = Limiter(web.max_streams)
        self._client = dict(client)
        self._pubsub: S2PubSub | None = None
        self._runs: Runs | None = None
        self._lock = threading.Lock()
        reset_in_child(self)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], where: str, prefix: str = "") -> Self:
        """A site from a configuration's keys, in any case. Nothing is coerced, and nothing connects.

        Args:
            mapping: the configuration.
            where: what the mapping is called in errors.
            prefix: what the keys begin with.

        Raises:
            ValueError, TypeError: a key is misspelt or its value has the wrong type.
        """
        values: dict[str, Any] = {}
        for key, value in mapping.items():
            name = str(key)[len(prefix) :].lower()
            if name not in _CLIENT | _WEB | set(_ENDPOINTS):
                near = get_close_matches(name, sorted(_CLIENT | _WEB), n=1)
                hint = f"; did you mean {prefix + near[0].upper()!r}?" if near else ""
                raise ValueError(f"{where}[{key!r}] is not a known setting{hint}")
            if name in values:
                raise ValueError(f"{where}[{key!r}] is given twice")
            values[name] = value
        client = {name: value for name, value in values.items() if name in _CLIENT}
        given = [values[name] for name in _ENDPOINTS if values.get(name)]
        if given:
            if len(given) != len(_ENDPOINTS) or "endpoints" in client:
                raise ValueError(f"{where}: give both ACCOUNT_ENDPOINT and BASIN_ENDPOINT, or ENDPOINTS alone")
            names = [f"{where}[{(prefix + name).upper()!r}]" for name in _ENDPOINTS]
            for name, value in zip(names, given, strict=True):
                if not isinstance(value, str):
                    raise TypeError(f"{name} must be str, not {type(value).__name__}")
            client["endpoints"] = make_endpoints(given[0], given[1], names[0], names[1])
        Settings.from_mapping(client, where)
        web = structure(WebSettings, {name: value for name, value in values.items() if name in _WEB}, where)
        return cls(client, web)

    @property
    def pubsub(self) -> S2PubSub:
        """The client; made by the first use.

        Raises:
            ValueError: a setting is missing, here and in the environment.
            RuntimeError: the server runs this process without threads.
        """
        return self._made()[0]

    @property
    def runs(self) -> Runs:
        """The runs of the client. Raises as ``pubsub``."""
        return self._made()[1]

    def _made(self) -> tuple[S2PubSub, Runs]:
        with self._lock:
            if self._pubsub is None or self._runs is None:
                refuse_unthreaded()
                self._pubsub = S2PubSub(**self._client)
                self._runs = Runs(self._pubsub, self.web.cleanup_timeout)
            return self._pubsub, self._runs

    def complete(self) -> None:
        """Raise ValueError if a setting is missing."""
        Settings(**self._client).completed()

    def close(self, timeout: float | None = 5.0) -> None:
        """Close the client, which ends its streams; the next use makes a new one. At exit this happens by itself."""
        with self._lock:
            pubsub, self._pubsub, self._runs = self._pubsub, None, None
        if pubsub is not None:
            pubsub.close(timeout)

    def _reset_in_child(self) -> None:
        self._lock = threading.Lock()


def refuse_unthreaded() -> None:
    """Raise RuntimeError under uWSGI without threads, where no thread of this library would ever run."""
    uwsgi: Any = sys.modules.get("uwsgi")  # it exists in processes of uWSGI only
    options = getattr(uwsgi, "opt", None)
    if isinstance(options, dict) and not any(options.get(name) for name in _UWSGI_THREADS):
        raise RuntimeError(
            "uWSGI runs Python without threads, and s2pubsub needs them: start it with --enable-threads, "
            "and with --threads N so that streams leave room for other requests"
        )


_UWSGI_THREADS = ("enable-threads", b"enable-threads", "threads", b"threads", "gevent", b"gevent")


class SingleThreadWarning:
    """Says once in the log that a stream blocks its whole server process."""

    def __init__(self) -> None:
        self._said = False

    def look(self, environ: Mapping[str, Any]) -> None:
        """``environ``: the WSGI environment. Test clients, which name no server, are left alone."""
        named = "SERVER_SOFTWARE" in environ or "uwsgi.version" in environ
        if self._said or environ.get("wsgi.multithread", True) or not named:
            return
        self._said = True
        _log.warning(
            "this server handles one request at a time, so an open stream blocks all others: "
            "give it threads (gunicorn: --worker-class gthread --threads N)"
        )


single_thread_warning = SingleThreadWarning()
