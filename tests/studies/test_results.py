from pathlib import Path

import pytest

from coseek.core.errors import DataError
from coseek.core.files import JsonObject, write_jsonl
from coseek.measure.report import ROWS
from coseek.studies.results import values_of
from coseek.studies.study import Arm, Study


def scores(folder: Path, *runs: str) -> Path:
    rows: list[JsonObject] = [
        {"run": run, "id": "q", "metrics": {"em": float(number)}} for number, run in enumerate(runs)
    ]
    write_jsonl(folder / ROWS, rows)
    return folder


def em(folder: Path, row: str) -> float:
    return values_of(Arm(of="x", row=row), folder)["q"]["em"]


def test_a_row_of_scores_is_found_by_what_is_behind_its_run_and_none_is_taken_for_another(tmp_path: Path) -> None:
    served = scores(tmp_path / "served", *(f"a/b{end}" for end in ("", " → generator", ", all", ", no-opening-all")))
    assert [em(served, row) for row in ("a/b", "generator", "all", "no-opening-all")] == [0, 1, 2, 3]
    for row in ("after", "opening-all"):
        with pytest.raises(DataError, match="no single run"):
            em(served, row)
    assert em(scores(tmp_path / "one", "a/b"), "after") == 0
    with pytest.raises(DataError, match="no single run"):
        em(scores(tmp_path / "two", "a, all", "b, all"), "all")


def test_gen_acc_is_its_span_check_on_a_road_without_a_judge() -> None:
    one = Study.model_validate({
        "claim": "c", "place": "p", "at": {"real": 1}, "metrics": ["gen_acc", "cover_em", "em"],
        "arms": {"A": "x", "B": "y"}, "expect": ["A > B", {"gen_acc": "A < B"}, {"em": "A > B"}],
    })  # fmt: skip
    real = one.on("real")
    assert real.metrics == ("cover_em", "em") and [each.metric for each in real.expect] == ["", "cover_em", "em"]
    assert one.on("laptop") == one
