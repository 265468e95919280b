"""The table of cases is complete and fresh."""

from __future__ import annotations

from tests import cases


def test_every_case_has_its_tests() -> None:
    """Each case is held by a test that names it and by at least two variants; no test names an unknown case."""
    found = cases.tests_of_cases()
    assert {number: len(tests) for number, tests in found.items() if len(tests) < cases.ENOUGH} == {}
    assert sorted(found) == sorted(cases.titles()) == [f"C{number:02}" for number in range(1, 73)]


def test_the_table_is_fresh() -> None:
    """``tests/CASES.md`` is what ``python -m tests.cases`` writes."""
    assert cases.TABLE.read_text() == cases.table(), "run python -m tests.cases"
