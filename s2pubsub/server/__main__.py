"""``python -m s2pubsub.server``: the embedded server as a process."""

from __future__ import annotations

import argparse

from s2pubsub.server.command import DEFAULT_PORT, serve


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser("python -m s2pubsub.server", description="Run a small S2-compatible server.")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; beyond the loopback --token is needed"
    )
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="port to listen on; 0 takes a free one")
    parser.add_argument("--data", metavar="DIR", help="directory to keep the data in; in memory without it")
    parser.add_argument("--basin", help="basin to create where it is missing")
    parser.add_argument("--token", help="access token that clients must send; any is accepted without it")
    arguments = parser.parse_args()
    try:
        serve(**vars(arguments))
    except (OSError, ValueError) as error:
        parser.exit(1, f"s2pubsub: {error}\n")


if __name__ == "__main__":
    main()
