"""``python -m s2pubsub``: the command line."""

from s2pubsub.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
