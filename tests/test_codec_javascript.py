"""JavaScript reads what is written, and writes what is read."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from s2pubsub.codec import MAX_DEPTH, MAX_INTEGER, decode
from tests.events import TOPIC, body_of, nested, values


def canonical(value: Any) -> str:
    """The form that codec_check.mjs makes, written again from its description."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return struct.pack(">d", value).hex()
    if isinstance(value, str):
        return f'"{value.encode("utf-16-be").hex()}"'
    if isinstance(value, list):
        return f"[{','.join(map(canonical, value))}]"
    return (
        "{"
        + ",".join(sorted(f"{key.encode('utf-16-be').hex()}:{canonical(item)}" for key, item in value.items()))
        + "}"
    )


def without_negative_zero(value: Any) -> Any:
    """JavaScript writes -0 as 0."""
    if isinstance(value, dict):
        return {key: without_negative_zero(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_negative_zero(item) for item in value]
    return 0.0 if type(value) is float and value == 0 else value


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_javascript_reads_the_same() -> None:
    """Every record that is written is read by JavaScript as the same value; what it writes again, Python reads so."""
    samples: list[Any] = [
        nested(MAX_DEPTH),
        nested(MAX_DEPTH, dict),
        [MAX_INTEGER, -MAX_INTEGER, -0.0, 5e-324, 1e16, 1.7976931348623157e308, 1e-7],
        ["\u2028\u2029\x7f\ufeff", '\x00\x1f\\"/', "😀"],
        {"__proto__": 1, "constructor": 2, "10": 3, "9": 4, "": 5},
    ]

    @settings(max_examples=300, deadline=None, database=None)
    @given(values)
    def collect(value: Any) -> None:
        samples.append(value)

    collect()
    bodies = [body_of(value) for value in samples]
    script = Path(__file__).with_name("codec_check.mjs")
    ran = subprocess.run(["node", str(script)], input=b"\n".join(bodies), capture_output=True, timeout=20, check=True)
    lines = ran.stdout.decode().removesuffix("\n").split("\n")
    assert len(lines) == len(samples)
    for value, body, line in zip(samples, bodies, lines, strict=True):
        form, rewritten = line.split("\t", 1)
        assert form == canonical(json.loads(body))
        assert canonical(value) in form
        assert canonical(decode(TOPIC, 0, rewritten.encode()).data) == canonical(without_negative_zero(value))
