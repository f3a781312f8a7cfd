"""Checking: every mistake of a recipe is named at once, and before torch is imported."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from coseek.agents.agent_card import AgentCard
from coseek.core.errors import ErrorList, SettingError
from coseek.data.question import Question, save_questions
from coseek.pipelines.agent_check import check_recipe, checked_recipe, paths_of, problem_of
from coseek.pipelines.agent_recipe import load_recipe, preset_names, recipe_names

PROGRAM = """
import contextlib, io, json, sys
from coseek.cli.main import main
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(words)
    print(json.dumps([code, "torch" in sys.modules, said.getvalue().splitlines()]))
"""
MISTAKES: dict[str, tuple[str, ...]] = {
    "train agent quickstart 'reward={exact_mach: 1.0}' protocol=serch-r1 data.world=null data.unseen=null "
    "data.folder=nowhere data.index=indexes/none warm_start.demonstrator=rules rl.stepz=3 limits.max_turns=many "
    "--out run": (
        "no setting named 'rl.stepz'; did you mean 'rl.steps'", "setting 'limits.max_turns' needs a whole number",
        "no reward named 'exact_mach'; did you mean 'exact_match'",
        "no protocol named 'serch-r1'; did you mean 'search-r1'",
        "there is no nowhere, which the recipe names as data.folder",
        "there is no indexes/none, which the recipe names as data.index",
    ),
    "train agent quickstart --dry-run 'reward={exact_mach: 1, serches: 1}'": ("exact_mach", "serches"),
    "train retriever agentic-r encoder=nowhere --labels none --labels nothing": (
        "no encoder 'nowhere'", "none holds no labels", "nothing holds no labels",
    ),
    "train together laptop 'agent.reward={f2: 1}' labels.scorer=nobody start=nowhere": (
        "no reward named 'f2'", "there is no nobody", "no encoder 'nowhere'",
    ),
    "train generator sft.stepz=3 seed=x": ("sft.stepz", "'seed' needs a whole number"),
    "run nowhere --agent rules --protocol rga --retriever none --out run": (
        "nowhere", "no index none", "did you mean 'rag'",
    ),
}  # fmt: skip
"""A command → what is wrong with it."""


@pytest.mark.slow
def test_all_mistakes_of_a_command_are_named_by_one_call_before_torch_is_imported(tmp_path: Path) -> None:
    """In an interpreter of its own: this one has imported torch."""
    commands = json.dumps(list(map(shlex.split, MISTAKES)))
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, commands], capture_output=True, text=True, cwd=tmp_path, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    for line, (command, parts) in zip(ran.stdout.splitlines(), MISTAKES.items(), strict=True):
        code, torch, sentences = json.loads(line)
        assert (code, torch, len(sentences)) == (2, False, len(parts)), (command, sentences)
        for named in parts:
            assert sum(named in sentence for sentence in sentences) == 1, (named, sentences)
        assert all(sentence.startswith("coseek: ") for sentence in sentences)
    assert not list(tmp_path.iterdir())


def test_every_kind_of_mistake_of_an_agents_recipe_is_found() -> None:
    with pytest.raises(SettingError) as caught:
        checked_recipe(
            "zerosearch",
            [
                "preset=laptop",
                "reward={preset: serch-r1, f2: 1}", "prompt_template=laptp", "data.retriever=bm26",
                "data.training_retriever={retriever: noisi}",
                "graders.generator={model: Qwen/Qwen2.5-3B, prompt: genrator}",
                "graders.judge={model: oracle, prompt: jugde}", "warm_start.also={rga: .1}",
            ],
        )  # fmt: skip
    sentences = caught.value.sentences
    for named in ("serch-r1", "laptp", "bm26", "noisi", "hf download Qwen", "genrator", "jugde"):
        assert sum(named in sentence for sentence in sentences) >= 1, (named, sentences)
    assert len(sentences) == len(set(sentences))


@pytest.mark.parametrize(
    ("more", "missing"),
    [
        (["policy.folder=base", "warm_start=null"], False),
        (["policy.folder=null", "warm_start=null"], True),
        (["policy.folder=base", "warm_start={demonstrator: rules, worlds: 0}"], True),
    ],
)
def test_a_corpus_that_an_index_does_not_replace_is_missed_before_the_training(
    more: list[str], missing: bool, tmp_path: Path
) -> None:
    for split in ("train", "dev", "test"):
        save_questions(tmp_path / f"questions.{split}.jsonl", [Question("q", "Who?", ("Ada",))])
    data = [f"data.folder={tmp_path}", "data.index=http://host:80", "data.world=null", "data.unseen=null"]
    entries = paths_of(load_recipe("from-nothing", [*data, *more]))
    assert any("holds no corpus.jsonl" in problem_of(entry) for entry in entries) == missing


def test_parts_of_a_reward_are_all_looked_at() -> None:
    with pytest.raises(SettingError) as caught:
        checked_recipe("from-nothing", ["reward={exact_mach: 1, f1: {wieght: 2}, component: 1}"])
    assert len(caught.value.sentences) == 2  # what a reward needs is asked when its parts are known
    with pytest.raises(SettingError, match=r"needs a frozen generator|needs a judge"):
        checked_recipe("from-nothing", ["reward={gen_acc: 1.0, gbr: 1.0}"])


def test_adapters_alone_never_teach_a_policys_new_tokens() -> None:
    adapters, both = "warm_start.sft.learner.lora.rank=8", ["policy.folder=base", "rl.policy.lora.rank=8"]
    for tokens in ("policy.add_tag_tokens=true", "policy.add_word_tokens=9", "policy.folder=null"):
        with pytest.raises(SettingError, match="new tokens would keep untrained vectors"):
            checked_recipe("from-nothing", ["policy.folder=base", tokens, adapters])
    with pytest.raises(SettingError, match=r"rl\.policy\.lora trains adapters alone"):
        checked_recipe("from-nothing", [*both, "policy.add_tag_tokens=true", "warm_start=null"])
    samples = ["policy.folder=base", "policy.add_tag_tokens=true", "warm_start=null", "learn=rejection"]
    with pytest.raises(SettingError, match=r"rejection\.sft\.learner\.lora trains adapters alone"):
        checked_recipe("from-nothing", [*samples, "rejection.sft.learner.lora.rank=8"])
    checked_recipe("from-nothing", [*samples, "rl.policy.lora.rank=8"])  # which is not used
    with pytest.raises(SettingError, match="learn: demonstrations needs some; give the recipe a warm_start"):
        checked_recipe("from-nothing", ["warm_start=null", "learn=demonstrations"])
    staged = [*samples[:3], "stages={one: {learn: rl, rl: {policy: {lora: {rank: 8}}}}}"]
    with pytest.raises(SettingError, match=r"stages\.one\.rl\.policy\.lora trains adapters alone"):
        checked_recipe("from-nothing", staged)
    checked_recipe("from-nothing", [*both, adapters])
    checked_recipe("from-nothing", [*both, "policy.add_tag_tokens=true"])  # the warm start has taught the tags


def trained_with(tags: list[str], folder: Path) -> list[str]:
    """Settings that go on from an agent whose tokenizer has these tags as tokens."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    added = [{"id": number, "content": tag, "special": True} for number, tag in enumerate(tags)]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    recipe = load_recipe("quickstart")
    AgentCard(protocol=recipe.protocol, prompt_template=recipe.prompt_template).write(folder)
    return [f"policy.folder={folder}", "warm_start=null"]


def test_a_policy_that_has_its_tags_goes_on_with_adapters_and_one_that_spells_them_keeps_spelling(
    tmp_path: Path,
) -> None:
    tags = list(load_recipe("quickstart").load_protocol().grammar.special_tokens)
    going_on = trained_with(tags, tmp_path / "trained")
    checked_recipe("quickstart", [*going_on, "rl.policy.lora.rank=8"])
    spelling = trained_with([], tmp_path / "spelling")
    with pytest.raises(SettingError, match=r"has learnt to spell .*set policy\.add_tag_tokens=false"):
        checked_recipe("quickstart", spelling)
    checked_recipe("quickstart", [*spelling, "policy.add_tag_tokens=false", "policy.add_word_tokens=0"])


def test_our_recipes_for_the_laptop_are_without_mistakes_but_for_the_generator_that_is_made_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where none was made
    mistakes = ErrorList()
    for name in (name for name in recipe_names() if "laptop" in preset_names(name)):
        mistakes.collect(check_recipe, load_recipe(name, ["preset=laptop"]))
    assert len(mistakes.sentences) > 1
    assert all("or make it: coseek train generator --out runs/generator" in sentence for sentence in mistakes.sentences)
