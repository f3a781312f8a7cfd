"""The quickstart: it starts from the shipped base model, with words of its own world, or from nothing."""

from pathlib import Path

import pytest
import torch
from tests.pipelines.test_agent import FEW, OF_A_MODEL, TINY

from coseek.cli.main import main
from coseek.core.files import read_yaml
from coseek.core.progress import NoProgress
from coseek.data.dataset import Dataset
from coseek.hardware.placement import FLOAT32
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.models.model_folder import model_path
from coseek.models.pretrained import load_model
from coseek.models.tokenizer import HfTokenizer
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.demonstrations import write_start
from coseek.pipelines.table_rows import rows_of


@pytest.mark.slow
def test_the_quickstart_starts_from_the_base_and_reads_its_world_in_little_more_than_words(tmp_path: Path) -> None:
    training = AgentTraining(load_recipe("quickstart", [*OF_A_MODEL, *FEW]), tmp_path / "run")
    training.begin(resume=False)
    training.prepare_data()
    training.make_policy()
    base, start = model_path("base"), training.policy_folder("start")
    before, after = HfTokenizer.load(base), HfTokenizer.load(start)
    questions = [question.question for question in training.questions("train")]
    words = sum(len(question.split()) for question in questions)
    assert sum(len(after.encode(question)) for question in questions) < 1.3 * words
    assert sum(len(before.encode(question)) for question in questions) > 1.6 * words
    assert all(after.decode(after.encode(question)) == question for question in questions)
    assert all(len(after.encode(mark)) == 1 for mark in training.special_tokens)
    old, new = (dict(load_model(folder, FLOAT32).named_parameters()) for folder in (base, start))
    assert all(parameter.equal(new[name]) for name, parameter in old.items() if "embed" not in name)


@pytest.mark.slow
def test_a_table_without_dev_asks_test_and_unseen_alone_and_the_curve_keeps_its_dev_questions(tmp_path: Path) -> None:
    few = ["table.dev_questions=3", "table.questions=3", "rl.evaluate_every=0"]
    for dev, named in ((True, ["dev", "test", "unseen"]), (False, ["test", "unseen"])):
        recipe = load_recipe("quickstart", [*OF_A_MODEL, *few, f"table.dev={dev}", "table.sampled=false"])
        training = AgentTraining(recipe, tmp_path / str(dev))
        training.begin(resume=False)
        training.prepare_data()
        assert [column.name for column in training.sets] == named
        assert len(training.dev_questions(recipe)) == 3
        assert [row.label for row in rows_of(training)] == ["before", "after", "direct", "naive RAG"]


@pytest.mark.slow
def test_a_quickstart_from_nothing_is_one_option_away(tmp_path: Path) -> None:
    assert main(["quickstart", "--from-nothing", *TINY, *FEW, "--out", str(tmp_path / "run")]) == 0
    recipe = read_yaml(tmp_path / "run" / "recipe.yaml", "recipe")["recipe"]
    assert isinstance(recipe, dict)
    assert recipe["policy"]["folder"] is None  # type: ignore[index,call-overload]
    assert (
        main(["quickstart", *OF_A_MODEL, *FEW, "--out", str(tmp_path / "run"), "--resume"]) == 2
    )  # another recipe's folder


TEXT = "<search>the mayor of Novinna</search>"


def unread() -> Dataset:
    raise AssertionError("nothing is counted where no words are added")


def logits_of(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = load_model(folder, FLOAT32)(torch.tensor([HfTokenizer.load(folder).encode(TEXT)])).logits
    return logits


@pytest.mark.medium
def test_going_on_without_a_warm_start_says_what_the_policy_said_twice_in_a_row(tmp_path: Path) -> None:
    shape = LaptopSettings(hidden=16, layers=("conv", "full_attention"), heads=2, kv_heads=1, feed_forward=24)
    marks = load_recipe("quickstart").load_protocol().grammar.special_tokens
    make_policy(shape.model_copy(update={"vocabulary": 300}), [TEXT], marks, tmp_path / "trained", 0)
    folder = tmp_path / "trained"
    for name in ("once", "twice"):
        recipe = load_recipe("quickstart", [f"policy.folder={folder}", "warm_start=null"])
        assert recipe.policy.add_tag_tokens and recipe.policy.add_word_tokens
        write_start(recipe, [*marks, "<plan>"], unread, tmp_path / name, NoProgress())
        folder = tmp_path / name
    before, after = logits_of(tmp_path / "trained"), logits_of(folder)
    assert after.shape[-1] == before.shape[-1] + 1  # <plan>
    assert torch.equal(after[..., : before.shape[-1]], before)
