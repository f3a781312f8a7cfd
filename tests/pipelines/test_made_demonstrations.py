"""Demonstrations of questions made from the passages that the policy will search."""

from pathlib import Path

import pytest
from tests.lab.synthesis.test_renaming import films

from coseek.core.errors import SettingError
from coseek.core.files import write_jsonl
from coseek.core.progress import NoProgress
from coseek.data.dataset import Dataset
from coseek.data.question import gold_path
from coseek.lab.synthesis.renaming import rename
from coseek.library import make_world
from coseek.models.tokenizer import ByteTokenizer
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.demonstrations import demonstrate, made_questions
from coseek.retrieval.retrievers.bm25 import Bm25

MADE = "warm_start.made={count: 30, dev: 0.1, test: 0.1}"


@pytest.mark.slow
def test_made_questions_are_demonstrated_beside_the_training_questions(tmp_path: Path) -> None:
    data = make_world(tmp_path / "w", size="compact", train=10, dev=0, test=0)
    recipe = load_recipe(
        "from-nothing", ["warm_start.worlds=0", "warm_start.one_shot=0", "limits.max_tokens=100000", MADE]
    )
    made = made_questions(recipe, data)
    assert made == made_questions(recipe, Dataset(data.folder)) and 10 <= len(made) <= 30
    assert all(map(gold_path, made))
    protocol = recipe.load_protocol()
    tokenizer = ByteTokenizer(protocol.grammar.special_tokens)
    shown = demonstrate(recipe, protocol, tokenizer, Bm25.over(data.corpus), data, NoProgress())
    assert [run.question for run in shown] == [*data.questions("train"), *made]


def test_no_question_is_made_by_default(tmp_path: Path) -> None:
    data = make_world(tmp_path / "w", size="tiny", train=5, dev=0, test=0)
    assert made_questions(load_recipe("from-nothing"), data) == []


def test_renamed_questions_are_demonstrated_beside_the_training_questions(tmp_path: Path) -> None:
    corpus, questions = films()
    corpus.save(tmp_path / "corpus.jsonl")
    write_jsonl(tmp_path / "questions.train.jsonl", (one.to_json() for one in questions))
    room = [f"limits.max_{what}tokens=100000" for what in ("", "turn_", "observation_", "document_")]
    settings = ["warm_start.worlds=0", "warm_start.one_shot=0", "warm_start.renamed=2", *room]
    recipe, data = load_recipe("from-nothing", settings), Dataset(tmp_path)
    protocol = recipe.load_protocol()
    tokenizer = ByteTokenizer(protocol.grammar.special_tokens)
    shown = demonstrate(recipe, protocol, tokenizer, Bm25.over(corpus), data, NoProgress())
    copies = [rename(corpus, questions, seed) for seed in (0, 1)]
    assert [run.question for run in shown] == [*questions, *(one for _, asked in copies for one in asked)]
    for (renamed, _), runs in zip(copies, (shown[3:6], shown[6:]), strict=True):
        hits = [hit.passage for run in runs for search in run.searches for hit in search.hits]
        assert hits and all(hit == renamed.by_id(hit.id) for hit in hits)


@pytest.mark.parametrize("other", ["warm_start.worlds=2", "warm_start={demonstrator: rules, worlds: 0, %s}"])
@pytest.mark.parametrize(
    ("kind", "asked", "some"), [("made", MADE, "made: {}"), ("renamed", "warm_start.renamed=1", "renamed: 1")]
)
def test_who_does_not_demonstrate_made_or_renamed_questions_is_refused_them(
    kind: str, asked: str, some: str, other: str
) -> None:
    with pytest.raises(SettingError, match=f"only the expert demonstrates {kind} questions"):
        load_recipe("from-nothing", [asked, other.replace("%s", some)])
