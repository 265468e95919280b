"""The settings of a client, checked for what they are and completed from the environment. No I/O.

``S2PubSub(**settings)`` and configuration files (``Settings.from_mapping``) go through the same checks: nothing is
coerced, and every error names the setting and the environment variable.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import urlsplit

import attrs
import s2_sdk

from s2pubsub.codec import structure
from s2pubsub.transport import Transport

DEFAULT_QUEUE_SIZE = 1024
DEFAULT_QUEUE_BYTES = 4 * 2**20

_BASIN = re.compile(r"[a-z0-9][a-z0-9-]{6,46}[a-z0-9]")
_TOKEN = re.compile(r"[!-~]+")


def _typed(*kinds: type) -> Callable[[object, attrs.Attribute[Any], object], None]:
    """A validator that takes exactly these types, so that True is not a number and a subclass is not text."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if type(value) not in kinds:
            names = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
            raise TypeError(f"{attribute.name} must be {names}, not {type(value).__name__}")

    return check


def _positive(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    _typed(int)(instance, attribute, value)
    if value < 1:
        raise ValueError(f"{attribute.name} must be at least 1, got {value}")


def _callable(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not callable(value) and not isinstance(value, s2_sdk.S2):
        raise TypeError(f"{attribute.name} must be callable, not {type(value).__name__}")


def _transport(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not isinstance(value, Transport):
        missing = [name for name in ("publish", "subscribe", "unsubscribe", "close") if not hasattr(value, name)]
        raise TypeError(f"inner must be a transport (see s2pubsub.transport); {type(value).__name__} lacks {missing}")


def _text(check: Callable[[str, str], object]) -> Callable[[object, attrs.Attribute[Any], Any], None]:
    """A validator that takes None, and text that passes ``check(name, text)``. An empty one counts as not given."""

    def validate(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        _typed(str, type(None))(instance, attribute, value)
        if value:
            check(attribute.name, value)

    return validate


def _check_basin(setting: str, name: str) -> None:
    if not _BASIN.fullmatch(name):
        raise ValueError(
            f"{setting}: {name[:60]!a} is no name of a basin: it must have 8 to 48 characters of a-z, 0-9 and '-', "
            f"with a letter or digit at both ends; give the name of a basin, such as 'agent-runs'"
        )


def _check_token(setting: str, token: str) -> None:
    if not _TOKEN.fullmatch(token):
        # It goes into a header as it is. The message does not show it.
        raise ValueError(
            f"{setting} must be printable ASCII without white space, as it is sent in a header; strip what stands "
            f"around it, such as the line end of the file that it was read from"
        )


def _address(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None:
        _typed(str, s2_sdk.Endpoints)(instance, attribute, value)
        _endpoints(value)


@attrs.frozen(kw_only=True)
class Settings:
    """What ``S2PubSub`` is made of; its arguments, with their types and defaults.

    Neither its repr nor its pickle holds the access token or the encryption key: elsewhere they come from there.

    Attributes:
        basin: the S2 basin; else ``S2_BASIN``.
        access_token: else ``S2_ACCESS_TOKEN``.
        endpoints: ``s2_sdk.Endpoints``, or one base URL for both; else ``S2_ACCOUNT_ENDPOINT`` and
            ``S2_BASIN_ENDPOINT``; else the S2 cloud.
        client: a callable that makes an ``s2_sdk.S2``, called for each lane and each replacement; or a ready-made,
            unused ``S2``. Takes precedence over ``access_token`` and ``endpoints``.
        inner: transport for local topics.
        stream_prefix: stream name = prefix + topic.
        topic_prefix: topics that begin so are stored in S2; all others are local.
        logger: where failures go that no caller waits for.
        queue_size, queue_bytes: bounds of a subscription's queue, in events and bytes of records.
        run_config: ``s2_sdk.StreamConfig`` for streams that appends and reads create.
        encryption_key: for basins with a cipher: 32 bytes, or their base64.
        default: called with a value that is not JSON; returns one that is.
    """

    basin: str | None = attrs.field(default=None, validator=_text(_check_basin))
    access_token: str | None = attrs.field(default=None, validator=_text(_check_token), repr=False)
    endpoints: s2_sdk.Endpoints | str | None = attrs.field(default=None, validator=_address)
    client: Callable[[], s2_sdk.S2] | s2_sdk.S2 | None = attrs.field(default=None, validator=_callable, repr=False)
    inner: Transport | None = attrs.field(default=None, validator=_transport)
    stream_prefix: str = attrs.field(default="mastra/durable/", validator=_typed(str))
    topic_prefix: str = attrs.field(default="agent.", validator=_typed(str))
    logger: logging.Logger | logging.LoggerAdapter[Any] | None = attrs.field(default=None)
    queue_size: int = attrs.field(default=DEFAULT_QUEUE_SIZE, validator=_positive)
    queue_bytes: int = attrs.field(default=DEFAULT_QUEUE_BYTES, validator=_positive)
    run_config: s2_sdk.StreamConfig | None = attrs.field(
        default=None, validator=attrs.validators.optional(_typed(s2_sdk.StreamConfig))
    )
    encryption_key: bytes | str | None = attrs.field(
        default=None, validator=attrs.validators.optional(_typed(bytes, str)), repr=False
    )
    default: Callable[[Any], Any] | None = attrs.field(default=None, validator=_callable, repr=False)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], where: str = "settings") -> Self:
        """Settings from a configuration file's mapping. ValueError or TypeError names a key that does not fit."""
        return structure(cls, mapping, where)

    def completed(self) -> Settings:
        """These settings with what is missing taken from the environment.

        Raises:
            ValueError: something is still missing; the message names the argument and the variable.
        """
        basin = self.basin or os.environ.get("S2_BASIN")
        if not basin:
            raise ValueError("the basin is not set: pass basin= or set S2_BASIN")
        _check_basin("S2_BASIN", basin)  # a given one has been checked
        if self.client is not None:
            return attrs.evolve(self, basin=basin)
        token = self.access_token or os.environ.get("S2_ACCESS_TOKEN")
        if not token:
            raise ValueError("the access token is not set: pass access_token= or set S2_ACCESS_TOKEN")
        _check_token("S2_ACCESS_TOKEN", token)
        return attrs.evolve(self, basin=basin, access_token=token, endpoints=_endpoints(self.endpoints))

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in attrs.fields_dict(Settings)}
        return {**kept, "access_token": None, "encryption_key": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def make_client(self, retry: s2_sdk.Retry | None = None) -> s2_sdk.S2:
        """A client of the SDK for these completed settings."""
        client = self.client
        if client is None:
            assert self.access_token is not None
            assert not isinstance(self.endpoints, str)
            client = s2_sdk.S2(self.access_token, endpoints=self.endpoints, retry=retry)
        found = client() if callable(client) else client
        if not isinstance(found, s2_sdk.S2):
            raise TypeError(f"client= must make an s2_sdk.S2, not {type(found).__name__}")
        made: s2_sdk.S2 = found
        return made


def _endpoints(given: s2_sdk.Endpoints | str | None) -> s2_sdk.Endpoints:
    if isinstance(given, s2_sdk.Endpoints):
        return given
    if given:
        return make_endpoints(given, given, "endpoints", "endpoints")
    names = "S2_ACCOUNT_ENDPOINT", "S2_BASIN_ENDPOINT"
    account, basin = (os.environ.get(name) for name in names)
    if not account and not basin:
        return s2_sdk.Endpoints.default()
    if not account or not basin:
        lacking = names[0] if not account else names[1]
        raise ValueError(f"{lacking} is not set but the other endpoint is: set both, or pass endpoints=")
    return make_endpoints(account, basin, *names)


def make_endpoints(account: str, basin: str, account_name: str, basin_name: str) -> s2_sdk.Endpoints:
    """The SDK's endpoints of two base URLs. ValueError names the setting, the rule and what to write instead."""
    _check_url(account_name, account)
    _check_url(basin_name, basin.replace("{basin}", "basin"))
    try:
        return s2_sdk.Endpoints(account=account, basin=basin)
    except s2_sdk.S2ClientError as error:
        raise ValueError(f"{account_name}, {basin_name}: {error}") from error


def _check_url(setting: str, url: str) -> None:
    """Refuse now what the SDK would refuse, or misunderstand, at the first call."""
    plain = "://" not in url
    try:
        parts = urlsplit(f"https://{url}" if plain else url)
        host = parts.hostname or ""
        origin = parts.scheme in ("http", "https") and host and parts.port != 0
    except ValueError as error:
        raise ValueError(f"{setting}: {_without_user(url)!a} is no URL: {error}") from None
    # urlsplit drops line ends and tabs, the SDK does not.
    clean = url.isascii() and url.isprintable() and " " not in url
    if not (origin and clean) or parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(f"{setting}: {_without_user(url)!a} is not of the form http://host:port or https://host")
    if plain and not re.search(r"\.[a-z]", host):
        raise ValueError(
            f"{setting}: {url!a} does not say how to connect, and without a scheme it would mean https; "
            f"write http://{url} or https://{url}"
        )


def _without_user(url: str) -> str:
    """``url`` without the user and password that somebody may have put into it: errors go to logs."""
    before, at, behind = url.rpartition("@")
    return f"{before.partition('://')[0]}://...@{behind}" if at else url
