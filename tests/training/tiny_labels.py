"""Label sets made by hand, and a label folder of them: a query of two words is about the passage that holds both."""

from pathlib import Path

from tests.retrieval.tiny_encoder import WORDS

from coseek.agents.search_turns import TurnId
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.labels.label_folder import LabelFolder
from coseek.labels.label_set import Candidate, LabelSet
from coseek.retrieval.query import Query


def label(number: int, *, search: int = 0, question: int | None = None, targets: bool = False) -> LabelSet:
    """Positive: the passage of words `number` and `number + search + 1`; negatives share one of the words."""
    about = number if question is None else question
    count = len(WORDS)

    def passage(first: int, second: int) -> Passage:
        words = (WORDS[first % count], WORDS[second % count])
        return Passage(f"p{first % count}-{second % count}", words[0], f"{words[0]} {words[1]} {words[1]}")

    gap = search + 1
    pairs = [(number, number + gap), (number, number + gap + 1), (number + 3, number + gap), (number + 5, number + 9)]
    candidates = [Candidate(passage(*pair), rank) for rank, pair in enumerate(pairs, start=1)]
    positive, *negatives = (candidate.passage.id for candidate in candidates)
    return LabelSet(
        turn=TurnId(f"q{about}", 0, search),
        question=Question(f"q{about}", f"what is {WORDS[about % count]} of number {about}", gold_ids=(positive,)),
        query=Query(f"{WORDS[number % count]} {WORDS[(number + gap) % count]}", f"what is {WORDS[about % count]}"),
        candidates=tuple(candidates),
        positive=positive,
        negatives=tuple(negatives),
        targets=(0.7, 0.2, 0.1, 0.0) if targets else None,
    )


def write_labels(folder: Path, count: int = 24, *, targets: bool = False) -> Path:
    """A label folder of two turns for each of `count` questions."""
    labels = LabelFolder.create(folder, {}, "by hand")
    with labels.appending() as append:
        for number in range(count):
            for search in range(2):
                append(label(number, search=search, targets=targets))
    return folder
