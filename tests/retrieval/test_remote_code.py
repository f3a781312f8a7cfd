"""Encoders that bring Python code of their own."""

import json
from pathlib import Path

import pytest
from tests.retrieval.tiny_encoder import make_encoder, sentences

from coseek.core.errors import UserError
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.index_files import write_checksums

CODE = """
from pathlib import Path
from transformers import BertConfig, BertModel

class OwnConfig(BertConfig):
    model_type = "own-bert"

class OwnModel(BertModel):
    config_class = OwnConfig

Path({mark!r}).write_text("ran")
"""


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A tiny encoder of an architecture that only its own code knows; the code leaves a mark."""
    folder = make_encoder(tmp_path / "own")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own-bert", "architectures": ["OwnModel"]}
    config |= {"auto_map": {"AutoConfig": "own_code.OwnConfig", "AutoModel": "own_code.OwnModel"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own_code.py").write_text(CODE.format(mark=str(tmp_path / "mark")))
    return folder


def test_code_of_an_encoder_runs_on_request_only_and_a_card_is_no_request(encoder: Path, tmp_path: Path) -> None:
    mark, corpus = tmp_path / "mark", sentences(40)
    corpus.save(tmp_path / "corpus.jsonl")
    with pytest.raises(UserError, match=r"brings its own Python code; .* set trust_remote_code=true"):
        build_index(tmp_path / "corpus.jsonl", "dense", tmp_path / "index", {"encoder": str(encoder)})
    assert not mark.exists()
    asked = {"encoder": str(encoder), "trust_remote_code": True}
    found = build_index(tmp_path / "corpus.jsonl", "dense", tmp_path / "index", asked).search(["ba be"], 3)
    assert mark.exists() and len(found[0]) == 3

    card = json.loads((tmp_path / "index" / "index.json").read_text())
    assert "trust_remote_code" not in card["settings"]
    card["settings"]["trust_remote_code"] = True  # as a stranger's index might say
    (tmp_path / "index" / "index.json").write_text(json.dumps(card))
    write_checksums(tmp_path / "index")
    mark.unlink()
    with pytest.raises(UserError, match="trust_remote_code=true"):
        open_index(tmp_path / "index").search(["ba be"], 3)
    (tmp_path / "mine.yaml").write_text("{retriever: index, path: index, settings: {trust_remote_code: true}}")
    assert open_retriever(tmp_path / "mine.yaml").search(["ba be"], 3) == found
