from pathlib import Path

import numpy as np
import pytest
from tests.retrieval.tiny_encoder import make_encoder

from coseek.core.errors import DataError, UserError
from coseek.hardware.placement import FLOAT32, Placement
from coseek.retrieval.vectors.embedding_retriever import view_renderer
from coseek.retrieval.vectors.encoder import Encoder, EncoderCard, encoder_folder

BFLOAT16 = Placement(precision="bfloat16")
TEXTS = ["ba be bi", "do", "fa fe fi fo fu ga ge gi go gu", ""]


@pytest.fixture(scope="module")
def mean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("encoders") / "mean")


def test_an_encoder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no encoder 'minilmm'; did you mean 'minilm'"):
        encoder_folder("minilmm")
    with pytest.raises(DataError, match=r"no modules\.json"):
        encoder_folder(str(tmp_path))


def without(folder: Path, part: str) -> Path:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if part not in name}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_an_encoder_without_a_tensor_is_refused(tmp_path: Path) -> None:
    folder = without(make_encoder(tmp_path / "encoder"), "encoder.layer.0.output.dense.weight")
    with pytest.raises(
        DataError, match=r"encoder lacks the weights of encoder\.layer\.0\.output\.dense\.weight; fetch"
    ):
        Encoder.open(folder, FLOAT32)


def test_a_missing_pooler_that_no_vector_depends_on_is_accepted_and_the_same_in_every_process(tmp_path: Path) -> None:
    whole = make_encoder(tmp_path / "whole")
    vectors = Encoder.open(whole, FLOAT32).encode(TEXTS, "", 64, 4)
    encoder = Encoder.open(without(make_encoder(tmp_path / "masked"), "pooler"), FLOAT32)
    assert np.array_equal(encoder.encode(TEXTS, "", 64, 4), vectors)
    pooler = {name: weight for name, weight in encoder.model.state_dict().items() if "pooler" in name}
    assert pooler and not any(weight.any() for weight in pooler.values())


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
def test_every_pooling_gives_what_its_name_says(tmp_path: Path, pooling: str) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = make_encoder(tmp_path / pooling, pooling, normalise=False)
    assert EncoderCard.of(folder).pooling == pooling
    vectors = Encoder.open(folder, FLOAT32).encode(TEXTS, "", 64, 4, normalise=False)
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for text, vector in zip(TEXTS, vectors, strict=True):  # one by one: nothing is padded
        with torch.inference_mode():
            states_TD = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        expected = {"mean": states_TD.mean(dim=0), "cls": states_TD[0], "lasttoken": states_TD[-1]}[pooling]
        assert np.allclose(vector, expected.numpy(), atol=1e-5)


def test_vectors_are_unit_ones_only_where_that_is_asked_for(tmp_path: Path) -> None:
    encoder = Encoder.open(make_encoder(tmp_path / "e", normalise=False), FLOAT32)
    assert np.allclose(np.linalg.norm(encoder.encode(TEXTS, "", 64, 2), axis=1), 1, atol=1e-6)
    assert not np.allclose(np.linalg.norm(encoder.encode(TEXTS, "", 64, 2, normalise=False), axis=1), 1, atol=1e-2)


def test_prompt_and_length_are_those_of_the_call(mean: Path) -> None:
    encoder = Encoder.open(mean, FLOAT32)
    assert np.array_equal(encoder.encode(["do"], "ba ", 64, 1), encoder.encode(["ba do"], "", 64, 1))
    cut = encoder.encode(["ba be bi bo bu"], "", 4, 1)  # [CLS] ba be [SEP]
    assert np.array_equal(cut, encoder.encode(["ba be"], "", 64, 1))
    assert not np.array_equal(cut, encoder.encode(["ba be bi bo bu"], "", 64, 1))


def test_a_loaded_encoder_is_shared_until_its_folder_changes(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "e", seed=1)
    first = Encoder.open(folder, FLOAT32)
    assert Encoder.open(folder, FLOAT32) is first
    assert Encoder.open(folder, BFLOAT16) is not first
    make_encoder(folder, seed=2)
    second = Encoder.open(folder, FLOAT32)
    assert not np.array_equal(first.encode(TEXTS, "", 64, 4), second.encode(TEXTS, "", 64, 4))


def test_a_reader_counts_as_the_encoder_does_and_leaves_room_for_the_prompt(mean: Path) -> None:
    reads = view_renderer(mean, "ba be ", 10).keywords
    assert reads["separator"] == "[SEP]"
    assert reads["count"]("do da [SEP] du") == 4
    assert reads["limit"] == 10 - 2 - 2
