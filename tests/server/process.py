"""The embedded server as a process of its own, by the module's command."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.servers import ServerProcess

ROOT = Path(__file__).parent.parent.parent


class ServerCommand(ServerProcess):
    """``python -m s2pubsub.server`` with ``data`` and more arguments."""

    def __init__(self, *, data: Path | None = None, more: tuple[str, ...] = ()) -> None:
        super().__init__(env={"PYTHONPATH": str(ROOT)})
        self._arguments = (*(() if data is None else ("--data", str(data))), *more)

    def command(self) -> list[str]:
        """See `ServerProcess`."""
        return [sys.executable, "-m", "s2pubsub.server", "--port", str(self.port), *self._arguments]
