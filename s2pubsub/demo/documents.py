"""Documents to ask about: a folder of plain texts, found by BM25 and summed up by their own sentences. Pure.

Relies on nothing. Not for large collections: everything is held in memory and ranked anew for each question.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path

import attrs

SUFFIXES = (".txt", ".md")
MAX_DOCUMENTS = 500
MAX_CHARACTERS = 400_000
"""What is read of one document."""

_K1, _B = 1.4, 0.7  # BM25: how fast repetition saturates, and how much long passages are held back
_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)?")
_SENTENCE_END = re.compile(
    r"""(?:(?<=[.!?\u2026])|(?<=[.!?\u2026]["'\u201d\u2019)]))\s+(?=["'\u201c\u2018(]?[^\W\d_a-z])"""
)
_ENDINGS = ("ings", "ing", "edly", "ed", "ies", "es", "ly", "s")
_COMMON_WORDS = """
    a about all also am an and any are as at be been but by can could did do does for from get give had has have he
    her here him his how i if in into is it its let like many may me might more must most much my no not of on one
    only or other our out over say says shall she should so some such tell than that the their them then there these
    they this those to too up us was we were what when where which while who why will with would you your document
    documents text texts file files please explain describe find show
"""
_COMMON = frozenset(_COMMON_WORDS.split())


@attrs.frozen
class Document:
    """A text. ``paragraphs`` are its passages, without the title."""

    name: str
    title: str
    paragraphs: tuple[str, ...]


@attrs.frozen
class Passage:
    """A paragraph that was found, the better the higher its score."""

    document: Document
    number: int
    score: float

    @property
    def text(self) -> str:
        return self.document.paragraphs[self.number]


@attrs.frozen
class Sentence:
    """A sentence and where it stands."""

    document: Document
    paragraph: int
    number: int
    text: str


class Library:
    """Some documents and their index. Immutable, so that any thread may use it."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self.documents = tuple(documents)
        places = [(document, number) for document in self.documents for number in range(len(document.paragraphs))]
        self._passages = [
            (place, Counter(terms(f"{place[0].title}\n{place[0].paragraphs[place[1]]}"))) for place in places
        ]
        self._found_in = Counter(term for _, counts in self._passages for term in counts)
        lengths = [counts.total() for _, counts in self._passages]
        self._mean_length = sum(lengths) / len(lengths) if lengths else 1.0

    def rarity(self, term: str) -> float:
        """How much a term says: the fewer passages hold it, the more."""
        count = self._found_in[term]
        return math.log(1 + (len(self._passages) - count + 0.5) / (count + 0.5))

    def search(self, query: Iterable[str], limit: int = 5) -> list[Passage]:
        """The best passages for some terms, the best first."""
        wanted = [term for term in dict.fromkeys(query) if term in self._found_in]
        found = []
        for (document, number), counts in self._passages:
            size = _K1 * (1 - _B + _B * counts.total() / self._mean_length)
            score = sum(
                self.rarity(term) * counts[term] * (_K1 + 1) / (counts[term] + size) for term in wanted if counts[term]
            )
            if score > 0:
                found.append(Passage(document, number, round(score, 3)))
        return sorted(found, key=lambda passage: -passage.score)[:limit]

    def find(self, query: Iterable[str]) -> Document | None:
        """The document whose title or name the terms speak of, None if none or several equally."""
        wanted = set(query)
        ranked = sorted(
            ((len(wanted & set(terms(f"{one.title} {Path(one.name).stem}"))), one) for one in self.documents),
            key=lambda pair: -pair[0],
        )
        if not ranked or ranked[0][0] == 0 or (len(ranked) > 1 and ranked[1][0] == ranked[0][0]):
            return None
        return ranked[0][1]

    def summarise(
        self, passages: Sequence[tuple[Document, int]], query: Iterable[str], count: int, without: str = ""
    ) -> list[Sentence]:
        """The ``count`` sentences that say most, in the order of the passages; none that stands in ``without``.

        Without a query those count that share most words with the rest of the passages.
        """
        sentences = [
            Sentence(document, paragraph, number, text)
            for document, paragraph in passages
            for number, text in enumerate(split_sentences(document.paragraphs[paragraph]))
            if text not in without
        ]
        everywhere = Counter(term for sentence in sentences for term in set(terms(sentence.text)))
        wanted = set(query)

        def worth(sentence: Sentence) -> float:
            own = set(terms(sentence.text))
            asked = sum(self.rarity(term) for term in own & wanted)
            central = sum(everywhere[term] - 1 for term in own) / (len(own) + 6)
            return asked + (0.4 if wanted else 1.0) * central

        best = sorted(range(len(sentences)), key=lambda place: -worth(sentences[place]))[:count]
        return [sentences[place] for place in sorted(best)]


def terms(text: str) -> list[str]:
    """The words of a text that say something, without their endings."""
    words = (word.removesuffix("'s").removesuffix("\u2019s") for word in _WORD.findall(text.lower()))
    return [_stem(word) for word in words if word not in _COMMON and (len(word) > 1 or word.isdigit())]


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    return word.removesuffix("e") if len(word) > 3 else word


def split_sentences(text: str) -> list[str]:
    """The sentences of a paragraph."""
    return [part.strip() for part in _SENTENCE_END.split(" ".join(text.split())) if part.strip()]


def read_folder(folder: Path) -> list[Document]:
    """The texts in a folder and the folders in it, sorted by name; hidden ones are left out.

    Raises:
        ValueError: it is no folder, or holds no text that can be read.
    """
    if not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is not a folder")
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        hidden = any(part.startswith(".") for part in Path(name).parts)
        if path.suffix.lower() not in SUFFIXES or hidden or not path.is_file() or path.is_symlink():
            continue
        with path.open(encoding="utf-8", errors="replace") as file:
            document = parse(name, file.read(MAX_CHARACTERS))
        if document is not None:
            found.append(document)
        if len(found) == MAX_DOCUMENTS:
            break
    if not found:
        raise ValueError(f"{str(folder)!r} holds no text: files must end in {' or '.join(SUFFIXES)}")
    return found


def shipped_documents() -> list[Document]:
    """The texts that come with the package."""
    folder = resources.files("s2pubsub") / "texts"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name[0].isdigit())
    parsed = (parse(name, (folder / name).read_text(encoding="utf-8")) for name in names)
    return [document for document in parsed if document is not None]


def parse(name: str, text: str) -> Document | None:
    """A text as a document: its first line is the title if it is short. None for an empty one."""
    blocks = [
        block.strip() for block in re.split(r"\n\s*\n", text.replace("\r\n", "\n").replace("\0", "")) if block.strip()
    ]
    if not blocks:
        return None
    first, _, rest = blocks[0].partition("\n")
    title = first.strip("#=* \t")
    if not title or len(title) > 120:
        return Document(name, Path(name).stem.replace("-", " "), tuple(blocks))
    body = ([rest.strip()] if rest.strip("=- \n") else []) + blocks[1:]
    return Document(name, title, tuple(body) or (title,))
