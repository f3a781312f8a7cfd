"""The audit of whole runs: what follows from the agent's tokens and the hits is worked out again."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import yaml
from bench.tampering import RULES, SAMPLED, make_runs, measure, stored
from bench.tampering_changes import HARMFUL, Stored

from coseek.core.files import JsonObject
from coseek.data.audit import Audit
from coseek.pipelines.run_audit import audit_stored_run

Edit = Callable[[Stored], object]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_runs(tmp_path_factory.mktemp("runs"), [(RULES, "search-r1"), (SAMPLED, "s3")], count=3)


def parts(row: JsonObject, name: str) -> list[JsonObject]:
    return cast(list[JsonObject], row[name])


def hit(row: JsonObject) -> JsonObject:
    return next(one for search in parts(row, "searches") for one in parts(search, "hits"))


def question(row: JsonObject) -> JsonObject:
    return cast(JsonObject, row["question"])


def settings(run: Stored) -> JsonObject:
    return cast(JsonObject, run.record["settings"])


def audit_after(edit: Edit, run: Path, place: Path, bound: bool = False, retriever: str | None = None) -> Audit:
    """Audit a run after a change; as an older version wrote it, without digests, if not `bound`."""
    one = stored(run, bound)
    edit(one)
    place.mkdir()
    (place / "trajectories.jsonl").write_bytes(one.lines())
    (place / "run.yaml").write_text(one.spelt_record(), encoding="utf-8")
    return audit_stored_run(place, retriever)


def reworded(run: Stored) -> None:
    part = parts(run.rows[0], "segments")[2]
    ids = run.tokenizer.encode(str(part["text"]).replace(" ", "  ", 1))
    part.update(ids=list(ids), text=run.tokenizer.decode(ids))


CHANGES: dict[str, tuple[Edit, str]] = {
    "another answer": (lambda run: run.rows[0].update(answer="nobody"), "answer is 'nobody'"),
    "another query": (lambda run: parts(run.rows[0], "searches")[0].update(query="who"), "search 1 asks 'who'"),
    "another observation": (reworded, "not what the environment writes here"),
    "another passage": (lambda run: hit(run.rows[0]).update(text="It is."), "not what the environment writes here"),
    "another tag": (lambda run: parts(run.rows[0], "segments")[1].update(tag=""), "it is '' by the agent"),
    "another protocol": (lambda run: run.rows[0].update(protocol="s3"), "and the run is of 'search-r1'"),
    "another validity": (lambda run: run.rows[0].update(valid=False, format_error="no"), "valid is False"),
    "another seed": (lambda run: run.rows[0].update(seed=5), "the seed 5 is none of this question's"),
    "another question": (lambda run: question(run.rows[0]).update(question="who?"), "not that of the questions file"),
    "another gold answer": (lambda run: question(run.rows[0]).update(answers=["x"]), "not that of the questions file"),
    "a question of another file": (lambda run: question(run.rows[0]).update(id="q?"), "asks no such question"),
    "a lost row": (lambda run: run.rows.pop(), "1 of the run's 3 rows are missing"),
    "no rows at all": (lambda run: run.rows.clear(), "3 of the run's 3 rows are missing"),
    "no limits": (lambda run: settings(run).pop("limits"), "it holds no limits"),
    "other limits": (lambda run: cast(JsonObject, settings(run)["limits"]).update(max_turns=9), "the limits are not"),
    "no agent": (lambda run: settings(run).pop("agent"), "it names no agent with a protocol"),
    "another seed of the run": (lambda run: settings(run).update(seed=4), "the seed is not the one"),
    "another temperature": (
        lambda run: cast(JsonObject, settings(run)["agent"]).update(temperature=1.0),
        "the temperature is not the one",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_follows_is_worked_out_again_without_any_digest(name: str, runs: list[Path], tmp_path: Path) -> None:
    edit, says = CHANGES[name]
    audit = audit_after(edit, runs[0], tmp_path / "run")
    assert says in "\n".join(map(str, audit.violations)), audit.violations


def test_a_passage_that_the_corpus_has_not_is_noticed_where_the_agent_never_saw_it(
    runs: list[Path], tmp_path: Path
) -> None:
    def unseen(run: Stored) -> None:  # the title is shown, the fields of a passage are not
        hit(run.rows[0])["meta"] = {"page": 3}

    audit = audit_after(unseen, runs[0], tmp_path / "run")
    assert audit.count == 1 and "is not that of the corpus" in str(audit.first)


def test_with_the_retriever_every_query_is_searched_again(runs: list[Path], tmp_path: Path) -> None:
    index = str(runs[0].with_name("index"))
    sound = audit_stored_run(runs[0], index)
    assert (sound.count, dict(sound.left_out), sound.derived, sound.bound) == (0, {}, 3, 3)

    def scored(run: Stored) -> None:
        hit(run.rows[0])["score"] = cast(float, hit(run.rows[0])["score"]) * 1.5

    audit = audit_after(scored, runs[0], tmp_path / "run", retriever=index)
    assert audit.count == 1 and "finds other passages or scores now" in str(audit.first)


def test_files_that_have_changed_or_gone_since_are_told_and_are_no_fault_of_the_run(
    runs: list[Path], tmp_path: Path
) -> None:
    shutil.copytree(runs[0].parent, tmp_path / "all")
    run = tmp_path / "all" / runs[0].name
    text = (run / "run.yaml").read_text(encoding="utf-8").replace(str(runs[0].parent), str(tmp_path / "all"))
    record = {name: value for name, value in yaml.safe_load(text).items() if name != "seal"}
    (run / "run.yaml").write_text(yaml.safe_dump(record), encoding="utf-8")
    rows = run / "trajectories.jsonl"
    rows.write_bytes(stored(runs[0], bound=False).lines())
    assert audit_stored_run(run).count == 0
    path = tmp_path / "all" / "world" / "questions.test.jsonl"
    path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[1:]), encoding="utf-8")
    shutil.rmtree(tmp_path / "all" / "index")
    audit = audit_stored_run(run)
    assert audit.count == 0 and audit.derived == 3
    assert audit.left_out["questions and rows"] == "the questions file has changed since"
    assert "no index folder" in audit.left_out["hits"]


@pytest.mark.slow
def test_harmful_changes_are_found_and_harmless_ones_are_not_flagged(runs: list[Path], tmp_path: Path) -> None:
    figures = measure(runs, tmp_path / "changed", len(HARMFUL), seed=1)
    assert figures.good, (figures.share, figures.flagged, figures.tracebacks)
    assert figures.derived.total() >= 0.7 * figures.made.total()  # without any digest


@pytest.mark.slow
def test_a_change_is_the_same_with_and_without_digests(runs: list[Path]) -> None:
    for kind in HARMFUL:
        changed = [stored(runs[1], bound) for bound in (True, False)]
        for one in changed:
            one.other = stored(runs[0], bound=False).rows
            kind(one, random.Random(2))
        if kind.__name__ not in ("a_flipped_bit", "a_cut_file", "a_key_twice"):
            assert changed[0].content() == changed[1].content(), kind.__name__
