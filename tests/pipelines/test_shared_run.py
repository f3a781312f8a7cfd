"""Fears about runs that several workers share: other rows than one worker's, and a kill that loses or doubles some."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.measure.samples import run as sampled
from tests.pipelines.shared_run_run import shared
from tests.processes import KILLED, run_workers
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from coseek.core.errors import SettingError
from coseek.core.files import json_line
from coseek.data.run import Run
from coseek.pipelines.agent_run import take_over_runs

LOGPROBS = re.compile(r'"logprobs": \[([^]]*)\]')


def rows(run: Path) -> list[str]:
    """The stored rows in their order, without the seconds that they took."""
    lines = (run / "trajectories.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.dumps({**json.loads(line), "timings": {}}) for line in lines]


def logprobs(rows: list[str]) -> list[float]:
    return [float(value) for row in rows for found in LOGPROBS.findall(row) for value in found.split(",") if value]


def run_well(count: int, mode: str, folder: Path) -> list[str]:
    run_workers(count, shared, mode, folder)
    assert not (folder / "run" / "parts").exists()
    return rows(folder / "run")


@pytest.mark.slow
def test_two_workers_store_the_rows_that_one_stores_of_a_policy_that_samples(tmp_path: Path) -> None:
    shared("policy", tmp_path / "alone")
    alone = rows(tmp_path / "alone" / "run")
    assert len(alone) == len(set(alone)) == 60
    two = run_well(2, "policy", tmp_path / "two")
    assert [LOGPROBS.sub("", row) for row in two] == [LOGPROBS.sub("", row) for row in alone]
    # Their last bits depend on the rows that are sampled together, with one worker too.
    assert len(logprobs(alone)) > 1000 and logprobs(two) == pytest.approx(logprobs(alone), abs=1e-5)


@pytest.mark.slow
def test_what_a_killed_worker_ran_is_taken_over_by_another_number_of_workers(tmp_path: Path) -> None:
    shared("expert", tmp_path / "alone")
    alone = rows(tmp_path / "alone" / "run")
    with pytest.raises(ChildFailedError, match=KILLED):
        run_workers(2, shared, "die", tmp_path / "dead")
    part = Run(tmp_path / "dead" / "run" / "parts" / "1")
    there = part.done()
    assert 9 <= len(there) < 30
    shutil.copytree(tmp_path / "dead", tmp_path / "again")
    assert run_well(3, "expert", tmp_path / "dead") == alone
    shared("expert", tmp_path / "again")
    assert rows(tmp_path / "again" / "run") == alone


def test_a_kill_while_parts_are_taken_over_doubles_no_row_and_other_weights_are_refused(tmp_path: Path) -> None:
    whole, part = Run.create(tmp_path / "run", {}), Run.create(tmp_path / "run" / "parts" / "1", {})
    one = sampled(seed=7)
    asked = [replace(one.question, id=f"q{number}") for number in range(6)]
    lines = [json_line(replace(one, question=question).to_json()).rstrip("\n") for question in asked]
    for kept, some in ((whole, lines[0::2]), (part, lines[1::2])):
        kept.bind({"model": "a"})
        kept.trajectories_path.write_text("".join(f"{line}\n" for line in some))
    with part.trajectories_path.open("a") as file:
        file.write(lines[0][:20])  # a kill in the last line
    shutil.copytree(part.folder.parent, tmp_path / "parts")
    take_over_runs(whole, part.folder.parent)
    assert sorted(whole.trajectories_path.read_text().splitlines()) == lines and not part.folder.exists()
    with whole.trajectories_path.open("r+b") as file:
        file.truncate(whole.trajectories_path.stat().st_size - 30)  # a kill before the parts were removed
    shutil.copytree(tmp_path / "parts", part.folder.parent)
    take_over_runs(whole, part.folder.parent)
    assert sorted(whole.trajectories_path.read_text().splitlines()) == lines
    whole.arrange(["q5", "q4", "q3"])
    order = [json.loads(line)["question"]["id"] for line in whole.trajectories_path.read_text().splitlines()]
    assert order[:3] == ["q5", "q4", "q3"] and sorted(order[3:]) == ["q0", "q1", "q2"]
    other = Run.create(tmp_path / "run" / "parts" / "2", {})
    other.bind({"model": "b"})
    with pytest.raises(SettingError, match="model"):
        take_over_runs(whole, other.folder.parent)
    assert other.folder.exists()
