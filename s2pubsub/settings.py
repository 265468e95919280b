"""The settings of a client, checked for what they are and completed from the environment. No I/O.

``S2PubSub(**settings)`` and configuration files (``Settings.from_mapping``) go through the same checks: nothing is
coerced, and every error names the setting and the environment variable.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import urlsplit

import attrs
import s2_sdk

from s2pubsub.codec import structure
from s2pubsub.transport import Transport

DEFAULT_QUEUE_SIZE = 1024
DEFAULT_QUEUE_BYTES = 4 * 2**20


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


_OPTIONAL_TEXT = attrs.validators.optional(_typed(str))


@attrs.frozen(kw_only=True)
class Settings:
    """What ``S2PubSub`` is made of; its arguments, with their types and defaults.

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

    basin: str | None = attrs.field(default=None, validator=_OPTIONAL_TEXT)
    access_token: str | None = attrs.field(default=None, validator=_OPTIONAL_TEXT, repr=False)
    endpoints: s2_sdk.Endpoints | str | None = attrs.field(
        default=None, validator=attrs.validators.optional(_typed(str, s2_sdk.Endpoints))
    )
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
        if self.client is not None:
            return attrs.evolve(self, basin=basin)
        token = self.access_token or os.environ.get("S2_ACCESS_TOKEN")
        if not token:
            raise ValueError("the access token is not set: pass access_token= or set S2_ACCESS_TOKEN")
        return attrs.evolve(self, basin=basin, access_token=token, endpoints=_endpoints(self.endpoints))

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
    account = given or os.environ.get("S2_ACCOUNT_ENDPOINT")
    basin = given or os.environ.get("S2_BASIN_ENDPOINT")
    if not account and not basin:
        return s2_sdk.Endpoints.default()
    if not account or not basin:
        lacking = "S2_ACCOUNT_ENDPOINT" if not account else "S2_BASIN_ENDPOINT"
        raise ValueError(f"{lacking} is not set but the other endpoint is: set both, or pass endpoints=")
    _check_url("S2_ACCOUNT_ENDPOINT" if given is None else "endpoints", account)
    _check_url("S2_BASIN_ENDPOINT" if given is None else "endpoints", basin.replace("{basin}", "basin"))
    try:
        return s2_sdk.Endpoints(account=account, basin=basin)
    except s2_sdk.S2ClientError as error:
        raise ValueError(f"endpoints: {error}") from error


def _check_url(setting: str, url: str) -> None:
    """Refuse now what the SDK would refuse at the first call."""
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        origin = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as error:
        raise ValueError(f"{setting}: {url!r} is no URL: {error}") from None
    if not origin or parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f"{setting}: {url!r} is not of the form http://host:port or https://host")
