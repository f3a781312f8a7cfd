"""Demonstrations on questions with gold passages: nothing is demonstrated that was not shown."""

from pathlib import Path

from coseek.agents.actions import NOT_FOUND
from coseek.core.files import write_jsonl
from coseek.core.progress import NoProgress
from coseek.data.dataset import Dataset
from coseek.data.trajectory import Author, Trajectory
from coseek.models.tokenizer import ByteTokenizer
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.demonstrations import demonstrate
from coseek.retrieval.retrievers.bm25 import Bm25

LONG = "It was built of wood . " * 60


def demonstrations(folder: Path, *settings: str) -> list[Trajectory]:
    passages = {
        "rome": ("Rome", "Rome was made by Romulus."),
        "ostia": ("Ostia", f"Ostia is a harbour. {LONG} It was made by Ancus."),
        "alba": ("Alba", "Alba lies on a hill."),
    }
    write_jsonl(
        folder / "corpus.jsonl",
        ({"id": name, "title": title, "text": text} for name, (title, text) in passages.items()),
    )
    asked = [
        ("found", "Who made Rome?", "Romulus", "rome"),
        ("cut", "Who made Ostia?", "Ancus", "ostia"),
        ("missed", "Who made the town of nobody?", "Nobody", "alba"),
    ]
    write_jsonl(
        folder / "questions.train.jsonl",
        ({"id": ident, "question": text, "answers": [gold], "gold_ids": [passage], "hops": 1}
         for ident, text, gold, passage in asked),
    )  # fmt: skip
    recipe = load_recipe("smollm", [
        "limits={passages_per_search: 1, max_document_tokens: 400, max_observation_tokens: 500, max_turn_tokens: 500, "
        "max_tokens: 9000}", "warm_start.also={}", *settings,
    ])  # fmt: skip
    data, protocol = Dataset(folder), recipe.load_protocol()
    tokenizer = ByteTokenizer(protocol.grammar.special_tokens)
    return demonstrate(recipe, protocol, tokenizer, Bm25.over(data.corpus), data, NoProgress())


def test_neither_a_missed_passage_nor_an_answer_that_was_cut_off_is_demonstrated(tmp_path: Path) -> None:
    runs = demonstrations(tmp_path, "warm_start.one_shot=0", "warm_start.reading=0")
    assert [run.question.id for run in runs] == ["found"]
    assert "Rome was made by Romulus." in runs[0].segments[-1].text
    assert NOT_FOUND not in "".join(run.segments[-1].text for run in runs)


def test_a_reading_shows_the_gold_passage_and_learns_the_answer_alone(tmp_path: Path) -> None:
    runs = demonstrations(tmp_path, "warm_start.one_shot=0", "warm_start.reading=1")
    readings = [run for run in runs if run.protocol == "generator"]
    assert {run.question.id for run in readings} == {"found", "cut", "missed"}
    for run in readings:
        prompt, reply = run.segments
        assert (prompt.author, reply.author) == (Author.ENVIRONMENT, Author.AGENT)
        assert run.question.question in prompt.text
        assert prompt.text.count("\n[") <= 5
        assert reply.text.startswith(run.question.answers[0])
