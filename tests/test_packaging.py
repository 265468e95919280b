"""The package as it is shipped: the wheel in empty environments, the direction of its imports, what it documents."""

from __future__ import annotations

import ast
import configparser
import inspect
import os
import re
import shutil
import subprocess
import sys
import textwrap
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

import s2pubsub
from tests.servers import ON_LITE, Server

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "s2pubsub"

# What may import what, from the bottom up. A module imports its own layer and those before it.
LAYERS: list[tuple[str, ...]] = [
    (
        "errors",
        "event",
        "codec",
        "topic",
        "fence",
        "retry",
        "stats",
        "transport",
        "lease_types",
        "lease_clock",
        "chunks",
        "secrecy",
        "tracing",
    ),
    ("runtime",),
    ("retry",),
    ("store",),
    ("batches", "settings", "incarnation", "following", "history", "subscription", "publisher", "registry", "local"),
    ("lease_register", "lease_holding", "held_lease", "leases", "fencing"),
    ("engine",),
    ("basins", "publishing", "stored", "subscribing"),
    ("client",),
]
CORE = [name for layer in LAYERS for name in layer]

# Where in the core a library may be imported. Everything else of the core is free of it.
HOMES = {
    "asyncio": {"runtime.event_loop", "runtime.loop", "runtime.turns", "store"},
    "s2_sdk": {
        "store",
        "settings",  # makes the clients, and names the SDK's types among the settings
        "client",  # names them in its signature
        "engine",  # tells a ready-made client from a callable, and how the readers' clients retry
    },
    "threading": {
        "runtime",
        "local",
        "held_lease",
        "lease_holding",
        "registry",  # a lock around what is open
        "engine",  # a lock around closing
        "store.commit",  # blocking publishes queue up outside of the loop
    },
    "json": {"codec", "chunks"},
    "cattrs": {"codec"},
    "tenacity": {"retry", "following", "history", "publisher", "lease_register", "store"},
}


def modules() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name below ``s2pubsub``."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        found[name.removesuffix("__init__")] = ast.parse(path.read_text(), str(path))
    return found


def imports(tree: ast.Module) -> Iterator[str]:
    """Dotted names that are imported at run time, at whatever depth of the module."""
    for node in _run_time_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def _run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from _run_time_nodes(node)


def within(module: str, places: set[str]) -> bool:
    return any(module == place or module.startswith(place + ".") for place in places)


MODULES = modules()


def test_imports_point_down() -> None:
    """A module of the core imports none of a layer above it, so that the pure ones at the bottom need no threads."""
    level = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    wrong = []
    for module, tree in MODULES.items():
        top = module.split(".")[0]
        if top not in level:
            continue
        for name in imports(tree):
            parts = name.split(".")
            if parts[0] == "s2pubsub" and len(parts) > 1 and level.get(parts[1], len(LAYERS)) > level[top]:
                wrong.append(f"{module} imports {name}")
    assert wrong == []


@pytest.mark.parametrize("library", HOMES)
def test_libraries_stay_at_home(library: str) -> None:
    """asyncio, the SDK, threads, JSON and tenacity are each used in the core's places for them only."""
    users = {
        module
        for module, tree in MODULES.items()
        if module.split(".")[0] in CORE and any(name.split(".")[0] == library for name in imports(tree))
    }
    assert {user for user in users if not within(user, HOMES[library])} == set()
    assert {home for home in HOMES[library] if not any(within(user, {home}) for user in users)} == set()


def test_every_core_module_is_named_here() -> None:
    """A new module beside the core's gets a layer, or is one of those on top of it."""
    on_top = {"", "__main__", "abort", "agent", "cli", "contrib", "demo", "examples", "observation", "run_writer"}
    on_top |= {"runs", "server", "sse", "testing", "texts", "walkthrough", "docs"}
    assert {module.split(".")[0] for module in MODULES} - set(CORE) - on_top == set()


def test_no_sleep_in_the_package() -> None:
    """No module sleeps: every wait ends on an event. Coroutines may, since they can be cancelled."""
    wrong = []
    for module, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == "sleep" and ast.unparse(node.value) == "time":
                wrong.append(f"{module}:{node.lineno}")
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                wrong += [f"{module}:{node.lineno}" for alias in node.names if alias.name == "sleep"]
    assert wrong == []


def test_modules_are_documented() -> None:
    """Each module says what it is for."""
    assert [module for module, tree in MODULES.items() if not ast.get_docstring(tree) and tree.body] == []


def test_public_names_are_documented() -> None:
    """Each name of the package, and each public method of its classes, has a docstring."""
    assert sorted(s2pubsub.__all__) == list(s2pubsub.__all__)
    missing = []
    for name in s2pubsub.__all__:
        value = getattr(s2pubsub, name)
        if not inspect.getdoc(value):
            missing.append(name)
        if inspect.isclass(value):
            missing += [
                f"{name}.{member}"
                for member, method in inspect.getmembers(value)
                if not member.startswith("_")
                and (inspect.isfunction(method) or isinstance(method, property))
                and not inspect.getdoc(method)
            ]
    assert missing == []
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        s2pubsub.nothing_of_this_name  # noqa: B018


def test_files_are_of_a_readable_size() -> None:
    """No module of the package is longer than 400 lines."""
    assert [path.name for path in PACKAGE.rglob("*.py") if len(path.read_text().splitlines()) > 400] == []


def test_importing_does_nothing() -> None:
    """Importing the core, module by module, starts no thread or process, opens no socket and writes no file."""
    names = [f"s2pubsub.{module}" for module in MODULES if module and module.split(".")[0] in CORE]
    script = f"""
        import sys, threading
        seen = []

        def hook(event, args):
            if event.startswith(("socket.", "subprocess.", "os.fork", "os.posix_spawn", "_thread.start")):
                seen.append((event, args))
            elif event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
                seen.append((event, args))

        sys.dont_write_bytecode = True
        sys.addaudithook(hook)
        import importlib
        import s2pubsub
        for name in {names!r}:
            importlib.import_module(name)
        assert threading.active_count() == 1
        seen = [entry for entry in seen if entry[0] != "socket.__new__" or "AF_INET" in repr(entry)]
        assert seen == [], seen
        assert "django" not in sys.modules and "flask" not in sys.modules
    """
    run(sys.executable, "-c", textwrap.dedent(script), env={"PYTHONPATH": str(ROOT)})


@pytest.mark.slow
@pytest.mark.limit(90)  # each takes a process, and the machine may be busy
def test_every_module_imports_by_itself() -> None:
    """Each module of the core can be the first one to be imported: there is no hidden order."""
    firsts = " ".join(f"s2pubsub.{name}" for name in CORE)
    script = f'for m in {firsts}; do {sys.executable} -c "import $m" || exit 1; done'
    run("sh", "-c", script, env={"PYTHONPATH": str(ROOT)})


def test_dependencies_are_four() -> None:
    """The runtime needs the SDK, attrs, cattrs and tenacity; everything else is an extra."""
    assert sorted(bounds()) == ["attrs", "cattrs", "s2-sdk", "tenacity"]


def bounds(extra: str | None = None) -> dict[str, str]:
    """The lowest version of each runtime dependency, or of those of an extra, that setup.cfg promises."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    wanted = config["options"]["install_requires"] if extra is None else config["options.extras_require"][extra]
    lines = wanted.split("\n")
    found = [re.match(r"([\w-]+) *>=([\d.]+)", line) for line in lines if line]
    return {match[1]: match[2] for match in found if match is not None}


# The wheel.


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a command; its output. AssertionError with everything it printed when it fails."""
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ended = subprocess.run(command, env={**clean, **(env or {})}, cwd=cwd, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(PACKAGE, source / "s2pubsub", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source)
    (built,) = folder.glob("*.whl")
    return built


ROUND_TRIP = """
import s2pubsub, sys
from s2pubsub import S2PubSub
assert "site-packages" in s2pubsub.__file__, s2pubsub.__file__
assert s2pubsub.__version__
with S2PubSub() as pubsub:
    with pubsub.subscribe("agent.stream.run-7") as events:
        sent = pubsub.publish("agent.stream.run-7", type="chunk", data={"n": [1, None, "é"]}, timeout=10)
        got = events.get(timeout=10)
    assert got == sent, (got, sent)
    assert pubsub.get_history("agent.stream.run-7") == [sent]
    with pubsub.publisher("agent.stream.run-7") as publisher:
        assert publisher.publish(type="chunk", data=2).result(10).index == 1
    local = pubsub.subscribe("other")
    pubsub.publish("other", type="chunk", data=3)
    assert local.get(timeout=10).data == 3
print("passed")
"""

BOTH_WAYS = r"""
from s2pubsub import DecodeError
from s2pubsub.codec import decode, fast

def read(body):
    try:
        return repr(decode("t", 0, body))
    except DecodeError as error:
        return str(error)

envelope = b'{"type":"c","runId":"","id":"i","createdAt":0,"data":%s}'
values = [b'1', b'-19945388759132447409', b'1e5', b'1e999', b'1' + b'0' * 400, b'[1,', b'NaN']
values += [b'"\\ud800"', b'"\xff"', b'"\xc3\xa9"']
bodies = [envelope % value for value in values]
bodies += [b'', b'[]', envelope % b'0,"traceparent":"00"', envelope % (b'[' * 200 + b']' * 200), b'{"type":"c"}']
way = fast.read_envelope
assert way(bodies[0]).data == 1
found = [read(body) for body in bodies]
fast.read_envelope = None
assert found == [read(body) for body in bodies], found
print("passed")
"""


@pytest.mark.slow
@pytest.mark.limit(280)
@ON_LITE
@pytest.mark.parametrize("versions", ["newest", "lowest"])
def test_the_wheel_in_an_empty_environment(
    wheel: Path, tmp_path: Path, server: Server, basin: str, versions: str
) -> None:
    """The wheel installs with its four dependencies alone, at their newest and at the lowest promised versions, and
    its core works there; the command runs.
    """
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    pins = [f"{name}=={version}" for name, version in bounds().items()] if versions == "lowest" else []
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, *pins)
    env = {**server.endpoints_env(), "S2_BASIN": basin}
    assert run(python, "-W", "error", "-c", ROUND_TRIP, env=env, cwd=tmp_path) == "passed\n"
    for command in ([python, "-m", "s2pubsub"], [python.parent / "s2pubsub"]):
        assert "publish" in run(*command, "--help", cwd=tmp_path)
    installed = run(python, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check")
    assert not re.search("flask|django|h11|gunicorn|hypothesis|pytest", installed, re.IGNORECASE), installed
    fast = [f"{name}=={version}" if versions == "lowest" else name for name, version in bounds("fast").items()]
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *fast)
    assert run(python, "-W", "error", "-c", BOTH_WAYS, cwd=tmp_path) == "passed\n"
    shipped = run(python, "-m", "pip", "show", "-f", "s2pubsub", "--disable-pip-version-check")
    assert "s2pubsub/py.typed" in shipped
    assert "tests/" not in shipped
