"""Fixtures of several model tests."""

from pathlib import Path

import pytest
from tests.models.networks import SMALL, TEXTS

from coseek.models.laptop import make_policy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small untrained policy without a chat template."""
    made = tmp_path_factory.mktemp("policies") / "plain"
    make_policy(SMALL, TEXTS, ["<|user|>", "<|model|>"], made, seed=3)
    return made
