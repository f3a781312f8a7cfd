"""No file that coseek reads can run code. Ruff refuses pickles, `eval`, YAML with Python objects and shells (the rules
S1, S3, S5 and S6 in pyproject.toml); these tests check what it has no rule for."""

import re

import pytest
from tests.source_tree import PACKAGE

UNSAFE = re.compile(
    r"\btorch\.load\((?![^()]*(\([^()]*\)[^()]*)*weights_only=True)"
    r"|\bfrom torch import .*\bload\b"
    r"|\ballow_pickle=(?!False\b)"
    r"|\btrust_remote_code=True\b"  # any other value is a setting of the user
    r"|^\s*(?:import|from) (?:pickle|_pickle|marshal|shelve|dill|cloudpickle|joblib)\b",
    re.MULTILINE,
)


@pytest.mark.medium
def test_nothing_that_is_read_can_run_code() -> None:
    unsafe = [(path.name, hit[0]) for path in PACKAGE.rglob("*.py") for hit in UNSAFE.finditer(path.read_text("utf-8"))]
    assert not unsafe


@pytest.mark.parametrize(
    ("source", "unsafe"),
    [
        ("import joblib as j", True),
        ("from pickle import loads", True),
        ("torch.load('x')", True),
        ("torch.load(folder / name(1),\n    weights_only=False)", True),
        ("from torch import load", True),
        ("np.load('x', allow_pickle=True)", True),
        ("AutoModel.from_pretrained('x', trust_remote_code=True)", True),
        ("torch.load(Path(folder) / WEIGHTS,\n    weights_only=True)", False),
        ("np.load('x', allow_pickle=False)", False),
        ("AutoModel.from_pretrained('x', trust_remote_code=trust)", False),
    ],
)
def test_each_way_to_run_code_is_noticed_and_no_other(source: str, unsafe: bool) -> None:
    assert bool(UNSAFE.search(source)) == unsafe
