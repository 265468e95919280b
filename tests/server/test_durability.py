"""With a data directory the server forgets nothing that it has acknowledged, however it ends."""

from __future__ import annotations

import http.client
import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from s2pubsub.server import LocalServer
from tests.server.process import ServerCommand
from tests.server.raw import send
from tests.waiting import LONG, eventually

pytestmark = [pytest.mark.embedded]

HEADERS = {"s2-basin": "durability", "content-type": "application/json"}
WRITERS = 6
ROUNDS = 4
ACKS = 150


class Writer(threading.Thread):
    """Appends numbered batches to the shared stream and one of its own until the server is gone."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(name=f"test-{name}", daemon=True)
        self.port = port
        self.label = name
        self.acknowledged: dict[str, dict[int, str]] = {"shared": {}, name: {}}
        self.sent = 0

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            while True:
                for stream in self.acknowledged:
                    bodies = [f"{self.label}/{self.sent}/{part}" for part in range(1 + self.sent % 3)]
                    self.sent += 1
                    document = {"records": [{"body": body} for body in bodies]}
                    connection.request("POST", f"/v1/streams/{stream}/records", json.dumps(document), HEADERS)
                    answer = json.loads(connection.getresponse().read())
                    first = answer["start"]["seq_num"]
                    self.acknowledged[stream].update({first + offset: body for offset, body in enumerate(bodies)})
        except (OSError, http.client.HTTPException):
            pass  # killed, as it should be
        finally:
            connection.close()


def read_all(port: int, stream: str) -> dict[int, str]:
    """Every record of a stream, by sequence number."""
    tail = send(port, "GET", f"/v1/streams/{stream}/records/tail", HEADERS).document()["tail"]["seq_num"]
    found: dict[int, str] = {}
    position = 0
    while position < tail:
        answer = send(port, "GET", f"/v1/streams/{stream}/records?seq_num={position}", HEADERS).document()
        for record in answer["records"]:
            assert record["seq_num"] == position
            found[position] = record["body"]
            position += 1
    return found


@pytest.mark.slow
@pytest.mark.limit(90)
def test_a_killed_server_has_every_acknowledged_record(tmp_path: Path) -> None:
    """SIGKILL under load, again and again: what was acknowledged is there, in its place; nothing is there twice."""
    known: dict[str, dict[int, str]] = {"shared": {}}
    with ServerCommand(data=tmp_path) as server:
        config = {"create_stream_on_append": True, "create_stream_on_read": True}
        body = json.dumps({"basin": "durability", "config": config}).encode()
        assert send(server.port, "POST", "/v1/basins", HEADERS, body).status == 201
        for number in range(ROUNDS):
            writers = [Writer(server.port, f"w{number}-{index}") for index in range(WRITERS)]
            for writer in writers:
                writer.start()
            eventually(lambda: sum(len(w.acknowledged["shared"]) for w in writers) > ACKS, LONG)  # noqa: B023
            server.kill()
            for writer in writers:
                writer.join(LONG)
                for stream, records in writer.acknowledged.items():
                    known.setdefault(stream, {}).update(records)
            server.start()
            for stream, acknowledged in known.items():
                stored = read_all(server.port, stream)
                assert acknowledged.items() <= stored.items()
                assert len(set(stored.values())) == len(stored)
                assert in_order(stored)


def in_order(stored: dict[int, str]) -> bool:
    """Whether the records of each writer are in the order in which it sent them."""
    last: dict[str, tuple[int, int]] = {}
    for seq_num in sorted(stored):
        label, sent, part = stored[seq_num].split("/")
        place = (int(sent), int(part))
        if place <= last.get(label, (-1, -1)):
            return False
        last[label] = place
    return True


def request(port: int, method: str, target: str, document: Any = None) -> Any:
    answer = send(port, method, target, HEADERS, None if document is None else json.dumps(document).encode())
    assert answer.status < 400, answer.body
    return answer.document() if answer.body else None


def test_everything_about_a_stream_survives_a_restart(tmp_path: Path) -> None:
    """Configuration, tail, fence, trim, timestamps beyond 2^63 and create tokens are the same after a restart."""
    path = "/v1/streams/s"
    huge = 2**64 - 5
    records: list[dict[str, Any]] = [{"body": f"r{number}", "timestamp": number} for number in range(5)]
    records += [{"headers": [["", "fence"]], "body": "mine", "timestamp": 7}]
    records += [{"headers": [["", "trim"]], "body": "\0" * 7 + "\2", "timestamp": huge}]
    config = {"timestamping": {"uncapped": True}, "retention_policy": {"infinite": {}}, "storage_class": "standard"}
    with LocalServer(data=tmp_path) as server:
        request(server.port, "POST", "/v1/basins", {"basin": "durability", "config": {"create_stream_on_read": True}})
        request(server.port, "POST", "/v1/basins", {"basin": "durability-2"})
        request(server.port, "DELETE", "/v1/basins/durability-2")
        request(server.port, "POST", "/v1/streams", {"stream": "s", "config": config})
        request(server.port, "POST", "/v1/streams", {"stream": "gone"})
        request(server.port, "POST", path + "/records", {"records": records})
        request(server.port, "DELETE", "/v1/streams/gone")
        targets = ["/v1/basins", "/v1/basins/durability", "/v1/streams", path, path + "/records/tail"]
        targets += [path + "/records?seq_num=0", path + f"/records?timestamp={huge}"]
        before = [request(server.port, "GET", target) for target in targets]
    with LocalServer(data=tmp_path) as server:
        assert [request(server.port, "GET", target) for target in targets] == before
        assert [record["seq_num"] for record in before[5]["records"]] == [2, 3, 4, 5, 6]
        assert before[6]["records"][0]["timestamp"] == huge
        wrong = json.dumps({"records": [{"body": "x"}], "fencing_token": "other"}).encode()
        answer = send(server.port, "POST", path + "/records", HEADERS, wrong)
        assert (answer.status, answer.document()) == (412, {"fencing_token_mismatch": "mine"})
        ack = request(server.port, "POST", path + "/records", {"records": [{"body": "x"}], "match_seq_num": 7})
        assert ack["start"] == {"seq_num": 7, "timestamp": huge}


def test_a_new_stream_is_not_taken_for_a_deleted_one(tmp_path: Path) -> None:
    """What is left of a deleted stream is purged after a restart, and nothing of a stream made since then."""
    with LocalServer(data=tmp_path) as server:
        request(server.port, "POST", "/v1/basins", {"basin": "durability"})
        request(server.port, "POST", "/v1/streams", {"stream": "s"})
        request(server.port, "POST", "/v1/streams/s/records", {"records": [{"body": "old"}]})
        request(server.port, "DELETE", "/v1/streams/s")
    with LocalServer(data=tmp_path) as server:
        request(server.port, "POST", "/v1/streams", {"stream": "s"})
        request(server.port, "POST", "/v1/streams/s/records", {"records": [{"body": "new"}]})
        other = sqlite3.connect(tmp_path / "s2pubsub.db", isolation_level=None)
        try:
            eventually(lambda: other.execute("SELECT count(*) FROM dropped").fetchone() == (0,), LONG)
            assert other.execute("SELECT count(*) FROM batches").fetchone() == (1,)
        finally:
            other.close()
        found = request(server.port, "GET", "/v1/streams/s/records?seq_num=0")
        assert [record["body"] for record in found["records"]] == ["new"]


def test_one_directory_serves_one_server(tmp_path: Path) -> None:
    """A second server on the same data is refused, and has it when the first one has ended."""
    with LocalServer(data=tmp_path) as first:
        second = LocalServer(data=tmp_path)
        with pytest.raises(OSError, match="in use"):
            second.start()
        assert not first.closed
    with second:
        assert not second.closed


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """Foreign bytes in the place of the data are an OSError at the start, not a server that fails later."""
    (tmp_path / "s2pubsub.db").write_bytes(b"something else entirely" * 100)
    with pytest.raises(OSError, match="cannot be opened"):
        LocalServer(data=tmp_path).start()


def test_a_failing_store_fails_the_appends_and_recovers(tmp_path: Path) -> None:
    """When a commit fails, the waiting append gets 500 storage and the place that it had is given to the next one."""
    with LocalServer(data=tmp_path) as server:
        request(server.port, "POST", "/v1/basins", {"basin": "durability"})
        request(server.port, "POST", "/v1/streams", {"stream": "s"})
        request(server.port, "POST", "/v1/streams/s/records", {"records": [{"body": "first"}]})
        other = sqlite3.connect(tmp_path / "s2pubsub.db", isolation_level=None)
        try:
            # From outside, as a full disk would: every insertion of records fails.
            other.execute("CREATE TRIGGER refuse BEFORE INSERT ON batches BEGIN SELECT raise(ABORT, 'disk full'); END")
            body = json.dumps({"records": [{"body": "lost"}]}).encode()
            answer = send(server.port, "POST", "/v1/streams/s/records", HEADERS, body)
            assert (answer.status, answer.document()["code"]) == (500, "storage")
            assert send(server.port, "GET", "/health").status == 503
            other.execute("DROP TRIGGER refuse")
        finally:
            other.close()
        ack = request(server.port, "POST", "/v1/streams/s/records", {"records": [{"body": "kept"}], "match_seq_num": 1})
        assert ack["start"]["seq_num"] == 1
        assert send(server.port, "GET", "/health").status == 200
        found = request(server.port, "GET", "/v1/streams/s/records?seq_num=0")
        assert [record["body"] for record in found["records"]] == ["first", "kept"]
