from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from coseek.core.fingerprint import CHAT_TEMPLATES, TOKENIZER, fingerprint


def test_a_change_deep_inside_the_weights_changes_the_fingerprint(tmp_path: Path) -> None:
    weights = np.zeros(300_000, dtype=np.uint8)
    (tmp_path / "model.safetensors").write_bytes(weights.tobytes())
    before = fingerprint(tmp_path)
    weights[150_000] = 1
    (tmp_path / "model.safetensors").write_bytes(weights.tobytes())
    assert fingerprint(tmp_path) != before


@pytest.mark.medium
def test_a_change_between_the_sampled_pieces_of_large_weights_changes_the_fingerprint(tmp_path: Path) -> None:
    """The same model after an adapter was merged into one matrix."""
    weights = {f"layer.{number}": np.zeros((500, 100), dtype=np.float32) for number in range(200)}
    save_file(weights, tmp_path / "model.safetensors")
    fingerprints = {fingerprint(tmp_path)}
    for number in range(60, 66):
        save_file({**weights, f"layer.{number}": weights["layer.0"] + 1}, tmp_path / "model.safetensors")
        fingerprints.add(fingerprint(tmp_path))
    assert len(fingerprints) == 7
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * (2**24 + 1))
    assert fingerprint(tmp_path) not in fingerprints


def test_the_same_files_in_another_place_have_the_same_fingerprint(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name / "1_Pooling").mkdir(parents=True)
        (tmp_path / name / "1_Pooling" / "config.json").write_text("{}")
    assert fingerprint(tmp_path / "here") == fingerprint(tmp_path / "there")
    (tmp_path / "there" / "1_Pooling").rename(tmp_path / "there" / "2_Pooling")
    assert fingerprint(tmp_path / "here") != fingerprint(tmp_path / "there")


def test_a_corrected_chat_template_is_a_change_of_its_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    bare = fingerprint(tmp_path, TOKENIZER)
    assert fingerprint(tmp_path, TOKENIZER, CHAT_TEMPLATES) == bare
    (tmp_path / "additional_chat_templates").mkdir()
    for name in ("chat_template.jinja", "additional_chat_templates/tool_use.jinja"):
        (tmp_path / name).write_text("{{ messages }}")
        with_template = fingerprint(tmp_path, TOKENIZER, CHAT_TEMPLATES)
        (tmp_path / name).write_text("{{ messages }}\n")
        assert len({bare, with_template, fingerprint(tmp_path, TOKENIZER, CHAT_TEMPLATES)}) == 3


def test_an_encoder_with_other_code_is_another_encoder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    bare = fingerprint(tmp_path)
    code = tmp_path / "modeling_own.py"
    code.write_text("POOL = 'mean'\n", encoding="utf-8")
    mean = fingerprint(tmp_path)
    code.write_text("POOL = 'last'\n", encoding="utf-8")
    last = fingerprint(tmp_path)
    code.unlink()
    (tmp_path / "notes.md").write_text("not read by any model", encoding="utf-8")
    assert len({bare, mean, last}) == 3 and fingerprint(tmp_path) == bare
