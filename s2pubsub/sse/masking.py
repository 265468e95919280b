"""Leaving error texts out of events that go to browsers: they name files, hosts, queries, sometimes keys.

Not for redacting anything else: that is the ``transform`` hook's.
"""

from __future__ import annotations

from typing import Any

import attrs

from s2pubsub.event import Event

MASKED = "Something went wrong."
"""What stands in place of an error's text."""

_MASKED_ERROR = {"name": "Error", "message": MASKED}


def mask_errors(event: Event) -> Event:
    """``event`` with the texts of errors replaced; the same object where there are none."""
    data = _masked(event.type, event.data)
    return event if data is event.data else attrs.evolve(event, data=data)


def _masked(type: str, data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    if type == "chunk":
        return _masked_chunk(data)
    if type in ("error", "run-failed"):
        return _masked_error(data)
    if type == "iteration-complete":
        return _masked_results(data)
    if type == "stream-part":
        return _replace(data, "part", _masked_chunk)
    if type in ("finish", "abort"):
        return _replace(_masked_error(_masked_steps(data)), "output", _masked_output)
    return data


def _masked_chunk(data: Any) -> Any:
    type = data.get("type") if isinstance(data, dict) else None
    if type in ("error", "tool-error"):
        return _replace(data, "payload", _masked_error)
    if type in ("tool-output", "step-finish", "finish"):
        return _replace(data, "payload", lambda payload: _replace(_masked_error(payload), "output", _masked_output))
    return data


def _masked_output(output: Any) -> Any:
    if isinstance(output, dict) and isinstance(output.get("payload"), dict):
        return _masked_chunk(output)  # the chunk of an agent that a tool runs
    return _masked_steps(_masked_error(output))


def _masked_steps(data: Any) -> Any:
    return _replace(data, "steps", lambda steps: [_masked_results(step) for step in _listed(steps)])


def _masked_results(data: Any) -> Any:
    return _replace(data, "toolResults", lambda results: [_masked_error(result) for result in _listed(results)])


def _masked_error(data: Any) -> Any:
    return _replace(data, "error", lambda error: dict(_MASKED_ERROR) if isinstance(error, dict) else MASKED)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _replace(data: Any, key: str, change: Any) -> Any:
    """``data`` with ``change`` made to what stands at ``key``; the same object if that is nothing or stays the same."""
    if not isinstance(data, dict) or data.get(key) is None:
        return data
    old = data[key]
    new = change(old)
    return data if new is old or new == old else {**data, key: new}
