"""The command ``s2pubsub``: publish, read and manage topics from a shell. See ``s2pubsub --help``.

Token, endpoints and basin come from the environment (``S2_ACCESS_TOKEN``, ``S2_ACCOUNT_ENDPOINT``,
``S2_BASIN_ENDPOINT``, ``S2_BASIN``). There is no option for the token: a command line can be read by other users.

Exit codes: 0 done, 1 the library's error (on stderr), 2 wrong usage, 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from s2pubsub.errors import S2PubSubError
from s2pubsub.event import Event
from s2pubsub.topic import is_durable

if TYPE_CHECKING:
    from s2pubsub.client import S2PubSub

_READ = 2**16
"""Bytes of standard input that are read, and published, at once."""

_IN_THE_SHELL = {
    "pass basin= or set S2_BASIN": "give --basin or set S2_BASIN",
    "correct basin= or S2_BASIN": "correct --basin or S2_BASIN",
    "pass access_token= or set": "set",
    "check access_token= or S2_ACCESS_TOKEN": "check S2_ACCESS_TOKEN",
    "set both, or pass endpoints=": "set both, or give --endpoint",
    "ensure_basin()": "`s2pubsub ensure-basin`",
    "basin: ": "--basin: ",
    "endpoints: ": "--endpoint: ",
    "retention must": "--retention must",
    "delete_on_empty must": "--delete-on-empty must",
    "timeout must": "--timeout must",
}
"""What the library's messages call by its name in Python, as it is called here."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; what is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (S2PubSubError, ValueError, OverflowError, OSError, ImportError) as error:
        print(f"s2pubsub: {_spoken(str(error))}", file=sys.stderr)
        return 1


def _spoken(message: str) -> str:
    for python, shell in _IN_THE_SHELL.items():
        if ":" not in python or message.startswith(python):  # a setting's name begins its message
            message = message.replace(python, shell, 1)
    return message


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


_at_least_one.__name__ = "whole number"  # argparse's word for what is none


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="s2pubsub",
        description="Durable publish/subscribe for agent streams on S2.",
        epilog="Environment: S2_ACCESS_TOKEN, S2_BASIN, S2_ACCOUNT_ENDPOINT, S2_BASIN_ENDPOINT.",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        sub.set_defaults(run=run)
        sub.add_argument("--basin", help="the S2 basin (default: S2_BASIN)")
        sub.add_argument("--endpoint", metavar="URL", help="base URL of the server (default: from the environment)")
        sub.add_argument("--timeout", type=float, default=30.0, metavar="S", help="seconds for a request (default: 30)")
        return sub

    sub = command("publish", _publish, "publish one event, or one for each line of JSON on standard input")
    sub.add_argument("topic")
    sub.add_argument("--type", default="message", help="type of the events (default: message)")
    sub.add_argument("--run-id", default="", help="run that the events belong to")
    sub.add_argument("--data", metavar="JSON", help="the event's data; without it, lines are read")
    sub.add_argument("--json", action="store_true", help="print the stored events as JSON lines")

    sub = command("tail", _tail, "print events as they are published, until Ctrl-C")
    sub.add_argument("topic")
    sub.add_argument("--offset", type=int, metavar="N", help="begin at this index (default: at the tail)")
    sub.add_argument("--count", type=_at_least_one, metavar="N", help="end after N events")
    sub.add_argument("--json", action="store_true", help="print events as JSON lines")

    sub = command("history", _history, "print stored events")
    sub.add_argument("topic")
    sub.add_argument("--offset", type=int, default=0, metavar="N", help="begin at this index (default: 0)")
    sub.add_argument("--json", action="store_true", help="print events as JSON lines")

    sub = command("clear", _clear, "delete a topic")
    sub.add_argument("topic")

    sub = command("topics", _topics, "list stored topics")
    sub.add_argument("prefix", nargs="?", default="")

    sub = command("ensure-basin", _ensure_basin, "create the basin, or turn on what publish/subscribe needs")
    sub.add_argument("--retention", type=int, metavar="S", help="keep the events of new topics for S seconds")
    sub.add_argument("--delete-on-empty", type=int, metavar="S", help="delete new topics that are empty for S seconds")

    command("check", _check, "verify server, token and basin")

    command("walkthrough", _walkthrough, "stream a text, cut the reader off three times, compare what it has read")

    sub = commands.add_parser("serve", help="run the embedded S2 server", description="Run the embedded S2 server.")
    sub.set_defaults(run=_serve)
    sub.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    sub.add_argument("--port", type=int, default=7410, help="port to listen on, 0 for any (default: 7410)")
    sub.add_argument("--data", metavar="DIR", help="keep the data in this folder (default: in memory)")
    sub.add_argument("--basin", metavar="NAME", help="create this basin")
    sub.add_argument("--token", metavar="TOKEN", help="require this access token (default: any is accepted)")

    sub = commands.add_parser(
        "demo",
        help="a chat in the browser whose answers survive reloads and restarts",
        description="A chat in the browser whose answers survive reloads and restarts. Answers come from documents; "
        "from a model where OPENAI_API_KEY (and OPENAI_BASE_URL, OPENAI_MODEL) is set.",
    )
    sub.set_defaults(run=_demo)
    sub.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    sub.add_argument("--port", type=int, default=8000, help="port to listen on, 0 for any (default: 8000)")
    sub.add_argument(
        "--folder", metavar="DIR", help="answer from the *.txt and *.md here (default: texts of the package)"
    )
    sub.add_argument(
        "--data", metavar="DIR", help="keep the embedded server's data in this folder (default: in memory)"
    )
    sub.add_argument("--keep", type=int, default=3600, metavar="S", help="keep answers for S seconds (default: 3600)")
    sub.add_argument("--open", action="store_true", help="open it in the browser")
    return parser


def _client(options: argparse.Namespace) -> S2PubSub:
    from s2pubsub.client import S2PubSub  # late, for commands that need none, such as serve

    return S2PubSub(basin=options.basin, endpoints=options.endpoint)


def _check_durable(topic: str) -> None:
    if not is_durable(topic, "agent."):
        raise ValueError(f"topic {topic!r} is local, which no other process can see: stored topics begin with 'agent.'")


def _publish(options: argparse.Namespace) -> int:
    _check_durable(options.topic)
    with _client(options) as pubsub:
        if options.data is not None:
            inputs = [_input(options, options.data, "--data")]
            _print_events(pubsub.publish_many(options.topic, inputs, timeout=options.timeout), options.json)
            return 0
        number = 0
        for lines in _lines_as_they_come():
            inputs = [_input(options, line, f"line {number + i}") for i, line in enumerate(lines, 1) if line.strip()]
            number += len(lines)
            _print_events(pubsub.publish_many(options.topic, inputs, timeout=options.timeout), options.json)
            sys.stdout.flush()
    return 0


def _input(options: argparse.Namespace, text: str | bytes, where: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
    return {"type": options.type, "data": data, "run_id": options.run_id}


def _lines_as_they_come() -> Iterator[list[bytes]]:
    """Standard input, all the lines at once that are there: those of a slow pipe do not wait for others."""
    rest = b""
    while piece := os.read(sys.stdin.fileno(), _READ):
        *lines, rest = (rest + piece).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


def _tail(options: argparse.Namespace) -> int:
    _check_durable(options.topic)
    start = "latest" if options.offset is None else options.offset
    with _client(options) as pubsub, pubsub.subscribe(options.topic, start=start, timeout=options.timeout) as events:
        for count, event in enumerate(events, 1):
            _print_events([event], options.json)
            sys.stdout.flush()
            if count == options.count:
                break
    return 0


def _history(options: argparse.Namespace) -> int:
    _check_durable(options.topic)
    with _client(options) as pubsub:
        _print_events(pubsub.iter_history(options.topic, options.offset, timeout=options.timeout), options.json)
    return 0


def _clear(options: argparse.Namespace) -> int:
    with _client(options) as pubsub:
        pubsub.clear_topic(options.topic, strict=True, timeout=options.timeout)
    return 0


def _topics(options: argparse.Namespace) -> int:
    with _client(options) as pubsub:
        for topic in pubsub.topics(options.prefix, timeout=options.timeout):
            print(topic)
    return 0


def _ensure_basin(options: argparse.Namespace) -> int:
    with _client(options) as pubsub:
        pubsub.ensure_basin(
            retention=options.retention, delete_on_empty=options.delete_on_empty, timeout=options.timeout
        )
        print(f"basin {pubsub.basin} is ready")
    return 0


def _check(options: argparse.Namespace) -> int:
    with _client(options) as pubsub:
        pubsub.check(timeout=options.timeout)
        print(f"basin {pubsub.basin} is ready")
    return 0


def _walkthrough(options: argparse.Namespace) -> int:
    from s2pubsub import walkthrough

    return walkthrough.run(basin=options.basin, endpoint=options.endpoint)


def _serve(options: argparse.Namespace) -> int:
    from s2pubsub.server import serve

    serve(host=options.host, port=options.port, data=options.data, basin=options.basin, token=options.token)
    return 0


def _demo(options: argparse.Namespace) -> int:
    try:
        from s2pubsub.demo import command
    except ImportError as error:
        raise ValueError(f"the demo needs the extra 'demo': pip install 's2pubsub[demo]' ({error})") from error

    return command.run(
        host=options.host,
        port=options.port,
        folder=options.folder,
        data=options.data,
        keep=options.keep,
        open_browser=options.open,
    )


def _print_events(events: Iterable[Event], as_json: bool) -> None:
    for event in events:
        if as_json:
            print(
                json.dumps(
                    {
                        "index": event.index,
                        "type": event.type,
                        "run_id": event.run_id,
                        "data": event.data,
                        "id": event.id,
                        "created_at": event.created_at.isoformat(),
                        **({"extra": dict(event.extra)} if event.extra else {}),
                    }
                )
            )
        else:
            print(f"{event.index}\t{event.created_at:%H:%M:%S}\t{event.type}\t{json.dumps(event.data)}")
