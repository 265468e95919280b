"""Configuration of basins and streams: reading it from JSON, laying one over another, showing it.

A configuration is a flat, frozen value whose unset fields are None; a patch is a mapping of fields to new values. The
JSON shape is S2's. Wrong types raise `ValueError` (a syntax matter), values out of range `ApiError` (invalid).
"""

from __future__ import annotations

from typing import Any, Literal

import attrs
from attrs import frozen

from s2pubsub.server.failure import ApiError
from s2pubsub.server.names import MAX_U64

INFINITE: Literal["infinite"] = "infinite"
_MODES = ("client-prefer", "client-require", "arrival")
CIPHERS = ("aegis-256", "aes-256-gcm")
Patch = dict[str, Any]


@frozen
class StreamConfig:
    """A stream's configuration. ``age`` and ``min_age`` in seconds; ``age`` may be `INFINITE`."""

    storage_class: str | None = None
    age: int | Literal["infinite"] | None = None
    mode: str | None = None
    uncapped: bool | None = None
    min_age: int | None = None

    def over(self, defaults: StreamConfig) -> StreamConfig:
        """The same configuration with the unset fields taken from ``defaults``."""
        unset = {f.name: getattr(defaults, f.name) for f in attrs.fields(StreamConfig) if getattr(self, f.name) is None}
        return attrs.evolve(self, **unset)

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        timestamping = None
        if self.mode is not None or self.uncapped is not None:
            timestamping = {"mode": self.mode, "uncapped": self.uncapped}
        policy: dict[str, Any] | None = None
        if self.age is not None:
            policy = {"infinite": {}} if self.age == INFINITE else {"age": self.age}
        return {
            "storage_class": self.storage_class,
            "retention_policy": policy,
            "timestamping": timestamping,
            "delete_on_empty": None if self.min_age is None else {"min_age_secs": self.min_age},
        }


SYSTEM_DEFAULTS = StreamConfig("express", 7 * 24 * 3600, "client-prefer", False, 0)


@frozen
class BasinConfig:
    """A basin's configuration."""

    default: StreamConfig = StreamConfig()
    cipher: str | None = None
    create_on_append: bool = False
    create_on_read: bool = False

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "default_stream_config": None if self.default == StreamConfig() else self.default.document(),
            "stream_cipher": self.cipher,
            "create_stream_on_append": self.create_on_append,
            "create_stream_on_read": self.create_on_read,
        }


def stream_config(document: Any) -> StreamConfig:
    """The stream configuration that ``document`` gives; absent and null fields are unset."""
    patch = stream_patch(document)
    if isinstance(document.get("delete_on_empty"), dict):
        # Outside a patch the object alone means zero, which is "off" and not the same as unset.
        patch["min_age"] = patch.get("min_age") or 0
        if document["delete_on_empty"].get("min_age_secs", 0) is None:
            raise ValueError("min_age_secs is an unsigned integer")
    return StreamConfig(**patch)


def stream_patch(document: Any) -> Patch:
    """The fields of `StreamConfig` that ``document`` sets (or, where null, clears)."""
    _check_object(document, "a stream configuration")
    patch: Patch = {}
    if "storage_class" in document:
        patch["storage_class"] = _optional(document["storage_class"], str, "storage_class is a string")
    if "retention_policy" in document:
        patch["age"] = _retention(document["retention_policy"])
    if "timestamping" in document:
        timestamping = document["timestamping"]
        if timestamping is None:
            patch.update(mode=None, uncapped=None)
        else:
            _check_object(timestamping, "timestamping")
            if "mode" in timestamping:
                mode = timestamping["mode"]
                if mode is not None and mode not in _MODES:
                    raise ValueError("unknown timestamping mode")
                patch["mode"] = mode
            if "uncapped" in timestamping:
                patch["uncapped"] = _optional(timestamping["uncapped"], bool, "uncapped is a boolean")
    if "delete_on_empty" in document:
        on_empty = document["delete_on_empty"]
        if on_empty is None:
            patch["min_age"] = None
        else:
            _check_object(on_empty, "delete_on_empty")
            if "min_age_secs" in on_empty:
                seconds = on_empty["min_age_secs"]
                patch["min_age"] = None if seconds is None else unsigned(seconds, "min_age_secs")
    return patch


def basin_config(document: Any) -> BasinConfig:
    """The basin configuration that ``document`` gives."""
    patch = basin_patch(document)
    default = document.get("default_stream_config")
    patch.pop("default", None)
    return BasinConfig(default=StreamConfig() if default is None else stream_config(default), **patch)


def basin_patch(document: Any) -> Patch:
    """The fields of `BasinConfig` that ``document`` sets; ``default`` is itself a patch, or None to clear it."""
    _check_object(document, "a basin configuration")
    patch: Patch = {}
    if "default_stream_config" in document:
        default = document["default_stream_config"]
        patch["default"] = None if default is None else stream_patch(default)
    if "stream_cipher" in document:
        cipher = document["stream_cipher"]
        if cipher is not None and cipher not in CIPHERS:
            raise ValueError("unknown stream_cipher")
        patch["cipher"] = cipher
    for key, field in (("create_stream_on_append", "create_on_append"), ("create_stream_on_read", "create_on_read")):
        if key in document:
            patch[field] = document[key]
            if not isinstance(patch[field], bool):
                raise ValueError(f"{key} is a boolean")
    return patch


def patch_basin(config: BasinConfig, patch: Patch) -> BasinConfig:
    """``config`` with ``patch`` applied."""
    changes = dict(patch)
    if "default" in changes:
        inner = changes["default"]
        changes["default"] = StreamConfig() if inner is None else attrs.evolve(config.default, **inner)
    return attrs.evolve(config, **changes)


def unsigned(value: Any, name: str, maximum: int = MAX_U64) -> int:
    """``value`` when it is an unsigned integer up to ``maximum``, else `ValueError`."""
    if type(value) is not int or not 0 <= value <= maximum:
        raise ValueError(f"{name} is an unsigned integer")
    return value


def _retention(policy: Any) -> int | Literal["infinite"] | None:
    if policy is None:
        return None
    if not isinstance(policy, dict) or len(policy) != 1:
        raise ValueError("retention_policy has one of 'age' and 'infinite'")
    if "infinite" in policy:
        _check_object(policy["infinite"], "infinite")
        return INFINITE
    if "age" not in policy:
        raise ValueError("retention_policy has one of 'age' and 'infinite'")
    age = unsigned(policy["age"], "age")
    if age == 0:
        raise ApiError("invalid", "the age of a retention policy is greater than zero")
    return age


def _optional(value: Any, kind: type, problem: str) -> Any:
    if value is not None and not isinstance(value, kind):
        raise ValueError(problem)
    return value


def _check_object(value: Any, name: str) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is an object")
