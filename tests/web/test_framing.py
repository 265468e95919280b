"""Blocks of an event stream, and the positions that browsers send back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s2pubsub.sse import format_event, parse_last_event_id, read_offset
from s2pubsub.sse.framing import clean_name, json_text
from tests.web.event_source import Parser, parse

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def test_a_block_holds_what_it_was_made_of():
    """All fields stand in one block, and a parser reads them back."""
    parser = Parser()
    block = format_event("hello", event="greeting", id=7, retry=1500, comment="note")
    assert [(m.type, m.data, m.last_event_id) for m in parser.feed(block)] == [("greeting", "hello", "7")]
    assert parser.retry == 1500
    assert parser.comments == 1
    assert block.endswith(b"\n\n")


@given(TEXT, TEXT)
def test_no_text_adds_a_line_field_or_block(data: str, comment: str):
    """C53: whatever the data and a comment hold, there is one message with the data (line ends become LF)."""
    block = format_event(data, comment=comment)
    expected = data.replace("\r\n", "\n").replace("\r", "\n")
    assert [(m.type, m.data) for m in parse(block)] == [("message", expected)]


@given(TEXT)
def test_a_cleaned_name_is_one_field(name: str):
    """C53: a cleaned name can be written, whatever it was."""
    cleaned = clean_name(name)
    assert [m.type for m in parse(format_event("1", event=cleaned))] == [cleaned or "message"]


@pytest.mark.parametrize("bad", ["x\ndata: forged\n\n", "x\revent: y", "x\0", "\n"])
def test_a_name_or_id_with_a_line_end_is_refused(bad: str):
    """C53: the framing itself refuses what would add a line."""
    with pytest.raises(ValueError, match="CR, LF or NUL"):
        format_event("1", event=bad)
    with pytest.raises(ValueError, match="CR, LF or NUL"):
        format_event("1", id=bad)


@pytest.mark.parametrize("bad", ["x\ndata: forged\n\n", "x\revent: y", "x\0", "\ud83d"])
def test_cleaning_replaces_what_cannot_stand_in_a_name(bad: str):
    """C53: each forbidden character becomes U+FFFD."""
    assert "\ufffd" in clean_name(bad)
    assert len(parse(format_event("1", event=clean_name(bad)))) == 1


def test_halves_of_characters_arrive_as_their_escapes():
    """A lone surrogate in JSON or in plain text is written as its escape, not refused and not lost."""
    assert b'"\\ud83d"' in format_event(json_text("\ud83d"))
    assert json.loads(parse(format_event(json_text({"t": "\ud83d"})))[0].data) == {"t": "\ud83d"}
    assert b"\\ud83d" in format_event("\ud83d")


def test_json_is_ascii_and_finite():
    """Separators that some readers take for line ends are escaped, and infinities become null."""
    text = json_text({"a": "\u2028\x85é", "b": [float("inf"), {"c": float("-inf")}], "d": 1.5})
    assert text.isascii()
    assert json.loads(text) == {"a": "\u2028\x85é", "b": [None, {"c": None}], "d": 1.5}


@pytest.mark.parametrize(
    ("value", "offset"),
    [(None, None), ("", None), ("-1", 0), ("0", 1), ("4", 5), ("007", 8), (str(2**53 - 2), 2**53 - 1)],
)
def test_the_position_after_an_event(value: str | None, offset: int | None):
    """C54: the index to go on from is one more than the id; no id means no position, -1 means nothing seen."""
    assert parse_last_event_id(value) == offset


@pytest.mark.parametrize(
    "value",
    ["abc", "-2", "5.0", "99999999999999999999", str(2**53), "5\n", " 5", "+5", "1e3", "٣", "run2:5", "../run2", "0x1"],
)
def test_a_malformed_position_is_an_error(value: str):
    """C54, C57: what is not the id of an event is refused, never guessed."""
    with pytest.raises(ValueError, match="not a position"):
        parse_last_event_id(value)
    with pytest.raises(ValueError, match="not a position"):
        read_offset(None, {"offset": value})


def test_the_header_goes_before_the_query():
    """A browser repeats its address, so the query is older than the header; lastEventId goes before offset."""
    query = {"lastEventId": "3", "offset": "1"}
    assert read_offset("8", query) == 9
    assert read_offset("", query) == 4
    assert read_offset(None, {"offset": "1"}) == 1
    assert read_offset(None, {"offset": ""}) is None
    assert read_offset(None) is None
