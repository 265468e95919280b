"""The ``S2PUBSUB`` setting, and the process's one client made of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.module_loading import import_string

from s2pubsub.client import S2PubSub
from s2pubsub.contrib.site import Site
from s2pubsub.runs import Runs
from s2pubsub.runtime.fork import reset_in_child
from s2pubsub.sse.stream import Transform

SETTING = "S2PUBSUB"

Authorize = Callable[[HttpRequest, str], bool]
"""Says whether the request may see or stop the run with this id."""

_HOOKS = ("AUTHORIZE", "TRANSFORM")


class Configuration:
    """Reads the setting when something first needs it, and keeps what was made of it. Thread-safe."""

    def __init__(self) -> None:
        self._site: Site | None = None
        self._reset_in_child()
        reset_in_child(self)

    def _reset_in_child(self) -> None:
        self._lock = threading.Lock()

    @property
    def site(self) -> Site:
        """What the setting describes.

        Raises:
            ImproperlyConfigured: a key is misspelt or its value has the wrong type.
        """
        with self._lock:
            if self._site is None:
                self._site = self.read()
            return self._site

    def read(self) -> Site:
        """A new site from the setting as it is now. Raises as ``site``."""
        mapping = self._mapping()
        try:
            return Site.from_mapping({key: mapping[key] for key in mapping if key not in _HOOKS}, SETTING)
        except (ValueError, TypeError) as error:
            raise ImproperlyConfigured(str(error)) from error

    def hook(self, name: str) -> Any:
        """The function that the setting's key ``AUTHORIZE`` or ``TRANSFORM`` names, None where it is not given.

        Raises:
            ImproperlyConfigured: it cannot be imported or called.
        """
        value = self._mapping().get(name)
        if isinstance(value, str):
            try:
                value = import_string(value)
            except ImportError as error:
                raise ImproperlyConfigured(f"{SETTING}[{name!r}]: {error}") from error
        if value is not None and not callable(value):
            raise ImproperlyConfigured(f"{SETTING}[{name!r}] must be a function or the dotted path of one")
        return value

    @property
    def authorize(self) -> Authorize | None:
        """The hook ``AUTHORIZE``."""
        found: Authorize | None = self.hook("AUTHORIZE")
        return found

    @property
    def transform(self) -> Transform | None:
        """The hook ``TRANSFORM``."""
        found: Transform | None = self.hook("TRANSFORM")
        return found

    def _mapping(self) -> Mapping[str, Any]:
        mapping = getattr(settings, SETTING, {})
        if not isinstance(mapping, Mapping):
            raise ImproperlyConfigured(f"{SETTING} must be a dictionary, not {type(mapping).__name__}")
        return mapping

    def reset(self) -> None:
        """Close the client; the next use reads the setting again."""
        with self._lock:
            site, self._site = self._site, None
        if site is not None:
            site.close()


configuration = Configuration()
"""The process's only one."""


def get_pubsub() -> S2PubSub:
    """The project's client; made by the first call, connected by the first use.

    Raises:
        ImproperlyConfigured: the setting is wrong, or something is missing in it and in the environment.
    """
    site = configuration.site
    try:
        return site.pubsub
    except ValueError as error:
        raise ImproperlyConfigured(f"{SETTING}: {error}") from error


def get_runs() -> Runs:
    """The project's runs. Raises as ``get_pubsub``."""
    get_pubsub()
    return configuration.site.runs
