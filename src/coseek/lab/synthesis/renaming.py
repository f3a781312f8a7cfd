"""Renaming: copies of questions and their passages in which names are exchanged (entity substitution: Longpre et al.
2021, there against answers from memory). A model trained on few questions then learns to copy names, not to memorise
them.
"""

import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from coseek.core.errors import DataError
from coseek.core.files import Json
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question, gold_path, plain_name, plan_of

WORD = re.compile(r"\w+")


def rename(corpus: Corpus, questions: Sequence[Question], seed: int) -> tuple[Corpus, list[Question]]:
    """Copies of the questions that have a gold path, with new ids, and the corpus that answers them.

    The subjects of the paths exchange names with others of the same relation: films whose director is asked for with
    such films. Their passages keep their ids. Passages on no path are unchanged, and so are values (dates, countries,
    names of no subject) and other names of a subject in its passage (a family name). Questions with a name that is
    missing in their text or passage are skipped. Raises `DataError` if no question has a path.
    """
    names, kinds = _subjects(questions)
    if not names:
        raise DataError("no training question has a gold path to rename along; set warm_start.renamed=0")
    rng = random.Random(seed)
    swapped: dict[str, str] = {}
    """Passage id → id of the passage whose name its subject gets."""
    for idents in kinds.values():
        swapped |= zip(idents, rng.sample(idents, len(idents)), strict=True)
    new_names = {old: names[swapped[ident]][0] for ident, old_names in names.items() for old in old_names}
    renamer = _Renamer(new_names)
    renamed_passages = {
        passage.id: replace(
            passage, title=renamer.renamed(passage.title), text=renamer.renamed(passage.text), raw_contents=None
        )
        for passage in map(corpus.by_id, names)
    }
    copies = [_renamed_copy(question, renamer, seed) for question in questions if gold_path(question)]
    renamed_corpus = Corpus(renamed_passages.get(passage.id, passage) for passage in corpus)
    return renamed_corpus, [question for question in copies if _is_consistent(question, renamed_passages)]


def _subjects(questions: Sequence[Question]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Passage id → names of its subject, that of a question first; and relation → ids of its subjects' passages."""
    names: dict[str, dict[str, None]] = defaultdict(dict)
    kinds: dict[str, str] = {}
    for question in questions:
        for step in plan_of(question) if gold_path(question) else ():
            names[step.gold_id].update(dict.fromkeys(map(plain_name, (step.entity, step.mention))))
            kinds.setdefault(step.gold_id, step.relation)
    by_kind = defaultdict(list)
    for ident, kind in kinds.items():
        by_kind[kind].append(ident)
    return {ident: [*forms] for ident, forms in names.items()}, dict(by_kind)


class _Renamer:
    """Replaces whole names in texts, the longest first, ignoring case."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._by_word: dict[str, list[str]] = defaultdict(list)
        """The first word of names → the names."""
        self._given = {old.casefold(): new for old, new in given.items()}
        for old in sorted(given, key=len, reverse=True):
            if first := WORD.match(old):
                self._by_word[first.group().casefold()].append(old)

    def renamed(self, text: str) -> str:
        parts: list[str] = []
        position = 0
        for word in WORD.finditer(text):
            start = word.start()
            for old in self._by_word.get(word.group().casefold(), ()) if start >= position else ():
                end = start + len(old)
                if text[start:end].casefold() == old.casefold() and not WORD.match(text, end):
                    parts += [text[position:start], self._given[old.casefold()]]
                    position = end
                    break
        return "".join([*parts, text[position:]])


def _renamed_copy(question: Question, renamer: _Renamer, seed: int) -> Question:
    path = question.meta["path"]
    assert isinstance(path, list)
    steps: list[Json] = []
    for step in path:
        assert isinstance(step, dict)
        texts = {
            key: renamer.renamed(value) for key, value in step.items() if isinstance(value, str) and key != "passage"
        }
        steps.append({**step, **texts})
    return replace(
        question,
        id=f"{question.id}~{seed}",
        question=renamer.renamed(question.question),
        answers=tuple(map(renamer.renamed, question.answers)),
        meta={**question.meta, "path": steps},
    )


def _is_consistent(question: Question, passages: Mapping[str, Passage]) -> bool:
    """Whether the names of the path are in the question and in the passages that lead to them."""
    path = gold_path(question)
    for previous_step, step in zip((None, *path), path, strict=False):
        is_led_to = previous_step is not None and previous_step.target == step.source
        if not is_led_to and plain_name(step.source) not in question.question:
            return False
        if step.written not in passages[step.passage].text:
            return False
    return True
