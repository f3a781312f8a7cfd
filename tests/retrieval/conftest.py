"""Fixtures of several retrieval tests."""

from pathlib import Path

import pytest
from tests.retrieval.tiny_encoder import make_encoder, sentences

from coseek.data.passage import Corpus


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("encoders") / "tiny")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return sentences(400)
