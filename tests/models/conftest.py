"""Fixtures of several model tests."""

from pathlib import Path

import pytest
from tests.models.networks import SMALL, TEXTS

from coseek.models.laptop import make_policy
from coseek.models.tokenizer import HfTokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small untrained policy without a chat template."""
    made = tmp_path_factory.mktemp("policies") / "plain"
    make_policy(SMALL, TEXTS, ["<|user|>", "<|model|>"], made, seed=3)
    return made


@pytest.fixture(scope="module")
def talking(folder: Path) -> Path:
    """The same policy with a chat template."""
    made = folder.with_name("talking")
    make_policy(SMALL, TEXTS, ["<|user|>", "<|model|>"], made, seed=3)
    tokenizer = HfTokenizer.load(made)
    tokenizer.fast.chat_template = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|model|>"
    tokenizer.save(made)
    return made
