"""Many streams at once under an ASGI server flow piece by piece."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.servers import ON_EMBEDDED
from tests.waiting import eventually
from tests.web.processes import DJANGO_ASGI

pytestmark = [ON_EMBEDDED, pytest.mark.slow, pytest.mark.limit(90)]


@pytest.mark.parametrize("kind", ["uvicorn", "hypercorn"])
def test_many_streams_flow_beside_each_other(serve: Any, connect: Any, make_run: Any, kind: str):
    """C55, C56: twenty-five viewers of one run, more than a pool of threads has, five of which read nothing: the others
    get each event within a second while the run goes on, pages are answered meanwhile, and nothing stays of them.
    """
    run = make_run()
    run.chunk()
    web = serve(kind, DJANGO_ASGI, heartbeat=1.0)
    viewers = [connect(web.port, "/runs/run-7/events") for _ in range(25)]
    readers = [viewer.messages() for viewer in viewers[5:]]
    for reader in readers:
        assert next(reader).last_event_id == "0"
    for index in range(1, 5):
        run.chunk()
        stored = time.monotonic()
        for reader in readers:
            assert next(reader).last_event_id == str(index)
        assert time.monotonic() - stored < 1.0
        assert web.get("/plain")[0] == 200
    for viewer in viewers:
        viewer.reset()
    eventually(lambda: web.state()["subscriptions"] == 0, 10)
