"""The start of a training: a policy that was trained goes on as it was, with tokens that keep their vectors."""

from pathlib import Path

import torch

from coseek.core.progress import NoProgress
from coseek.data.dataset import Dataset
from coseek.hardware.placement import FLOAT32
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.models.pretrained import load_model
from coseek.models.tokenizer import HfTokenizer
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.demonstrations import write_start

TEXT = "<search>the mayor of Novinna</search>"


def unread() -> Dataset:
    raise AssertionError("nothing is counted where no words are added")


def said(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = load_model(folder, FLOAT32)(torch.tensor([HfTokenizer.load(folder).encode(TEXT)])).logits
    return logits


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
    before, after = said(tmp_path / "trained"), said(folder)
    assert after.shape[-1] == before.shape[-1] + 1  # <plan>
    assert torch.equal(after[..., : before.shape[-1]], before)
