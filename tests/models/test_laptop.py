"""Fears about the laptop policy: it must be an ordinary folder, and making it must disturb nothing."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from coseek.core.errors import DataError
from coseek.hardware.placement import FLOAT32
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.models.pretrained import load_model

TEXTS = [" one fish two fish red fish blue fish", " the cat sat on the mat"]
SMALL = LaptopSettings(hidden=32, feed_forward=48, vocabulary=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("policies") / "policy"
    make_policy(SMALL, TEXTS, ["<search>", "</search>"], made, seed=3)
    return made


def test_the_folder_is_an_ordinary_hugging_face_folder(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("<search> fish</search>", return_tensors="pt").input_ids
    assert ids.shape == (1, 3)
    assert model(ids).logits.shape == (1, 3, len(tokenizer))
    assert model.config.model_type == "lfm2"
    assert model.config.eos_token_id == tokenizer.eos_token_id != tokenizer.pad_token_id


def test_the_same_seed_gives_the_same_weights_and_the_global_generator_is_left_alone(
    folder: Path, tmp_path: Path
) -> None:
    before = torch.get_rng_state()
    for seed in (3, 4):
        make_policy(SMALL, TEXTS, ["<search>", "</search>"], tmp_path / str(seed), seed)
    assert torch.equal(before, torch.get_rng_state())
    first = (folder / "model.safetensors").read_bytes()
    assert (tmp_path / "3" / "model.safetensors").read_bytes() == first
    assert (tmp_path / "4" / "model.safetensors").read_bytes() != first


def test_a_folder_that_is_no_model_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no model folder"):
        load_model(tmp_path / "none", FLOAT32)
    with pytest.raises(DataError, match=r"no config\.json"):
        load_model(tmp_path, FLOAT32)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(DataError, match="no language model that can be opened"):
        load_model(tmp_path, FLOAT32)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(DataError, match="no language model that can be opened"):
        load_model(tmp_path, FLOAT32)
