import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, cast

import pytest
import yaml
from tests.measure.samples import MIRA, ORBO, OTHER, QUESTION, decode, fault, found, run

from coseek.core.errors import DataError
from coseek.core.files import JsonObject, read_jsonl, write_jsonl
from coseek.data.audit import Audit, audit_run
from coseek.data.run import Run
from coseek.data.run_seal import DIGEST, SEAL
from coseek.data.token_data import FILE, TokenData, agent_spans
from coseek.data.trajectory import Trajectory

LIMITS: JsonObject = {"max_turns": 2, "passages_per_search": 2, "max_turn_tokens": 60, "max_tokens": 400}
Edit: TypeAlias = Callable[[JsonObject], object]


def sound() -> list[Trajectory]:
    first = run(found("orbo", ORBO, OTHER), found("mira", MIRA), selected_ids=("mira",))
    return [first, replace(first, seed=1), fault(replace(QUESTION, id="q2")), run(answer=None, valid=False, seed=2)]


def stored(folder: Path, trajectories: list[Trajectory], limits: JsonObject = LIMITS) -> Run:
    made = Run.create(folder, {"agent": {"limits": limits}})
    with made.open_for_append() as file:
        for trajectory in trajectories:
            Run.append(file, trajectory)
    return made


def audit_after(folder: Path, edit: Edit) -> Audit:
    """Audit a sound run in which the second line was changed."""
    made = stored(folder, sound())
    lines = made.trajectories_path.read_text(encoding="utf-8").splitlines()
    row = json.loads(lines[1])
    edit(row)
    lines[1] = json.dumps(row)
    made.trajectories_path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return audit_run(made.folder, decode)


def without_digests(run: Run) -> Run:
    """The run as a version without digests wrote it."""
    rows = [row for _, row in read_jsonl(run.trajectories_path)]
    write_jsonl(run.trajectories_path, ({name: row[name] for name in row if name != DIGEST} for row in rows))
    record = {name: value for name, value in run.record.items() if name != SEAL}
    (run.folder / "run.yaml").write_text(yaml.safe_dump(record), encoding="utf-8")
    return run


def part(row: JsonObject, at: int) -> JsonObject:
    return cast(list[JsonObject], row["segments"])[at]


def search(row: JsonObject, at: int) -> JsonObject:
    return cast(list[JsonObject], row["searches"])[at]


def items(row: JsonObject, name: str) -> list[object]:
    return cast(list[object], row[name])


def test_what_the_driver_writes_is_sound(tmp_path: Path) -> None:
    audit = audit_run(stored(tmp_path / "run", sound()).folder, decode)
    assert (audit.rows, audit.first, audit.decoded) == (4, None, True)


BROKEN: dict[str, tuple[Edit, int | None, str]] = {
    "another text": (lambda row: part(row, 1).update(text="<think>ho</think>"), 1, "not the decoding of the ids"),
    "another id": (lambda row: items(part(row, 2), "ids").__setitem__(0, 65), 2, "from character 0"),
    "ids that no tokenizer has": (
        lambda row: items(part(row, 2), "ids").__setitem__(0, 99_999_999),
        2,
        "cannot be decoded",
    ),
    "a negative id": (lambda row: items(part(row, 0), "ids").__setitem__(3, -1), 0, "token 3 is -1"),
    "an id that is a fraction": (
        lambda row: items(part(row, 0), "ids").__setitem__(0, 81.5),
        None,
        "'ids' must be a list",
    ),
    "a lost log-probability": (lambda row: items(part(row, 1), "logprobs").pop(), None, "log-probabilities"),
    "a positive one": (lambda row: items(part(row, 1), "logprobs").__setitem__(2, 0.5), 1, "token 2 is 0.5"),
    "the environment as agent": (lambda row: part(row, 2).update(author="agent"), None, "log-probabilities"),
    "the agent as environment": (lambda row: part(row, 1).update(author="environment"), None, "log-probabilities"),
    "an unknown author": (lambda row: part(row, 1).update(author="nobody"), None, "nobody"),
    "a lost observation": (lambda row: items(row, "segments").pop(2), 2, "two turns of the agent"),
    "a lost prompt": (lambda row: items(row, "segments").pop(0), 0, "begins with the environment's prompt"),
    "no segments": (lambda row: row.update(segments=[], searches=[], selected_ids=[]), None, "no segments"),
    "an observation nobody asked for": (lambda row: items(row, "searches").pop(0), None, "2 observations and only 1"),
    "too many searches": (lambda row: items(row, "searches").extend([search(row, 0)] * 2), None, "max_turns is 2"),
    "too many hits": (
        lambda row: items(search(row, 1), "hits").extend(
            [{"id": f"p{n}", "title": "", "text": "", "score": 1.0 - n} for n in range(2)]
        ),
        None,
        "passages_per_search is 2",
    ),
    "rising scores": (lambda row: items(search(row, 0), "hits").reverse(), None, "not finite and falling"),
    "the same hit twice": (
        lambda row: items(search(row, 1), "hits").append(items(search(row, 1), "hits")[0]),
        None,
        "same passage twice",
    ),
    "an answer nobody gave": (lambda row: row.update(stop="invalid"), None, "only answered runs have an answer"),
    "a lost answer": (lambda row: row.update(answer=None), None, "only answered runs have an answer"),
    "an unknown stop": (lambda row: row.update(stop="tired"), None, "tired"),
    "a fault without a failed search": (
        lambda row: row.update(stop="retriever_error", answer=None),
        None,
        "none of its searches failed",
    ),
    "valid with a format error": (lambda row: row.update(format_error="no"), None, "exactly one holds"),
    "a selection out of nowhere": (lambda row: row.update(selected_ids=["zun"]), None, "'zun' was never retrieved"),
    "evidence out of nowhere": (lambda row: row.update(evidence=["zun"]), None, "'zun' of the evidence was never"),
    "evidence twice": (
        lambda row: row.update(evidence=["orbo", "orbo", "other", "mira"]),
        None,
        "'orbo' stands twice in the evidence",
    ),
    "evidence that is not whole": (lambda row: row.update(evidence=["orbo"]), None, "is not in the evidence"),
    "evidence that is no list": (lambda row: row.update(evidence="orbo"), None, "evidence is a list"),
    "time that runs backwards": (lambda row: row.update(timings={"wall_s": -1.0}), None, "wall_s is -1.0"),
    "a seed that is a text": (lambda row: row.update(seed="0"), None, "'seed' must be a whole number"),
    "a turn that is a text": (lambda row: search(row, 0).update(turn="1"), None, "'turn' must be a whole number"),
    "a missing field": (lambda row: row.pop("searches"), None, "'searches' is missing"),
    "a field of somebody else": (lambda row: row.update(reward=1.0), None, "reward is not what this schema writes"),
    "a word for a truth": (lambda row: row.update(valid="yes"), None, "'valid' must be true or false"),
    "another schema": (lambda row: row.update(schema=99), None, "schema 99"),
    "the same seed twice": (lambda row: row.update(seed=0), None, "on line 1 already"),
    "a turn over its budget": (
        lambda row: part(row, 1).update(text="x" * 61, ids=[120] * 61, logprobs=[-0.5] * 61),
        1,
        "max_turn_tokens is 60",
    ),
    "a run over its budget": (
        lambda row: part(row, 2).update(text="x" * 400, ids=[120] * 400),
        None,
        "max_tokens is 400",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_invariant_is_named_with_its_place(name: str, tmp_path: Path) -> None:
    edit, segment, says = BROKEN[name]
    first = audit_after(tmp_path / "run", edit).first
    assert first is not None
    assert (first.file.name, first.line, first.question, first.segment) == ("trajectories.jsonl", 2, "q1", segment)
    assert says in first.what
    assert str(first).startswith(f"{first.file}, line 2, question 'q1'")


def test_without_a_tokenizer_everything_but_the_text_is_checked(tmp_path: Path) -> None:
    made = without_digests(stored(tmp_path / "run", sound()))
    text = made.trajectories_path.read_text(encoding="utf-8")
    made.trajectories_path.write_text(text.replace("<think>hm</think>", "<think>ha</think>"), encoding="utf-8")
    assert (audit_run(made.folder).first, audit_run(made.folder).decoded) == (None, False)
    assert audit_run(made.folder, decode).first is not None


def test_what_nobody_can_derive_is_bound_by_the_digest_of_its_row(tmp_path: Path) -> None:
    edits: list[Edit] = [
        lambda row: items(part(row, 1), "logprobs").__setitem__(0, -0.75),
        lambda row: row.update(timings={"wall_s": 1.0}),
    ]
    for number, edit in enumerate(edits):
        audit = audit_after(tmp_path / str(number), edit)
        assert audit.count == 2 and audit.first is not None and audit.first.line == 2
        assert "changed after it was written" in audit.first.what and "seal" in audit.violations[1].what


def test_a_run_that_is_older_than_digests_is_audited_and_said_to_be_unbound(tmp_path: Path) -> None:
    audit = audit_run(stored(tmp_path / "run", sound()).folder, decode)
    assert (audit.bound, audit.sealed) == (4, True)
    audit = audit_run(without_digests(Run(tmp_path / "run")).folder, decode)
    assert (audit.rows, audit.count, audit.bound, audit.sealed) == (4, 0, 0, False)


def test_an_older_run_that_goes_on_is_bound_as_it_was_found(tmp_path: Path) -> None:
    made = without_digests(stored(tmp_path / "run", sound()[:3]))
    with made.open_for_append() as file:
        Run.append(file, sound()[3])
    audit = audit_run(made.folder, decode)
    assert (audit.rows, audit.count, audit.bound, audit.sealed) == (4, 0, 4, True)
    lines = made.trajectories_path.read_text(encoding="utf-8")
    made.trajectories_path.write_text(lines.replace("-0.25", "-0.5", 1), encoding="utf-8")
    assert "seal of run.yaml" in str(audit_run(made.folder, decode).first)


@pytest.mark.parametrize("lost", ["the first row", "the last row", "all rows"])
def test_a_lost_row_is_noticed_whatever_the_rest_says(lost: str, tmp_path: Path) -> None:
    made = stored(tmp_path / "run", sound())
    lines = made.trajectories_path.read_bytes().splitlines(keepends=True)
    kept = {"the first row": lines[1:], "the last row": lines[:-1], "all rows": []}[lost]
    made.trajectories_path.write_bytes(b"".join(kept))
    audit = audit_run(made.folder, decode)
    assert audit.count == 1 and "with 4 rows" in str(audit.first)


def test_a_record_without_its_limits_is_noticed(tmp_path: Path) -> None:
    made = stored(tmp_path / "run", sound())
    record = made.record
    record["settings"] = {}
    (made.folder / "run.yaml").write_text(yaml.safe_dump(record), encoding="utf-8")
    first = audit_run(made.folder, decode).first
    assert first is not None and first.file.name == "run.yaml" and "changed after the run was closed" in first.what


def test_a_run_that_was_stopped_is_not_closed_until_it_goes_on(tmp_path: Path) -> None:
    made = stored(tmp_path / "run", sound()[:2])
    with suppress(KeyboardInterrupt), made.open_for_append() as file:
        Run.append(file, sound()[2])
        raise KeyboardInterrupt
    audit = audit_run(made.folder, decode)
    assert audit.count == 1 and "not closed" in str(audit.first) and not audit.sealed
    with made.open_for_append():
        pass
    assert audit_run(made.folder, decode).count == 0


def test_a_number_that_json_has_not_is_named_with_its_place(tmp_path: Path) -> None:
    audit = audit_after(tmp_path / "run", lambda row: items(part(row, 1), "logprobs").__setitem__(0, float("nan")))
    assert audit.first is not None and "segments[1].logprobs[0]" in audit.first.what and audit.first.line == 2


def test_a_key_that_stands_twice_is_noticed_since_readers_take_one(tmp_path: Path) -> None:
    made = without_digests(stored(tmp_path / "run", sound()))
    whole = made.trajectories_path.read_text(encoding="utf-8")
    made.trajectories_path.write_text(whole.replace('"valid": true', '"valid": false, "valid": true', 1), "utf-8")
    assert "the key 'valid' twice" in str(audit_run(made.folder, decode).first)


def test_a_line_that_a_kill_cut_short_is_told_from_the_others(tmp_path: Path) -> None:
    made = stored(tmp_path / "run", sound())
    whole = made.trajectories_path.read_bytes()
    made.trajectories_path.write_bytes(whole[:-40])
    audit = audit_run(made.folder, decode)
    assert audit.rows == 3
    assert audit.first is not None and audit.first.line == 4
    assert "cut short" in audit.first.what


@pytest.mark.parametrize("line", [b'{"a": \n', b"[1, 2]\n", b"\xff\xfe\n", b"null\n"])
def test_a_line_that_is_no_object_is_a_violation_and_the_rest_is_read(line: bytes, tmp_path: Path) -> None:
    made = stored(tmp_path / "run", sound())
    made.trajectories_path.write_bytes(line + made.trajectories_path.read_bytes())
    audit = audit_run(made.folder, decode)
    assert audit.rows == 4
    assert [violation.line for violation in audit.violations] == [1]


def test_a_run_yaml_that_cannot_be_read_is_a_violation(tmp_path: Path) -> None:
    made = stored(tmp_path / "run", sound())
    for text in ("settings: [", "just words", "other: 1"):
        (made.folder / "run.yaml").write_text(text, encoding="utf-8")
        first = audit_run(made.folder, decode).first
        assert first is not None and first.file.name == "run.yaml"


def test_broken_metrics_are_a_violation_with_their_line(tmp_path: Path) -> None:
    made = stored(tmp_path / "run", sound())
    made.metrics_path.write_text('{"step": 1}\n{"step"\n', encoding="utf-8")
    first = audit_run(made.folder, decode).first
    assert first is not None and "line 2" in str(first) and first.file.name == "metrics.jsonl"


def test_token_data_of_other_tokens_or_of_no_trajectory_is_a_violation(tmp_path: Path) -> None:
    first, *_ = sound()
    run = stored(tmp_path / "run", sound())
    data = TokenData(first.question.id, first.seed, 0, 1.0, spans=agent_spans(first))
    for one, says in (
        (data, None),
        (replace(data, spans=((1, 2),)), "stand at the tokens"),
        (replace(data, question_id="other"), "no such question"),
    ):
        write_jsonl(run.folder / FILE, [one.to_json()])
        found = audit_run(run.folder).first
        assert (found is None) if says is None else (found is not None and says in str(found))
    (run.folder / FILE).write_text('{"schema": 9}\n', encoding="utf-8")
    assert "line 1: token data of schema 9" in str(audit_run(run.folder).first)


def test_a_run_without_trajectories_is_a_violation(tmp_path: Path) -> None:
    first = audit_run(Run.create(tmp_path / "run", {}).folder).first
    assert first is not None and "no trajectories" in first.what


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a run"):
        audit_run(tmp_path)


@pytest.mark.slow
def test_an_audit_of_a_wreck_ends(tmp_path: Path) -> None:
    audit = audit_run(stored(tmp_path / "run", [sound()[0]] * 300).folder, decode, most=10)
    assert len(audit.violations) == 10
    assert audit.count == 299  # all of them are counted
