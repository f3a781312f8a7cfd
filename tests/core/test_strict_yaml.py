"""Strict YAML: what PyYAML would obey, follow for ever or take in silence is refused, with its line."""

from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.source_tree import PACKAGE

from coseek.core.errors import DataError
from coseek.core.files import read_yaml
from coseek.core.strict_yaml import InvalidYaml, parse_yaml

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text() | st.dates(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
REFUSED = {
    "loop": ("a: 1\nb: &l\n  again: *l\n", "nested more than 100 deep"),
    "a name twice": ("steps: 1\nlr: 2\nsteps: 3\n", r"line 3.*'steps' stands twice"),
    "depth": ("a: 1\nb: " + "[" * 5000 + "\n", "nested too deeply"),
    "depth without brackets": ("- " * 5000, "nested too deeply"),
    "digits": ("a: 1\nb: " + "9" * 5000, r"line 2.*put it in quotes"),
    "a date that is none": ("a: 1\nb: 2020-99-99", r"line 2.*'2020-99-99' is not what it looks like"),
    "a tag that lies": ("a: !!timestamp x", "'x' is not what it looks like"),
    "a tag of a program": ("a: !!python/object/apply:os.getcwd []", "constructor"),
    "a set": ("a: !!set {b}", "'set' is no plain value"),
    "bytes": ("a: !!binary aGk=", "'binary' is no plain value"),
    "a list for a name": ("? [a]\n: b", "unhashable"),
    "a character of terminals": ("a: 1\nb: \x07", r"line 2.*'\\x07' is not allowed"),
    "two documents": ("a: 1\n---\nb: 2", r"line 2.*another document"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_setting_means_is_refused_with_its_line(what: str, tmp_path: Path) -> None:
    text, said = REFUSED[what]
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=rf"mine\.yaml.*{said}.*; mend it$"):
        read_yaml(path, "recipe")


@given(PLAIN)
def test_no_plain_value_is_read_as_another_one(value: object) -> None:
    text: str = yaml.safe_dump(value, allow_unicode=True)
    assert parse_yaml(text) == yaml.safe_load(text)


def test_anchors_and_merges_that_stay_small_are_read(tmp_path: Path) -> None:
    text = "base: &b {steps: 1, lr: 2}\nmore: {<<: *b, lr: 3}\nsame: *b\n"
    base = {"steps": 1, "lr": 2}
    assert parse_yaml(text) == {"base": base, "more": {"steps": 1, "lr": 3}, "same": base}
    for path in PACKAGE.rglob("*.yaml"):
        shipped = path.read_text(encoding="utf-8")
        assert parse_yaml(shipped) == yaml.safe_load(shipped), path


@given(st.text(st.sampled_from("ab:&*<!-?[]{}'\"|>\n\t 1.,#%@~\x00\u2028é"), max_size=60))
def test_no_text_ends_in_another_error(text: str) -> None:
    with suppress(InvalidYaml):
        parse_yaml(text)


def test_what_comes_from_memory_is_a_copy() -> None:
    first = parse_yaml("a: [1]")
    assert isinstance(first, dict)
    first["a"].append(2)
    assert parse_yaml("a: [1]") == {"a": [1]}
