"""The stored log, read past the library by plain HTTP: what the checker compares everything with."""

from __future__ import annotations

import json
from base64 import b64decode, urlsafe_b64decode
from typing import Any
from urllib.parse import quote

import attrs

from tests.raw import PREFIX
from tests.servers import Server

_ENDS = frozenset({"finish", "error", "abort"})


@attrs.frozen(kw_only=True)
class Entry:
    """One stored record.

    Attributes:
        index: its sequence number. id: the event's; None for a command.
        by, n: who wrote it and which of his it is, where it says so.
        owner: of an event written under a lease, its writer's; of a fence, its token's, ``""`` if it frees the lease.
        fence: whether it is a fence. ends: whether it ends a run.
    """

    index: int
    id: str | None = None
    by: str | None = None
    n: int | None = None
    owner: str | None = None
    fence: bool = False
    ends: bool = False


Log = dict[str, list[Entry]]


def read_log(server: Server, basin: str) -> Log:
    """All topics of a basin."""
    headers = {"s2-basin": basin, "s2-format": "base64"}
    log: Log = {}
    after = ""
    while True:
        page = server.request("GET", f"/v1/streams?start_after={quote(after, safe='')}", headers=headers)
        for stream in page["streams"]:
            after = stream["name"]
            if stream["deleted_at"] is None:
                log[after.removeprefix(PREFIX)] = _read_stream(server, headers, after)
        if not page["has_more"]:
            return log


def _read_stream(server: Server, headers: dict[str, str], name: str) -> list[Entry]:
    path = f"/v1/streams/{quote(name, safe='')}/records"
    tail = server.request("GET", f"{path}/tail", headers=headers)["tail"]["seq_num"]
    entries: list[Entry] = []
    while (at := entries[-1].index + 1 if entries else 0) < tail:
        got = server.request("GET", f"{path}?seq_num={at}&count=1000", headers=headers)
        entries += [_entry(record) for record in got["records"]]
    return entries


def _entry(record: dict[str, Any]) -> Entry:
    index = int(record["seq_num"])
    body = b64decode(record.get("body") or "")
    command = next((b64decode(value) for name, value in record.get("headers") or [] if not name), None)
    if command is not None:
        return Entry(index=index, fence=command == b"fence", owner=_owner_of(body))
    event = json.loads(body)
    data = event["data"] if isinstance(event["data"], dict) else {}
    by, n = data.get("by"), data.get("n")
    if data.get("type") == "text-delta":
        by, _, number = data["payload"]["text"].strip().partition(" ")
        n = int(number)
    return Entry(index=index, id=event["id"], by=by, n=n, owner=data.get("owner"), ends=event["type"] in _ENDS)


def _owner_of(token: bytes) -> str:
    """The owner of a lease's token, whose owners here are short texts: behind eleven bytes of head."""
    raw = urlsafe_b64decode(token + b"=" * (-len(token) % 4))
    return raw[11:].decode()
