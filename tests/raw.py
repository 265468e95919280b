"""Streams by plain HTTP, past the library: records of any content, commands, and what the server lists."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any
from urllib.parse import quote

from tests.servers import Server

PREFIX = "mastra/durable/"


class Streams:
    """The streams of one basin; topics are named as the library names them by default."""

    def __init__(self, server: Server, basin: str) -> None:
        self._server = server
        self._headers = {"s2-basin": basin, "s2-format": "base64"}

    def append(self, topic: str, *bodies: bytes) -> int:
        """Append records; return the first one's index."""
        return self._append(topic, [{"body": _text(body)} for body in bodies])

    def fence(self, topic: str, token: str) -> int:
        """Append a fence command; return its index."""
        return self._append(topic, [{"headers": [["", _text(b"fence")]], "body": _text(token.encode())}])

    def trim(self, topic: str, before: int) -> int:
        """Append a trim command for what lies before index ``before``; return its index."""
        return self._append(topic, [{"headers": [["", _text(b"trim")]], "body": _text(before.to_bytes(8, "big"))}])

    def _append(self, topic: str, records: list[dict[str, Any]]) -> int:
        answer = self._server.request("POST", f"{self._path(topic)}/records", {"records": records}, self._headers)
        return int(answer["start"]["seq_num"])

    def first(self, topic: str) -> int | None:
        """Index of the first record that is retained; None if none is."""
        answer = self._server.request("GET", f"{self._path(topic)}/records?seq_num=0&count=1", headers=self._headers)
        return int(answer["records"][0]["seq_num"]) if answer["records"] else None

    def fences(self, topic: str, tail: int) -> list[str]:
        """The tokens of the fence commands before index ``tail``."""
        tokens: list[str] = []
        start = 0
        while start < tail:
            query = f"seq_num={start}&count={min(1000, tail - start)}"
            answer = self._server.request("GET", f"{self._path(topic)}/records?{query}", headers=self._headers)
            fences = (record for record in answer["records"] if record.get("headers") == [["", _text(b"fence")]])
            tokens += [b64decode(record["body"]).decode() for record in fences]
            start = int(answer["records"][-1]["seq_num"]) + 1
        return tokens

    def delete(self, topic: str) -> None:
        """Delete the topic's stream."""
        self._server.request("DELETE", self._path(topic), headers=self._headers)

    def config(self, topic: str) -> dict[str, Any]:
        """The stream's configuration."""
        answer: dict[str, Any] = self._server.request("GET", self._path(topic), headers=self._headers)
        return answer

    def names(self) -> list[str]:
        """Names of the streams that are listed and not being deleted."""
        listed = self._server.request("GET", "/v1/streams", headers=self._headers)["streams"]
        return [stream["name"] for stream in listed if stream["deleted_at"] is None]

    def _path(self, topic: str) -> str:
        return f"/v1/streams/{quote(PREFIX + topic, safe='')}"


def _text(content: bytes) -> str:
    return b64encode(content).decode()
