"""`--settings`: the reference of every recipe, by itself."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Type

from coseek.cli.settings_help import in_words, listed
from coseek.core.settings import dump_settings
from coseek.pipelines.agent_recipe import load_recipe, recipe_names

COMMANDS = [
    ("agent", "search-r1-grpo", "rl.steps=7"),
    ("generator", "sft.steps=7"),
    ("retriever", "agentic-r", "training.steps=7"),
    ("retriever", "laptop", "training.steps=7"),
    ("together", "laptop", "agent.rl.steps=7"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=[" ".join(words[:2]) for words in COMMANDS])
def test_every_setting_is_listed_with_value_and_meaning_and_nothing_is_trained(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coseek: Type
) -> None:
    monkeypatch.chdir(tmp_path)
    said = coseek("train", *words, "--settings", "all")
    assert said.code == 0, said.err
    assert f"\n{words[-1]}\n    " in said.out
    changes = coseek("train", *words, "--settings")
    assert f"\n  {words[-1]}" in changes.out and len(changes.out) < len(said.out) / 4
    assert coseek("train", *words, "--settings", words[-1].partition("=")[0]).out.startswith(f"{words[-1]}\n    ")
    rows = json.loads(coseek("train", *words, "--settings", "--json").out)
    name, _, value = words[-1].partition("=")
    assert [row["value"] for row in rows if row["name"] == name] == [int(value)]
    assert [row["name"] for row in rows if not row["about"]] == []
    assert len({row["name"] for row in rows}) == len(rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", recipe_names())
def test_what_is_listed_can_be_typed_and_means_what_it_says(name: str) -> None:
    recipe = load_recipe(name)
    typed = [in_words(one, 100).splitlines()[0] for one in listed(recipe) if not one.is_group and not one.only_with]
    assert dump_settings(load_recipe(name, typed)) == dump_settings(recipe)


def test_settings_of_a_group_that_is_not_set_say_so(coseek: Type) -> None:
    rows = {row["name"]: row for row in json.loads(coseek("train", "agent", "s3", "--settings", "--json").out)}
    assert rows["data.world"]["value"] is None
    assert rows["data.world.size"]["only_with"] == "data.world"
    assert rows["rl.policy.optimizer.lr"]["only_with"] is None


def test_a_misspelt_setting_is_refused_there_too(coseek: Type) -> None:
    assert "did you mean" in coseek("train", "agent", "s3", "rl.stepz=1", "--settings").sentence
    assert "did you mean" in coseek("train", "retriever", "agentic-r", "training.stepz=1", "--settings").sentence
