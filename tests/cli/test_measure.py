"""`coseek measure`."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.conftest import Type
from tests.models.http_site import Said, site

from coseek.core.files import JsonObject
from coseek.data.dataset import Dataset
from coseek.data.question import Question, save_questions
from coseek.data.run import Run
from coseek.data.trec import read_qrels, read_run
from coseek.labels.label_folder import LabelFolder
from coseek.retrieval.index import build_index, open_index


@pytest.fixture(scope="module")
def noise(world: Path) -> Path:
    folder = world.with_name("world-noise")
    build_index(world, "random", folder)
    return folder


def means(printed: str) -> dict[str, dict[str, float]]:
    """Retriever → metric → mean over all questions."""
    overall = [summary for summary in json.loads(printed)["summaries"] if summary["group"] == "all"]
    return {summary["run"]: {name: value["mean"] for name, value in summary["metrics"].items()} for summary in overall}


@pytest.mark.medium
def test_retrievers_are_compared_in_pairs(world: Path, index: Path, noise: Path, coseek: Type) -> None:
    words = ("measure", world, index, noise, "--split", "test", "--metrics", "recall@5,ndcg@10")
    printed = coseek(*words, "--json").out
    assert means(printed)[str(index)]["recall@5"] > 0.3 > means(printed)[str(noise)]["recall@5"]
    assert json.loads(printed)["costs"][str(index)]["index_bytes"] > 10_000
    (pair,) = (comparison for comparison in json.loads(printed)["comparisons"] if comparison["group"] == "all")
    assert (pair["run"], pair["metrics"]["recall@5"]["p"] < 0.01) == (str(noise), True)
    shown = coseek(*words)
    assert shown.code == 0
    assert all(word in shown.out for word in ("retriever", "recall@5", "ndcg@10", "1 hop", "< .001"))


def test_what_is_written_for_trec_measures_the_same(world: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    words = ("measure", world, "--split", "test", "--json", "--metrics", "mrr,ndcg@10,answer_hit@3", "--depth", 20)
    first = coseek(*words, index, "--trec-out", tmp_path / "out")
    run = tmp_path / "out" / f"{index.name}.run"
    assert len(read_run(run)) == 30
    assert len(read_qrels(tmp_path / "out" / "qrels.txt")) == 30
    again = coseek(*words, run, "--qrels", tmp_path / "out" / "qrels.txt")
    assert list(means(again.out).values()) == list(means(first.out).values())


def test_nobodys_grades_are_replaced_by_others(world: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    out = tmp_path / "out"
    words = ("measure", world, index, "--split", "test", "--count", 3, "--trec-out", out)
    assert coseek(*words).code == coseek(*words).code == 0
    mine = (out / "qrels.txt").read_text(encoding="utf-8").replace(" 1\n", " 2\n", 1)
    (out / "qrels.txt").write_text(mine, encoding="utf-8")
    assert "holds other grades than are measured with" in coseek(*words).sentence
    (out / "qrels.txt").unlink()
    assert ".run without qrels.txt; choose another folder for --trec-out" in coseek(*words).sentence


def test_a_retriever_that_is_away_scores_nothing(world: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    pytest.importorskip("httpx")
    (tmp_path / "away.yaml").write_text("retriever: remote\nurl: http://127.0.0.1:9/\nretries: 0\n", encoding="utf-8")
    words = ("measure", world, index, tmp_path / "away.yaml", "--split", "test", "--count", 2)
    outcome = coseek(*words, "--metrics", "mrr", "--json")
    tree = json.loads(outcome.out)
    assert outcome.code == 1
    assert "2 of 2 searches failed" in outcome.err
    assert tree["stops"][str(tmp_path / "away.yaml")] == {"fault": 2}
    assert means(outcome.out)[str(tmp_path / "away.yaml")] == {}
    assert means(outcome.out)[str(index)]["mrr"] > 0


def test_questions_without_gold_are_measured_by_answers(world: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    questions = [replace(question, gold_ids=()) for question in Dataset(world).questions("test")]
    save_questions(tmp_path / "bare.jsonl", questions)
    printed = coseek("measure", tmp_path / "bare.jsonl", index, "--json").out
    assert list(means(printed)[str(index)]) == ["answer_hit@5", "answer_hit@20"]
    assert means(printed)[str(index)]["answer_hit@20"] > 0.2


@pytest.mark.medium
def test_a_reranker_that_ranked_nothing_is_reported(world: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    pytest.importorskip("httpx")
    wrote: JsonObject = {"message": {"role": "assistant", "content": "Sorry."}, "finish_reason": "stop"}
    answer: JsonObject = {"choices": [wrote], "data": [{"id": "m", "object": "model"}]}
    with site(lambda _: Said(answer)) as there:
        (tmp_path / "lw.yaml").write_text(f"{{retriever: listwise, over: {index}, model: {there.url}, depth: 10}}\n")
        (tmp_path / "over.yaml").write_text("{retriever: cached, over: lw.yaml, path: lists}\n")
        words = (world, "--split", "test", "--count", 4)
        for name in ("lw.yaml", "over.yaml"):
            measured = coseek("measure", *words, tmp_path / name, "--depth", 10, "--metrics", "mrr@10")
            assert f"{tmp_path / name}: 4 of 4 orders could not be read" in measured.err
        ran = coseek("run", *words, "--agent", "rules", "--retriever", tmp_path / "lw.yaml", "--out", tmp_path / "r")
        assert re.search(r"lw\.yaml: (\d+) of \1 orders could not be read", ran.err)
    assert "could not be read" not in coseek("measure", *words, index, "--metrics", "mrr@5").err


def test_a_runs_searches_have_their_own_gold(run: Path, index: Path, noise: Path, tmp_path: Path, coseek: Type) -> None:
    each = tmp_path / "each.jsonl"
    words = ("measure", run, index, noise, "--metrics", "recall@5,mrr@10,answer_hit@5", "--json")
    printed = coseek(*words, "--per-question", each)
    by_run = means(printed.out)
    assert by_run[str(index)]["mrr@10"] > 0.5 > by_run[str(noise)]["mrr@10"]
    rows = [json.loads(line) for line in each.read_text(encoding="utf-8").splitlines()]
    searches = [len(trajectory.searches) for trajectory in Run(run).trajectories()]
    assert len(rows) == 2 * sum(searches) > 2 * len(searches)
    again = [row["metrics"]["recall@5"] for row in rows if "recall@5" in row["metrics"]]
    (all_, *_) = (summary for summary in json.loads(printed.out)["summaries"] if summary["group"] == "all")
    assert all_["questions"] == 12 and any(again)
    refused = coseek("measure", run, index, "--split", "test")
    assert "no splits" in refused.sentence


def test_a_label_folder_is_measured_by_its_positives(run: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    assert coseek("label", run, "--method", "gold", "--out", tmp_path / "labels", "negatives=3").code == 0
    shown = coseek("measure", tmp_path / "labels", index, "--metrics", "mrr", "--json")
    sets = list(LabelFolder(tmp_path / "labels").sets())
    expected: dict[str, list[float]] = {}
    opened = open_index(index)
    for row in sets:
        ids = [hit.passage.id for hit in opened.search([row.query], 100)[0]]
        expected.setdefault(row.question.id, []).append(1 / (1 + ids.index(row.positive)) if row.positive in ids else 0)
    value = means(shown.out)[str(index)]["mrr"]
    assert value == pytest.approx(sum(sum(some) / len(some) for some in expected.values()) / len(expected))


def test_questions_that_a_run_file_lacks_count_as_asked_or_not(tmp_path: Path, coseek: Type) -> None:
    questions = [Question(ident, "?", gold_ids=("a",)) for ident in ("q1", "q2")] + [Question("q3", "?")]
    save_questions(tmp_path / "q.jsonl", questions)
    (tmp_path / "one.run").write_text("q1 Q0 a 1 1 x\n", encoding="utf-8")
    words = ("measure", tmp_path / "q.jsonl", tmp_path / "one.run", "--metrics", "mrr")
    counted = coseek(*words)
    assert "0.500" in counted.out
    assert "1 of 3 questions have no relevant passage" in " ".join(counted.out.split())
    left_out = coseek(*words, "--missing", "leave-out")
    assert "1.000" in left_out.out
    assert "2 questions are not in the run file" in " ".join(left_out.out.split())
