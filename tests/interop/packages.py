"""Node 22 and the TypeScript packages, installed by npm into a cache folder outside of the repository.

Each ``package.json`` here pins a set of them. The package ``@s2-dev/mastra-pubsub`` comes by its name where the
registry has it, else from the built folder that ``MASTRA_PUBSUB`` names; without both, our own ``peer.mjs`` takes its
place, as it does with ``INTEROP_PEER=own``. ``INTEROP_CORE`` is another version of ``@mastra/core``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
BROWSER = HERE / "browser"
PUBSUB = "@s2-dev/mastra-pubsub"
OWN_PEER = "peer.mjs"
_INSTALL_LIMIT = 240.0


class UnavailableError(Exception):
    """The packages cannot be had here; the text says why."""


def install(manifest_folder: Path = HERE) -> Path:
    """Install what ``package.json`` in a folder names, if it is not yet; return the folder of ``node_modules``.

    Raises ``UnavailableError``.
    """
    manifest = json.loads((manifest_folder / "package.json").read_text())
    optional = manifest.pop("optionalPackages", {})
    if (core := os.environ.get("INTEROP_CORE")) and "@mastra/core" in manifest["dependencies"]:
        manifest["dependencies"]["@mastra/core"] = core
    text = json.dumps(manifest, indent=2, sort_keys=True)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "s2pubsub-interop"
    folder = home / hashlib.sha256(text.encode()).hexdigest()[:16]
    if not folder.exists():
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home) as name:
            fresh = Path(name) / "fresh"
            fresh.mkdir()
            (fresh / "package.json").write_text(text)
            _npm(fresh, "install")
            for package, version in optional.items():  # not among the dependencies, of which none may be missing
                with contextlib.suppress(UnavailableError):
                    _npm(fresh, "install", "--no-save", f"{package}@{version}")
            with contextlib.suppress(OSError):  # another run was faster
                fresh.rename(folder)
    return folder


def program(folder: Path) -> str:
    """Node, of ``install``'s folder for ``HERE``."""
    return str(folder / "node_modules" / ".bin" / "node")


def transport(folder: Path) -> str:
    """Which PubSub of TypeScript the tests use: the package, or our own peer. Raises ``UnavailableError``."""
    if os.environ.get("INTEROP_PEER") == "own":
        return OWN_PEER
    built = os.environ.get("MASTRA_PUBSUB")
    if built:
        if not (Path(built) / "dist" / "index.js").is_file():
            raise UnavailableError(f"MASTRA_PUBSUB names {built!r}, which is no built package: it has no dist/index.js")
        return PUBSUB
    return PUBSUB if (folder / "node_modules" / PUBSUB).is_dir() else OWN_PEER


@contextlib.contextmanager
def scripts(folder: Path, sources: Path = HERE) -> Iterator[Path]:
    """A folder with copies of our scripts, from which Node finds the packages of ``install``'s folder."""
    with tempfile.TemporaryDirectory(prefix="run-", dir=folder) as name:
        run = Path(name)
        for script in (*sources.glob("*.mjs"), *sources.glob("*.jsx"), HERE / "commands.mjs"):
            shutil.copy(script, run)
        (run / "package.json").write_text('{"type": "module"}')
        built = os.environ.get("MASTRA_PUBSUB")
        if built and sources != BROWSER and transport(folder) == PUBSUB:
            # Without its own node_modules: both sides must see one copy of @mastra/core.
            shutil.copytree(built, run / "node_modules" / PUBSUB, ignore=shutil.ignore_patterns("node_modules"))
        yield run


def _npm(folder: Path, *arguments: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise UnavailableError("npm is missing; the TypeScript packages come with it")
    quiet = ["--no-audit", "--no-fund", "--no-package-lock", "--no-update-notifier"]
    patience = ["--fetch-retries=1", "--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=2000"]
    try:
        ran = subprocess.run(
            [npm, *arguments, *quiet, *patience],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_INSTALL_LIMIT,
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"npm did not install the TypeScript packages within {_INSTALL_LIMIT:.0f} s") from None
    if ran.returncode != 0:
        errors = [line for line in ran.stderr.splitlines() if line.startswith("npm error")]
        raise UnavailableError(f"npm cannot install the TypeScript packages: {' | '.join(errors[:3])}")
