"""Plain JSON: what no file can hold is refused where it is read, with its place, or mended where nobody can edit it."""

import json
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coseek.core.errors import DataError
from coseek.core.files import JsonObject, json_line, parse_line, read_json, read_jsonl
from coseek.core.strict_json import (
    InvalidJson,
    Json,
    fault_in,
    parse_lenient,
    parse_strict,
    replace_surrogates,
)
from coseek.data.passage import DEEPEST_META
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
    text, said = POISON[what]
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"fine": "\\ud83d\\ude00"}}\n{text}\n', encoding="utf-8")
    with pytest.raises(DataError, match=rf"rows.jsonl, line 2: .*{said}.*; mend or delete that line"):
        list(read_jsonl(path))
    with pytest.raises(DataError, match=said):
        parse_line(text.encode(), "a line")
    whole = tmp_path / "whole.json"
    whole.write_text(f"[{text}]", encoding="utf-8")
    with pytest.raises(DataError, match=r"whole.json"):
        read_json(whole)


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
))  # fmt: skip
def test_whatever_can_be_written_is_read_as_it_was(value: Json) -> None:
    for escaped in (True, False):
        text = json.dumps(value, ensure_ascii=escaped)
        assert parse_strict(text) == value == parse_lenient(text.encode())
    assert fault_in(value) == ""


values = st.recursive(
    st.floats() | st.text(st.characters(min_codepoint=0xD7F0, max_codepoint=0xE010), max_size=3) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_what_is_read_can_be_written_again_and_what_is_refused_cannot(value: Json) -> None:
    text = json.dumps(value)
    value = cast(Json, json.loads(text))  # two halves that stand together are one letter
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
    found = mended["a\ufffd"]
    assert isinstance(found, list) and found[:2] == ["b\ufffd", "😀"]
    assert parse_lenient(b'"\xed\xa0\x80"') == "\ufffd"  # a half in bytes, as some servers write it
    for odd in (b"{", b"[" * 100_000, b"9" * 5_000, b"\xff"):
        with pytest.raises(InvalidJson):
            parse_lenient(odd)


@given(st.text(st.characters(min_codepoint=0xD000, max_codepoint=0xFFFF) | st.characters(), max_size=8))
def test_mended_text_has_bytes_and_good_text_stays(text: str) -> None:
    mended = replace_surrogates(text)
    assert len(mended) == len(text)
    assert mended.encode().decode() == mended == replace_surrogates(mended)


def test_the_meta_of_a_question_leaves_room_for_what_is_put_around_it() -> None:
    def meta(deep: int) -> dict[str, Json]:
        value: Json = 1
        for _ in range(deep - 1):
            value = [value]
        return {"a": value}

    row: JsonObject = {"id": "q", "question": "?", "meta": meta(DEEPEST_META)}
    assert Question.from_json(row).meta == row["meta"]
    with pytest.raises(DataError, match="question 'q': meta is nested more than 50 deep"):
        Question.from_json({**row, "meta": meta(DEEPEST_META + 1)})
