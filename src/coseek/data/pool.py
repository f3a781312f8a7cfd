"""Pool: several published question sets over one corpus, split so that training and test share nothing.

Duplicate questions count once. Questions that share a gold passage, or have gold passages that begin alike, go to the
same split. Published splits are kept: `train` becomes train and dev, and any other is tested.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, cast

from coseek.core.errors import SettingError
from coseek.core.files import Json, JsonObject, as_path, atomic_folder, check_replaceable, write_json
from coseek.core.fingerprint import digest_of
from coseek.core.record import Record
from coseek.data import imports
from coseek.data.answers import normalise
from coseek.data.corpus_file import CorpusFile
from coseek.data.dataset import check_gold_ids
from coseek.data.imports._sources import ImportedData, checked_splits
from coseek.data.passage import Corpus, Passage
from coseek.data.question import OWN_PASSAGE, Question, save_questions

SHARES = {"train": 0.7, "dev": 0.1, "test": 0.2}
REPEATED = "questions that another one repeats, left out"
LEAKING = "published training questions that share a gold passage with a tested one, left out"
_EVALUATION = re.compile(r"(?<![a-z])(dev|test|val|validation|nq-open-oracle)(?![a-z])")
"""Marks the file name of a publisher's evaluation set. `nq-open-oracle` has the questions of NQ-Open's dev set."""
_ALIKE = 150
"""Two passages of one title begin alike if this many characters agree, without case, articles and punctuation."""


class PoolSource(NamedTuple):
    """A data set of a pool."""

    name: str
    """Name of the data set; empty: the name in its questions, else the format."""
    format: str
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class PoolSummary(Record):
    """The counts of a pool."""

    passages: int
    questions: dict[str, dict[str, int]]
    """Data set → split → questions."""
    notes: dict[str, int]
    evaluation_sets: dict[str, int]
    """Evaluation file of a publisher → number of its questions."""


class Pooled(NamedTuple):
    """A question of a pool."""

    question: Question
    published: str = ""
    """The publisher's split; empty if unknown."""
    passages: frozenset[str] = frozenset()
    """The beginnings of its gold passages."""

    @property
    def text(self) -> str:
        return normalise(self.question.question)

    @property
    def is_tested(self) -> bool:
        return self.published not in ("", "train")


def parse_source(text: str) -> PoolSource:
    """Parse `[NAME=]FORMAT:SRC[,SRC…]`. Raises `SettingError`."""
    head, colon, files = text.partition(":")
    name, equals, format_name = head.rpartition("=")
    if not (colon and format_name and files) or bool(equals) != bool(name):
        raise SettingError(f"{text!r} is not a data set; write [NAME=]FORMAT:FILE_OR_FOLDER, such as nq=dpr:nq.jsonl")
    return PoolSource(name, format_name, tuple(as_path(file, "a source") for file in files.split(",")))


def make_pool(sources: Sequence[PoolSource], out: Path, shares: Mapping[str, float] = SHARES) -> PoolSummary:
    """Read the sources and write the data-set folder `out`, replacing an older pool or import.

    Every set meets the `shares` on average. Raises `DataError` and `SettingError` without writing anything.
    """
    imports.check_shares(shares)
    check_replaceable(out, imports.FILES.fullmatch, "a pool")
    pools: list[PoolSummary] = []

    def fill(folder: Path) -> None:
        collector, evaluations, pool = _PoolCollector(), Counter[str](), list[Pooled]()
        passages = _passages(sources, collector, pool, evaluations)
        corpus = CorpusFile.write(folder / imports.CORPUS, passages, source="the sources of the pool")
        check_gold_ids((pooled.question for pooled in pool), corpus, "the corpus", "give the corpus of these questions")
        whole = [pooled._replace(passages=_beginnings(pooled.question, corpus)) for pooled in pool]
        dealt_splits, notes = deal(whole, shares)
        splits, counts = checked_splits(dealt_splits, collector.notes + notes)
        sizes: dict[str, Counter[str]] = {}
        for name, questions in splits.items():
            save_questions(folder / f"questions.{name}.jsonl", questions)
            for question in questions:
                sizes.setdefault(question.dataset or "", Counter())[name] += 1
        pools.append(PoolSummary(len(corpus), {name: dict(size) for name, size in sizes.items()}, counts, evaluations))
        write_json(folder / imports.CARD, {"format": "pool", **pools[0].to_json()})

    atomic_folder(out, fill)
    return pools[0]


def deal(asked: Sequence[Pooled], shares: Mapping[str, float]) -> tuple[dict[str, list[Question]], Counter[str]]:
    """Split → questions, and reason → number of questions that are left out."""
    notes = Counter[str]()
    unique = list(_without_repeats(asked, notes))
    groups = _groups([(f"? {pooled.text}", *pooled.passages) for pooled in unique])
    members: dict[int, list[Pooled]] = {}
    for pooled, group in zip(unique, groups, strict=True):
        members.setdefault(group, []).append(pooled)
    untested = {name: share for name, share in shares.items() if name != "test" and share > 0} or {"train": 1.0}
    untested = {name: share / sum(untested.values()) for name, share in untested.items()}
    split_by_group: dict[int, str] = {}
    for group, component in members.items():
        is_trained = any(pooled.published == "train" for pooled in component)
        by_id = imports.split_of(min(pooled.question.id for pooled in component), untested if is_trained else shares)
        split_by_group[group] = "test" if any(pooled.is_tested for pooled in component) else by_id
    splits: dict[str, list[Question]] = {name: [] for name in ("test", *shares, *untested)}
    for pooled, group in zip(unique, groups, strict=True):
        if pooled.published == "train" and split_by_group[group] == "test":
            notes[LEAKING] += 1
        else:
            splits[split_by_group[group]].append(pooled.question)
    return {name: questions for name, questions in splits.items() if questions}, notes


def _without_repeats(asked: Sequence[Pooled], notes: Counter[str]) -> Iterator[Pooled]:
    """Keep the first of questions with the same text, and all questions of a published test."""
    seen_texts = {pooled.text for pooled in asked if pooled.is_tested}
    for pooled in asked:
        if not pooled.is_tested and pooled.text in seen_texts:
            notes[REPEATED] += 1
            continue
        seen_texts.add(pooled.text)
        yield pooled


def _beginnings(question: Question, corpus: Corpus) -> frozenset[str]:
    gold = map(corpus.by_id, question.gold_ids)
    return frozenset(f"{normalise(passage.title)}\n{normalise(passage.text)[:_ALIKE]}" for passage in gold)


def _groups(element_sets: Sequence[Iterable[str]]) -> list[int]:
    """The number of each set's group. Sets with a common element are in one group (union-find)."""
    parent = list(range(len(element_sets)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = index = parent[parent[index]]
        return index

    owner_of: dict[str, int] = {}
    for index, elements in enumerate(element_sets):
        for element in elements:
            parent[root(index)] = root(owner_of.setdefault(element, index))
    return [root(index) for index in range(len(element_sets))]


class _PoolCollector:
    """The passages of all sets, each once."""

    def __init__(self) -> None:
        self._ids: dict[bytes, str] = {}
        self._taken_ids = set[str]()
        self.notes = Counter[str]()

    def add(self, passage: Passage) -> tuple[str, bool]:
        """The id of a passage in the pool, and whether it is new. Passages count as the same if title and text agree
        without case, articles and punctuation. If different passages share an id, the later one gets another id."""
        content = bytes.fromhex(digest_of(normalise(passage.title), normalise(passage.text)))
        if (known_id := self._ids.get(content)) is not None:
            self.notes["passages that an earlier set has"] += 1
            return known_id, False
        self._ids[content] = ident = self.free(passage.id)
        return ident, True

    def free(self, ident: str) -> str:
        """The id, with a number if it is taken: two files of a set may share ids (XQuAD's languages)."""
        free_id, number = ident, 1
        while free_id in self._taken_ids:
            number += 1
            free_id = f"{ident} #{number}"
        self._taken_ids.add(free_id)
        return free_id


def _passages(
    sources: Sequence[PoolSource], collector: _PoolCollector, asked: list[Pooled], evaluations: Counter[str]
) -> Iterator[Passage]:
    """Yield the passages of all sets, and append their questions to `asked`."""
    for source in sources:
        imported, files = imports.read_sources(source.format, source.files)
        ids: dict[str, str] = {}
        for passage in imported.passages:
            ident, is_new = collector.add(passage)
            if ident != passage.id:
                ids[passage.id] = ident
            if is_new:
                yield replace(passage, id=ident)
        questions = [(split, _pooled_question(question, source, ids)) for split, question in _questions(imported)]
        asked += [Pooled(replace(each, id=collector.free(f"? {each.id}")[2:]), split) for split, each in questions]
        evaluation_names = [file.name for file in files if _EVALUATION.search(file.name.lower())]
        if evaluation_names and not any(split for split, _ in questions):
            evaluations[", ".join(evaluation_names)] += len(questions)


def _questions(imported: ImportedData) -> Iterator[tuple[str, Question]]:
    """The publisher's split, or "", and the question."""
    published = [(split, question) for (_, split), questions in imported.published.items() for question in questions]
    published += [(split, question) for split, questions in imported.splits.items() for question in questions]
    published_ids = {question.id for _, question in published}
    yield from published
    yield from (("", question) for question in imported.questions if question.id not in published_ids)


def _pooled_question(question: Question, source: PoolSource, ids: Mapping[str, str]) -> Question:
    """The question with the pool's ids and the name of its set."""
    name = source.name or question.dataset or source.format
    ident = question.id if question.id.startswith(f"{name}/") else f"{name}/{question.id}"
    gold = tuple(dict.fromkeys(ids.get(gold_id, gold_id) for gold_id in question.gold_ids))
    meta = cast(JsonObject, _rename_ids({**question.meta}, ids)) if ids else {**question.meta}
    if (own := question.own_passage) is not None:
        meta[OWN_PASSAGE] = ids.get(own, own)
    return replace(question, id=ident, gold_ids=gold, meta={**meta, "dataset": name})


def _rename_ids(value: Json, ids: Mapping[str, str], name: str = "") -> Json:
    """Replace the ids of passages in a question's meta."""
    if isinstance(value, dict):
        keys = ids if name == "relevance" else {}
        return {keys.get(key, key): _rename_ids(item, ids, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_rename_ids(item, ids) for item in value]
    return ids.get(value, value) if isinstance(value, str) and name in ("passage", "gold_id") else value
