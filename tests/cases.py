"""Which tests hold which case: ``python -m tests.cases`` writes ``tests/CASES.md``.

A test names its cases at the beginning of its docstring, before the first colon: ``"C05, C06: the fact …"``. They are
read from the source, nothing is run. ``cases.txt`` has a title for each case. Not for: judging what a test proves.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs

HERE = Path(__file__).parent
TABLE = HERE / "CASES.md"
ENOUGH = 3
"""The case itself and two variants."""

_HEAD = """# Cases and their tests

Written by `python -m tests.cases` from the docstrings of the tests: each case, a behaviour that the library must show,
with the tests that hold it. A case has at least three: itself and two variants of it.
"""


@attrs.frozen
class Test:
    """A test function, the file it stands in, and the first line of its docstring."""

    path: str
    name: str
    fact: str


def titles() -> dict[str, str]:
    """The title of each case, by its number."""
    lines = (HERE / "cases.txt").read_text().splitlines()
    return {number: title for number, _, title in (line.partition(" ") for line in lines)}


def tests_of_cases() -> dict[str, list[Test]]:
    """The tests that name each case, in the order of their files."""
    found: dict[str, list[Test]] = {number: [] for number in titles()}
    for path in sorted(HERE.rglob("test_*.py")):
        for test in _tests_in(path):
            for number in named(test.fact):
                found.setdefault(number, []).append(test)
    return found


def named(docstring: str) -> list[str]:
    """The cases that a docstring names before its first colon."""
    head, colon, _ = docstring.partition(":")
    return re.findall(r"\bC\d\d\b", head) if colon else []


def _tests_in(path: Path) -> Iterator[Test]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            fact = (ast.get_docstring(node) or "").partition("\n\n")[0]
            yield Test(str(path.relative_to(HERE)), node.name, " ".join(fact.split()))


def table() -> str:
    """The content of ``CASES.md``."""
    lines = [_HEAD]
    names = titles()
    for number, tests in sorted(tests_of_cases().items()):
        lines.append(f"## {number}: {names[number]}\n")
        lines += [f"- `{test.path}::{test.name}`" for test in tests]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    TABLE.write_text(table())
    short = {number: len(tests) for number, tests in tests_of_cases().items() if len(tests) < ENOUGH}
    sys.exit(f"fewer than {ENOUGH} tests: {short}" if short else 0)
