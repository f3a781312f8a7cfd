"""The audit of what lies beside runs: labels, grades, log-probabilities, metrics and checkpoints."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from bench.tampering import NETWORK, RULES, make_runs, stored
from tests.training.test_checkpoint import SHARD, state

from coseek.core.errors import DataError
from coseek.core.files import JsonObject, read_jsonl, read_yaml, write_jsonl, write_yaml
from coseek.data.audit import Audit
from coseek.data.run import Run
from coseek.data.run_seal import DIGEST, SEAL, bound
from coseek.graders.grading import judge_claims, verdict_cache
from coseek.graders.judge import Claim, OracleJudge
from coseek.pipelines.folder_audit import audits_of
from coseek.pipelines.labelling import label_runs, label_settings
from coseek.training.trainer.checkpoint import save_checkpoint
from coseek.training.trainer.metrics import MetricsLog
from coseek.world.oracle import Oracle


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_runs(tmp_path_factory.mktemp("runs"), [(RULES, "search-r1"), (NETWORK, "search-r1")], count=3)


@pytest.fixture(scope="module")
def labels(runs: list[Path]) -> Path:
    """Gold labels of the run of rules."""
    settings, own = label_settings([str(runs[0])], {}, {"method": "gold"})
    label_runs(settings, own, runs[0].parent / "labels")
    return runs[0].parent / "labels"


def audit(folder: Path, **named: str) -> Audit:
    ((_, found),) = audits_of(folder, **named)
    return found


def said(folder: Path, **named: str) -> str:
    return "\n".join(map(str, audit(folder, **named).violations))


def changed(path: Path, edit: Callable[[list[JsonObject]], object], keep_digests: bool = False) -> None:
    """Edit the rows of a file; those with digests get new ones if they are not kept."""
    rows = [row for _, row in read_jsonl(path)]
    edit(rows)
    fresh = (bound(row) if DIGEST in row and not keep_digests else row for row in rows)
    write_jsonl(path, fresh)


def unsealed(folder: Path) -> Path:
    """The label folder as it was before it was closed, without digests."""
    write_yaml(folder / "labels.yaml", {k: v for k, v in read_yaml(folder / "labels.yaml", "").items() if k != SEAL})
    for name in ("labels.jsonl", "dropped.jsonl"):
        rows = [row for _, row in read_jsonl(folder / name)]
        write_jsonl(folder / name, ({k: v for k, v in row.items() if k != DIGEST} for row in rows))
    return folder


def test_labels_for_which_an_agent_was_run_are_sound(runs: list[Path], tmp_path: Path) -> None:
    settings, own = label_settings([str(runs[0])], {}, {"method": "dr-synth", "scorer": "gold", "count": 2})
    label_runs(settings, own, tmp_path / "labels")
    found = [audit for _, audit in audits_of(tmp_path / "labels")]
    assert len(found) == 2 and all(one.rows and not one.count for one in found)


@pytest.mark.slow
def test_labels_are_made_again_from_the_run_the_retriever_and_the_scores(labels: Path, tmp_path: Path) -> None:
    found = audit(labels)
    assert found.rows == found.derived == found.bound > 0 and found.sealed and not found.violations
    copied = unsealed(shutil.copytree(labels, tmp_path / "labels"))
    assert audit(copied).count == 0 and not audit(copied).sealed
    changed(copied / "labels.jsonl", lambda rows: rows[0].update(positive=rows[0]["negatives"][0], negatives=[]))  # type: ignore[index]
    assert "positive does not follow from the runs" in said(copied)
    changed(copied / "labels.jsonl", lambda rows: rows.clear())
    assert audit(copied).count == len(list(read_jsonl(labels / "labels.jsonl")))
    assert "is missing from the runs" in said(copied)


def asked_at_once(rows: list[JsonObject]) -> None:
    """Make the first two searches of every run two queries of its first turn."""
    for row in rows:
        row["searches"][1]["turn"] = 1  # type: ignore[index, call-overload]


def test_labels_that_are_older_than_the_turns_of_a_history_are_no_fault(tmp_path: Path) -> None:
    (run,) = make_runs(tmp_path, [(RULES, "react")], count=2)
    changed(run / "trajectories.jsonl", asked_at_once)
    settings, own = label_settings([str(run)], {}, {"method": "gold"})
    label_runs(settings, own, tmp_path / "labels")
    path = unsealed(tmp_path / "labels") / "labels.jsonl"
    text = path.read_text(encoding="utf-8")
    old = re.sub(r',\s*"same_turn":\s*true', "", text)
    assert old != text and audit(tmp_path / "labels").count == 0
    path.write_text(old, encoding="utf-8")
    assert audit(tmp_path / "labels").count == 0


def test_a_label_folder_is_bound_by_its_seal_and_every_row_by_its_digest(labels: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(labels, tmp_path / "labels")
    changed(copied / "labels.jsonl", lambda rows: rows[0].update(seed=5), keep_digests=True)
    assert "it was changed after it was written" in said(copied) and "labels.yaml" in said(copied)
    write_yaml(copied / "labels.yaml", {"settings": {}, "identity": "x"})
    assert "the folder was not closed" in said(copied)


def test_labels_whose_runs_have_gone_are_no_fault_and_that_is_said(labels: Path, tmp_path: Path) -> None:
    copied = unsealed(shutil.copytree(labels, tmp_path / "labels"))
    record = read_yaml(copied / "labels.yaml", "record")
    settings = record["settings"]
    assert isinstance(settings, dict)
    write_yaml(copied / "labels.yaml", {**record, "settings": {**settings, "runs": ["gone"]}})
    assert audit(copied).count == 0 and "gone" in audit(copied).left_out["labels made again"]


def judged(runs: list[Path], place: Path) -> tuple[Path, Path]:
    """A copy of the run of rules with verdicts of the oracle, and their file."""
    run = Run(shutil.copytree(runs[0], place))
    judge = OracleJudge(Oracle.load(runs[0].parent / "world"), str(runs[0].parent / "world"))
    claims = [Claim(one.question, one.answer) for one in run.trajectories() if one.answer]
    cache = verdict_cache(run.folder, judge)
    judge_claims(judge, claims, cache)
    return run.folder, cache.path


def test_a_verdict_follows_from_the_judge_and_is_on_a_response_of_the_run(runs: list[Path], tmp_path: Path) -> None:
    folder, verdicts = judged(runs, tmp_path / "run")
    (share,) = audit(folder).shares
    assert audit(folder).count == 0 and share.rows == share.derived == share.bound > 0
    kept = verdicts.read_bytes()
    changed(verdicts, lambda rows: rows[1].update(right=not rows[1]["right"]))
    assert "right does not follow" in said(folder)
    changed(verdicts, lambda rows: rows[1].update(text="yes"), keep_digests=True)
    assert "its digest is another one" in said(folder)
    verdicts.write_bytes(kept)
    changed(verdicts, lambda rows: rows[1].update(response="nobody said so"))
    assert "nobody gave this response" in said(folder)
    verdicts.write_bytes(kept)
    changed(verdicts, lambda rows: rows[1].update(asked="other gold answers"))
    assert "asked does not follow" in said(folder)
    changed(verdicts, lambda rows: rows[1].pop("asked"))
    assert audit(folder).count == 0  # an older coseek wrote none


def test_log_probabilities_are_computed_again_by_the_model_that_sampled_them(runs: list[Path], tmp_path: Path) -> None:
    policy = str(runs[1].parent / "policy-search-r1")
    (share,) = audit(runs[1], model=policy).shares
    assert audit(runs[1], model=policy).count == 0 and share.rows == share.derived > 0
    one = stored(runs[1], bound=False)
    part = next(part for part in one.rows[0]["segments"] if part.get("logprobs"))  # type: ignore[union-attr]
    part["logprobs"][0] -= 0.1  # type: ignore[index, call-overload, operator]
    (tmp_path / "trajectories.jsonl").write_bytes(one.lines())
    (tmp_path / "run.yaml").write_text(one.spelt_record(), encoding="utf-8")
    assert audit(tmp_path).count == 0
    assert "token 0 has the log-probability" in said(tmp_path, model=policy)
    assert "not the one" in audit(runs[0], model=policy).left_out["log-probabilities"]


def trained(folder: Path) -> Path:
    """Metrics and checkpoints as a training writes them."""
    log = MetricsLog(folder / "metrics.jsonl")
    for step in (1, 2, 3):
        log.write({"step": step, "reward": step / 7})
        log.sync()
        save_checkpoint(folder / "checkpoints", {**state(step), "metrics_seal": log.seal})
    return folder


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "another value": (
        lambda folder: changed(folder / "metrics.jsonl", lambda rows: rows[0].update(reward=0.5)),
        "its first 3 rows are not those before step-000003",
    ),
    "a lost row": (
        lambda folder: changed(folder / "metrics.jsonl", lambda rows: rows.pop()),
        "it has 2 rows, and step-000003 was made after 3",
    ),
    "another order": (
        lambda folder: changed(folder / "metrics.jsonl", lambda rows: rows.reverse()),
        "step 2 stands behind step 3",
    ),
    "no metrics": (lambda folder: (folder / "metrics.jsonl").unlink(), "no metrics.jsonl beside the checkpoints"),
    "another shard": (
        lambda folder: (folder / "checkpoints" / "step-000003" / SHARD).write_bytes(b""),
        "the file was changed in the checkpoint",
    ),
    "a lost shard": (
        lambda folder: (folder / "checkpoints" / "step-000003" / SHARD).unlink(),
        "the file is missing from the checkpoint",
    ),
    "no manifest": (lambda folder: (folder / "checkpoints/step-000003/manifest.json").unlink(), "there is no manifest"),
    "another step": (
        lambda folder: (folder / "checkpoints" / "step-000003").rename(folder / "checkpoints" / "step-000004"),
        "it is of step 3, and its folder of step 4",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_metrics_are_bound_by_the_checkpoints_and_these_by_their_manifests(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    folder = trained(tmp_path / "run")
    found = audit(folder)
    assert (found.rows, found.bound, found.count) == (3, 3, 0) and found.shares[0].bound == 2
    edit, what = BROKEN[name]
    edit(folder)
    assert what in said(folder)


def test_a_log_that_goes_on_is_bound_as_one_that_never_stopped(tmp_path: Path) -> None:
    whole, part = MetricsLog(tmp_path / "whole"), MetricsLog(tmp_path / "part")
    whole.write({"step": 1})
    part.write({"step": 1})
    position = part.position
    part.write({"step": 9})
    part = MetricsLog(tmp_path / "part", position)
    for log in (whole, part):
        log.write({"step": 2, "reward": 1.0})
    assert part.seal == whole.seal


def test_a_folder_without_anything_to_audit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a run"):
        list(audits_of(tmp_path))
