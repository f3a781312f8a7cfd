"""2WikiMultihopQA: questions with their own passages, and optionally a corpus of distractors.

Distractor files hold `{"title", "text"}` rows; repeated passages count once. The evidence triples of a question,
[subject, relation, object], become its gold path (`coseek.data.question`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from coseek.core.files import Json
from coseek.data.imports._sources import ImportedData, PassageCollector, SourceRow, read_rows
from coseek.data.imports.hotpotqa import contexts, own_gold, question_of
from coseek.data.question import Question, plain_name


class Evidence(NamedTuple):
    """A fact that a gold passage states about the subject in its title."""

    subject: str
    relation: str
    object: str


def read(sources: Sequence[Path]) -> ImportedData:
    """Own passages first, then the distractors. `hops` is the number of gold passages (2 or 4)."""
    collector, questions, distractors = PassageCollector(), list[SourceRow](), list[SourceRow]()
    for path in sources:
        for row in read_rows(path):
            (questions if row.has("context") else distractors).append(row)
    for row in questions:
        for context in contexts(row):
            collector.add(context.title, context.text)
    notes = Counter({"own passages": len(collector), "distractors": len(distractors)})
    own_ids = {passage.id for passage in collector.passages}
    distractor_ids = {collector.add(row.text_or_empty("title"), row.text("text")) for row in distractors}
    notes["distractors that are own passages"] = len(distractor_ids & own_ids)
    named: dict[str, list[str]] = {}
    with_paths = tuple(_question_with_path(row, own_gold(row, collector, named)) for row in questions)
    notes.update({name: len(names) for name, names in named.items()})
    return ImportedData(collector.passages, with_paths, notes, named=named)


def _question_with_path(row: SourceRow, gold: Mapping[str, Sequence[str]]) -> Question:
    """The question with its gold path, if every gold title names one passage."""
    ids = [ident for idents in gold.values() for ident in idents]
    evidences = _evidences(row)
    question = question_of(row, ids, len(gold) or None)
    if evidences:
        question = replace(question, meta={**question.meta, "evidences": [[*evidence] for evidence in evidences]})
    if len(ids) > len(gold):
        return question
    texts = {context.title: context.text for context in contexts(row)}
    path = path_of(question.question, evidences, list(gold), ids, texts)
    return replace(question, meta={**question.meta, "path": path}) if path else question


def _evidences(row: SourceRow) -> list[Evidence]:
    if not row.has("evidences"):
        return []
    evidences: list[Evidence] = []
    in_columns = isinstance(row.parsed("evidences"), dict)
    for item in [record.value for record in row.rows("evidences")] if in_columns else row.items("evidences"):
        match item:
            case [str() as subject, str() as relation, str() as value] | {
                "fact": str() as subject,
                "relation": str() as relation,
                "entity": str() as value,
            }:
                evidences.append(Evidence(subject, relation, value))
            case _:
                raise row.wrong("evidences", "a list of [subject, relation, object]")
    return evidences


def path_of(
    question: str, evidences: Sequence[Evidence], titles: Sequence[str], gold: Sequence[str], texts: Mapping[str, str]
) -> list[Json]:
    """The steps of a question, each fact after the one that names its subject; one for several objects of a relation.

    Passages of the subjects are found by title, or if a title is written differently, by their order. Empty if a
    subject has no passage then.
    """
    subjects = list(dict.fromkeys(fact.subject for fact in evidences))
    title_of = {subject: title for subject in subjects for title in titles if _key(title) == _key(subject)}
    if len(title_of) < len(subjects):
        if len(subjects) != len(titles):
            return []
        title_of = dict(zip(subjects, titles, strict=True))
    ids = dict(zip(titles, gold, strict=True))
    steps: list[Json] = []
    for fact in _chain_facts(evidences):
        title, is_known = title_of[fact.subject], any(_key(other.object) == _key(fact.subject) for other in evidences)
        name = plain_name(title) if is_known else _spelling_in(question, (title, plain_name(title), fact.subject))
        reached_title = next((title_of[subject] for subject in subjects if _key(subject) == _key(fact.object)), None)
        steps.append({
            "passage": ids[title],
            "from": name,
            "to": fact.object if reached_title is None else plain_name(reached_title),
            "written": _spelling_in(texts.get(title, ""), (fact.object,)),
            "phrase": fact.relation,
            "back": False,
            "question": f"What is the {fact.relation} of {name}?",
        })  # fmt: skip
    return steps


def _chain_facts(evidences: Sequence[Evidence]) -> Iterator[Evidence]:
    """Every fact once, followed by those about its object."""
    remaining = list({(_key(fact.subject), fact.relation): fact for fact in reversed(evidences)}.values())[::-1]
    while remaining:
        fact = remaining.pop(0)
        yield fact
        remaining.sort(key=lambda other: _key(other.subject) != _key(fact.object))


def _spelling_in(text: str, names: Sequence[str]) -> str:
    """The first of the names that a text contains, in the text's capitals; else the last name."""
    lowered = text.lower()
    if len(lowered) != len(text):  # a few capitals become two letters, and positions differ
        text = lowered
    positions = ((lowered.find(name.lower()), len(name)) for name in names)
    return next((text[start : start + length] for start, length in positions if start >= 0), names[-1])


def _key(name: str) -> str:
    return plain_name(name).casefold().strip()
