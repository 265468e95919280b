"""What a user can set for local topics, checked for what it is: rules for all of them, and batching. No threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import attrs

from s2pubsub.event import Event

Overflow = Literal["drop-oldest", "drop-newest", "coalesce-or-drop-oldest"]


def _count(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{attribute.name} must be an int, not {value!r}")
    if value < 1:
        raise ValueError(f"{attribute.name} must be at least 1, got {value}")


def _seconds(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{attribute.name} must be a number of seconds, not {value!r}")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{attribute.name} must be finite and not negative, got {value!r}")


def _limit(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    _seconds(instance, attribute, value)
    if value == 0:
        raise ValueError(f"{attribute.name} must be above 0 seconds; None means no limit")


def _function(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not callable(value):
        raise TypeError(f"{attribute.name} must be callable, not {value!r}")


def _overflow(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value not in get_args(Overflow):
        raise ValueError(f"{attribute.name} must be one of {', '.join(get_args(Overflow))}, got {value!r}")


_optional = attrs.validators.optional


@attrs.frozen
class Rules:
    """How the lines of a transport treat their events; see ``LocalPubSub``.

    Attributes:
        queue_size, queue_bytes: when so much waits or is in hand, publishers wait.
        max_attempts: deliveries of one event to a group; None for no cap.
        retry_pause: seconds between a refused delivery and the next one.
        handling_limit: seconds after which an event that a member still handles goes to the next free one.
    """

    queue_size: int = attrs.field(validator=_count)
    queue_bytes: int = attrs.field(validator=_count)
    max_attempts: int | None = attrs.field(validator=_optional(_count))
    retry_pause: float = attrs.field(validator=_seconds)
    handling_limit: float | None = attrs.field(validator=_optional(_limit))


@attrs.frozen(kw_only=True)
class BatchOptions:
    """How the events of a local subscription are gathered before its callback is called with each of them.

    Attributes:
        max_size: deliver when so many are gathered. Those that came while the callback ran are delivered together,
            so a batch may be larger.
        max_wait: deliver when the oldest has waited so long, in seconds.
        min_interval: seconds from the end of one batch to the next. Neither ``max_size``, ``max_wait`` nor
            ``is_immediate`` shorten it; a full buffer and ``flush()`` do.
        is_immediate: told an event; True delivers all that is gathered at once. Such events are never dropped.
        coalesce: given a batch's events; returns those to deliver, for example without those that later ones
            supersede. They must be the same objects in the same order: for anything else the whole batch is
            dropped, which is reported as an error. What it leaves out counts as handled.
        max_buffer_size: deliver when so many are gathered, whatever else is said here.
        overflow: what to do with more than that, which a slow callback may find gathered at its return: ``coalesce``
            comes first in any case, then the oldest or the newest are dropped, with a log line. Dropped events count
            as handled. In a group nothing is dropped: what does not fit stays with the group.
    """

    max_size: int | None = attrs.field(default=None, validator=_optional(_count))
    max_wait: float | None = attrs.field(default=None, validator=_optional(_seconds))
    min_interval: float = attrs.field(default=0.0, validator=_seconds)
    is_immediate: Callable[[Event], object] | None = attrs.field(default=None, validator=_optional(_function))
    coalesce: Callable[[list[Event]], Sequence[Event]] | None = attrs.field(
        default=None, validator=_optional(_function)
    )
    max_buffer_size: int = attrs.field(default=256, validator=_count)
    overflow: Overflow = attrs.field(default="coalesce-or-drop-oldest", validator=_overflow)

    def __attrs_post_init__(self) -> None:
        if self.max_size is None and self.max_wait is None and self.is_immediate is None:
            raise ValueError("give max_size, max_wait or is_immediate: nothing else says when a batch is due")


def check_start(start: object) -> None:
    """Raise unless ``start`` says where a subscription could begin."""
    if isinstance(start, bool) or not isinstance(start, (str, int)):
        raise TypeError(f"start must be 'latest', 'earliest' or an index, not {start!r}")
    if isinstance(start, str) and start not in ("latest", "earliest"):
        raise ValueError(f"start must be 'latest', 'earliest' or an index, not {start!r}")
