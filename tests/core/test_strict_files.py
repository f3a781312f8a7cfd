"""JSON and YAML from outside: what no file can hold, or a reader would obey, is refused with its place or mended."""

import json
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
import yaml
from hypothesis import given, strategies as st
from tests.source_tree import PACKAGE

from coseek.core.errors import DataError
from coseek.core.files import JsonObject, json_line, parse_line, read_json, read_jsonl, read_yaml
from coseek.core.strict_json import InvalidJson, Json, fault_in, parse_lenient, parse_strict, replace_surrogates
from coseek.core.strict_yaml import InvalidYaml, parse_yaml
from coseek.data.passage import DEEPEST_META, Passage
from coseek.data.question import Question

POISON = {
    "half": (r'{"id": "q", "question": "who \ud800"}', "hex escape at character 36"),
    "low half": (r'{"id": "q", "question": "who \uDfFf"}', "hex escape at character"),
    "half in a list": (r'{"answers": ["a", "\ud800b"]}', "hex escape at character"),
    "half in a key": (r'{"meta": {"\ud800": 1}}', "hex escape at character"),
    "NaN": ('{"meta": {"score": NaN}}', "at character 20; there are no NaN"),
    "infinity": ('{"meta": {"scores": [1, [-Infinity]]}}', "there are no NaN and Infinity"),
    "beyond a float": ('{"a": 1e999}', "the field 'a' is not a finite number"),
    "digits": ('{"a": ' + "9" * 5000 + "}", "number out of range"),
    "depth": ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested more than 100 deep"),
    "some depth": ('{"a": ' + "[" * 150 + "]" * 150 + "}", "nested more than 100 deep"),
}


@pytest.mark.parametrize("what", POISON)
def test_what_no_file_can_hold_is_refused_with_its_line_and_field(what: str, tmp_path: Path) -> None:
    text, message = POISON[what]
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"fine": "\\ud83d\\ude00"}}\n{text}\n', encoding="utf-8")
    with pytest.raises(DataError, match=rf"rows.jsonl, line 2: .*{message}.*; mend or delete that line"):
        list(read_jsonl(path))
    with pytest.raises(DataError, match=message):
        parse_line(text.encode(), "a line")
    whole = tmp_path / "whole.json"
    whole.write_text(f"[{text}]", encoding="utf-8")
    with pytest.raises(DataError, match=r"whole.json"):
        read_json(whole)


def nested(leaves: "st.SearchStrategy[object]") -> "st.SearchStrategy[object]":
    """Lists and mappings of leaves."""
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
        max_leaves=10,
    )


FINITE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
HALVES = st.floats() | st.text(st.characters(min_codepoint=0xD7F0, max_codepoint=0xE010), max_size=3) | st.integers()


@given(nested(FINITE))
def test_whatever_can_be_written_is_read_as_it_was(value: Json) -> None:
    for escaped in (True, False):
        text = json.dumps(value, ensure_ascii=escaped)
        assert parse_strict(text) == value == parse_lenient(text.encode())
    assert fault_in(value) == ""


@given(nested(HALVES))
def test_what_is_read_can_be_written_again_and_what_is_refused_cannot(value: Json) -> None:
    text = json.dumps(value)
    value = cast(Json, json.loads(text))  # two adjacent halves are one letter
    try:
        parse_strict(text)
    except InvalidJson:
        assert fault_in(value)
        with pytest.raises(ValueError):
            json_line({"a": value}).encode()
    else:
        assert not fault_in(value)
        json_line({"a": value}).encode()


def test_what_a_server_wrote_is_mended_and_not_refused() -> None:
    mended = parse_lenient(rb'{"a\ud800": ["b\udfff", "\ud83d\ude00", 1e999, NaN]}')
    assert isinstance(mended, dict)
    assert mended.keys() == {"a\ufffd"}
    values = mended["a\ufffd"]
    assert isinstance(values, list) and values[:2] == ["b\ufffd", "😀"]
    assert parse_lenient(b'"\xed\xa0\x80"') == "\ufffd"  # a half in bytes, as some servers write it
    for odd in (b"{", b"[" * 100_000, b"9" * 5_000, b"\xff"):
        with pytest.raises(InvalidJson):
            parse_lenient(odd)


@given(st.text(st.characters(min_codepoint=0xD000, max_codepoint=0xFFFF) | st.characters(), max_size=8))
def test_mended_text_has_bytes_and_good_text_stays(text: str) -> None:
    mended = replace_surrogates(text)
    assert len(mended) == len(text)
    assert mended.encode().decode() == mended == replace_surrogates(mended)


def test_the_meta_of_a_question_or_a_passage_leaves_room_for_what_is_put_around_it() -> None:
    def meta(deep: int) -> dict[str, Json]:
        value: Json = 1
        for _ in range(deep - 1):
            value = [value]
        return {"a": value}

    row: JsonObject = {"id": "x", "question": "?", "title": "", "text": "x", "meta": meta(DEEPEST_META)}
    for kind in (Question, Passage):
        assert kind.from_json(row).meta == row["meta"]
        with pytest.raises(DataError, match="'x': meta is nested more than 50 deep"):
            kind.from_json({**row, "meta": meta(DEEPEST_META + 1)})


# --- YAML


PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text() | st.dates()
REFUSED = {
    "loop": ("a: 1\nb: &l\n  again: *l\n", "nested more than 100 deep"),
    "a name twice": ("steps: 1\nlr: 2\nsteps: 3\n", r"line 3.*'steps' appears twice"),
    "depth": ("a: 1\nb: " + "[" * 5000 + "\n", "nested too deeply"),
    "depth without brackets": ("- " * 5000, "nested too deeply"),
    "digits": ("a: 1\nb: " + "9" * 5000, r"line 2.*put it in quotes"),
    "an impossible date": ("a: 1\nb: 2020-99-99", r"line 2.*'2020-99-99' is not valid for its YAML type"),
    "a wrong tag": ("a: !!timestamp x", "'x' is not valid for its YAML type"),
    "a tag of a program": ("a: !!python/object/apply:os.getcwd []", "constructor"),
    "a set": ("a: !!set {b}", "'set' is no plain value"),
    "bytes": ("a: !!binary aGk=", "'binary' is no plain value"),
    "a list for a name": ("? [a]\n: b", "unhashable"),
    "a character of terminals": ("a: 1\nb: \x07", r"line 2.*'\\x07' is not allowed"),
    "two documents": ("a: 1\n---\nb: 2", r"line 2.*another document"),
}


@pytest.mark.medium
@pytest.mark.parametrize("what", REFUSED)
def test_what_no_setting_means_is_refused_with_its_line(what: str, tmp_path: Path) -> None:
    text, message = REFUSED[what]
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=rf"mine\.yaml.*{message}.*; mend it$"):
        read_yaml(path, "recipe")


@given(nested(PLAIN))
def test_no_plain_value_is_read_as_another_one(value: object) -> None:
    text: str = yaml.safe_dump(value, allow_unicode=True)
    assert parse_yaml(text) == yaml.safe_load(text)


@pytest.mark.medium
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
