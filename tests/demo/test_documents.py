"""Finding and summing up documents. No network."""

from __future__ import annotations

from pathlib import Path

import pytest

from s2pubsub.demo.documents import (
    MAX_DOCUMENTS,
    Library,
    parse,
    read_folder,
    shipped_documents,
    split_sentences,
    terms,
)


def test_search_finds_the_passage_that_answers() -> None:
    """Questions about the shipped texts find the paragraph in which the answer stands, in any inflection."""
    library = Library(shipped_documents())
    for question, answer in [
        ("What must a keeper do when the clockwork fails?", "turn the lens by hand"),
        ("oil that burned", "It burned whale oil for its first forty years"),
        ("How long is the dark between two flashes?", "a dark of fourteen and a half seconds"),
        ("Wer war TOBIAS wren", "old Tobias Wren"),
    ]:
        best = library.search(terms(question))[0]
        assert answer in best.text, (question, best)


def test_search_without_a_hit() -> None:
    """Words that stand nowhere, common words alone, and no words find nothing."""
    library = Library(shipped_documents())
    for question in ("quantum chromodynamics", "what is it", "", "?!", "\0"):
        assert library.search(terms(question)) == []
    assert Library([]).search(["lamp"]) == []


def test_summary_quotes() -> None:
    """A summary consists of sentences of the text, in their order, none of those that were said already."""
    library = Library(shipped_documents())
    document = library.find(terms("Summarise the part about the weather"))
    assert document is not None
    assert "Weather" in document.title
    places = [(document, number) for number in range(len(document.paragraphs))]
    first = library.summarise(places, (), 5)
    assert len(first) == 5
    assert [(one.paragraph, one.number) for one in first] == sorted((one.paragraph, one.number) for one in first)
    assert all(one.text in " ".join(document.paragraphs[one.paragraph].split()) for one in first)
    said = " ".join(one.text for one in first)
    assert not {one.text for one in first} & {one.text for one in library.summarise(places, (), 5, said)}


def test_sentences() -> None:
    """A sentence ends at its mark, with the quotation mark behind it; numbers and short forms do not end one."""
    assert split_sentences('He said "No." Then he left! Was it 3.5 m? "Yes," e.g. so. Ice came.') == [
        'He said "No."',
        "Then he left!",
        "Was it 3.5 m?",
        '"Yes," e.g. so.',
        "Ice came.",
    ]


def test_titles() -> None:
    """A short first line is the title; else the file's name is. An empty file is no document."""
    found = parse("a.md", "# The Title\n\nText.\n\nMore.")
    assert found is not None
    assert (found.title, found.paragraphs) == ("The Title", ("Text.", "More."))
    long = parse("my-file.txt", "word " * 100)
    assert long is not None
    assert long.title == "my file"
    assert parse("b.txt", " \n\n ") is None


def test_folder(tmp_path: Path) -> None:
    """Texts are read from a folder and those in it; other files, hidden ones and links are not. Any bytes will do."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.TXT").write_text("Two\n\nThe second.")
    (tmp_path / "a.md").write_bytes(b"One\r\n\r\nThe \xff first.")
    (tmp_path / ".hidden.txt").write_text("secret")
    (tmp_path / "c.py").write_text("secret = 1")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "link.txt").symlink_to("/etc/hostname")
    found = read_folder(tmp_path)
    assert [one.name for one in found] == ["a.md", "deep/b.TXT"]
    assert found[0].paragraphs == ("The \ufffd first.",)


def test_a_large_folder(tmp_path: Path) -> None:
    """So many texts are read, the first by name."""
    for number in range(MAX_DOCUMENTS + 1):
        (tmp_path / f"{number:04}.txt").write_text(f"Title\n\n{number}")
    found = read_folder(tmp_path)
    assert len(found) == MAX_DOCUMENTS
    assert found[-1].name == f"{MAX_DOCUMENTS - 1:04}.txt"


def test_folder_without_texts(tmp_path: Path) -> None:
    """A folder that is missing or holds no text is refused, by its name."""
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ValueError, match=path.name):
            read_folder(path)
