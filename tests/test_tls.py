"""TLS: verified by default, against the real server with a certificate that it has signed itself."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from s2pubsub import S2PubSub, StoreError
from tests.servers import LiteServer

pytestmark = [pytest.mark.lite, pytest.mark.limit(60)]

TOPIC = "agent.stream.tls"


class TlsServer(LiteServer):
    """`s2 lite` with a self-signed certificate for localhost and 127.0.0.1."""

    def __init__(self) -> None:
        super().__init__()
        self.url = self.basin_url = self.url.replace("http://", "https://")

    def command(self) -> list[str]:
        """See `ServerProcess`."""
        return [*super().command(), "--tls-self"]

    def _answers(self) -> bool:
        trusting = ssl._create_unverified_context()
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2, context=trusting) as response:
                return bool(response.status == 200)
        except OSError:
            return False


@pytest.fixture(scope="module")
def server() -> Iterator[TlsServer]:
    """One for all tests here."""
    with TlsServer() as server:
        yield server


@pytest.fixture
def certificate(server: TlsServer, tmp_path: Path) -> Path:
    """The server's certificate as a file."""
    path = tmp_path / "server.pem"
    path.write_text(ssl.get_server_certificate(("127.0.0.1", server.port)))
    return path


USE = """
import sys
from s2pubsub import S2PubSub
from s2pubsub.runs import Runs
with S2PubSub(basin="tls-basin") as pubsub:
    pubsub.ensure_basin()
    with pubsub.subscribe_with_replay(sys.argv[1]) as events, pubsub.publisher(sys.argv[1]) as publisher:
        pubsub.publish(sys.argv[1], type="t", data=1)
        publisher.publish(type="t", data=2)
        print(events.get(10).data, events.get(10).data)
    with pubsub.leases.hold("tls", "owner", 30):
        print(Runs(pubsub, 0).run(["a"]).ended)
"""


def run(url: str, *, trust: Path | None) -> subprocess.CompletedProcess[str]:
    """The script above as a process of its own: what it trusts is read from the environment when it begins."""
    environment = {name: value for name, value in os.environ.items() if name not in ("SSL_CERT_FILE", "SSL_CERT_DIR")}
    environment |= {"S2_ACCESS_TOKEN": "secret-token", "S2_ACCOUNT_ENDPOINT": url, "S2_BASIN_ENDPOINT": url}
    environment |= {"SSL_CERT_FILE": str(trust)} if trust is not None else {}
    script = [sys.executable, "-c", USE, TOPIC]
    return subprocess.run(script, env=environment, capture_output=True, text=True, timeout=40)


def test_a_certificate_of_its_own_is_not_trusted(server: TlsServer) -> None:
    """Every call is refused at once, with the reason and what to do; nothing is tried again and again."""
    with S2PubSub(basin="tls-basin", access_token="secret-token", endpoints=server.url) as pubsub:
        for call in (
            lambda: pubsub.publish(TOPIC, type="t", data=1),
            lambda: pubsub.get_history(TOPIC),
            lambda: pubsub.subscribe(TOPIC),
            lambda: pubsub.leases.acquire_lease("tls", "owner", 5),
            pubsub.ensure_basin,
        ):
            with pytest.raises(StoreError, match="certificate") as caught:
                call()
            assert caught.value.status is None
            assert caught.value.outcome in (None, "not_stored")
            assert "SSL_CERT_FILE" in str(caught.value)


def test_ssl_cert_file_makes_it_trusted(server: TlsServer, certificate: Path) -> None:
    """With the certificate in SSL_CERT_FILE everything works, by both names that it is for."""
    for host in ("localhost", "127.0.0.1"):
        done = run(f"https://{host}:{server.port}", trust=certificate)
        assert (done.stdout, done.stderr) == ("1 2\nTrue\n", "")


def test_a_trusted_certificate_counts_for_its_names_only(server: TlsServer, certificate: Path) -> None:
    """The server under an address that its certificate does not name is refused, trusted or not."""
    done = run(f"https://127.0.0.2:{server.port}", trust=certificate)
    assert done.returncode == 1
    assert "certificate verify failed" in done.stderr
    assert "secret-token" not in done.stderr


def test_http_to_a_tls_port_is_no_success(server: TlsServer) -> None:
    """Without TLS the TLS server is not understood: an error in time, not silence."""
    plain = server.url.replace("https", "http")
    with (
        S2PubSub(basin="tls-basin", access_token="secret-token", endpoints=plain) as pubsub,
        pytest.raises((StoreError, TimeoutError)),
    ):
        pubsub.publish(TOPIC, type="t", data=1, timeout=3)
