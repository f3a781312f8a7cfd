"""Generators and judges from the command line: a tiny model answers badly, and everything around it is exact."""

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Type

from coseek.data.dataset import Dataset
from coseek.data.run import Run
from coseek.library import run_agent
from coseek.models.laptop import LaptopSettings, make_policy


@pytest.fixture(scope="module")
def model(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained network: its answers are wrong and deterministic."""
    folder = tmp_path_factory.mktemp("frozen") / "generator"
    texts = [passage.text for passage in Dataset(world).corpus]
    make_policy(LaptopSettings(hidden=16, feed_forward=16, heads=2, vocabulary=400), texts, (), folder, seed=0)
    (folder / "generator.yaml").write_text(
        'prompt: " {question}{passages} So :"\npassage: " {title} # {number} : {text}"\n', encoding="utf-8"
    )
    return folder


@pytest.fixture(scope="module")
def runs(world: Path, index: Path, run: Path) -> list[Path]:
    faulty = world.with_name("faulty-expert")
    run_agent(world, "faulty-expert", index, faulty, split="test", count=12)
    return [run, faulty]


@pytest.mark.slow
def test_a_run_scores_as_a_component(runs: list[Path], model: Path, world: Path, tmp_path: Path, coseek: Type) -> None:
    graders = ("--answer-with", model, "--judge", world, "--budget", 120)
    outcome = coseek("score", *runs, *graders, "--out", tmp_path / "s", "--json")
    assert outcome.code == 0, outcome.err
    tree = json.loads(outcome.out)
    own, component = tree["summaries"][0]["metrics"], tree["component"]["summaries"][0]["metrics"]
    assert own["em"]["mean"] > 0.8 > component["em"]["mean"]
    assert own["judge_acc"]["n"] == own["gen_acc"]["n"] == 12
    assert 0 < component["context_tokens"]["mean"] <= 120
    assert len(tree["generator"]["identity"]) == 64 and tree["judges"][0]["oracle"] == str(world)
    rows = [json.loads(line) for line in (tmp_path / "s" / "questions.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 2 * 12
    assert {row["run"] for row in rows} == {*map(str, runs), *(f"{run} → generator" for run in runs)}
    assert json.loads((tmp_path / "s" / "scores.json").read_text()) == tree
    assert "As a component" in (tmp_path / "s" / "scores.md").read_text()
    assert "<script" not in (tmp_path / "s" / "scores.html").read_text()


@pytest.mark.slow
def test_every_serving_is_paired_with_the_first(
    world: Path, index: Path, model: Path, tmp_path: Path, coseek: Type
) -> None:
    run = tmp_path / "searcher"
    agent = ("--agent", "expert", "--protocol", "s3-think", "--retriever", index)
    assert coseek("run", world, "--split", "test", "--count", 12, *agent, "--out", run).code == 0
    words = ("score", run, "--answer-with", model, "--judge", world, "--metrics", "gen_acc,em", "--json")
    names = ("selected", "all", "no-opening", "no-opening-all", "rounds:1")
    outcome = coseek(*words, "--serve", ",".join(names))
    assert outcome.code == 0, outcome.err
    tree = json.loads(outcome.out)
    tokens = {row["run"]: row["metrics"]["context_tokens"]["mean"] for row in tree["servings"]["summaries"]}
    selected, every, later, later_all, first = (tokens[f"{run}, {name}"] for name in names)
    assert every > later_all > later and every > selected > later and every > first
    assert tree["component"]["summaries"][0]["metrics"]["context_tokens"]["mean"] == selected
    paired = [(row["run"], row["against"], set(row["metrics"])) for row in tree["servings"]["comparisons"]]
    measured = {"gen_acc", "em", "context_passages", "context_tokens"}
    assert paired == [(f"{run}, {name}", f"{run}, selected", measured) for name in names[1:]]
    (sheet,) = run.glob("reply.*.jsonl")
    written = sheet.read_bytes()
    again = coseek(*words, "--serve", "no-opening,all")  # nothing is asked twice
    assert sheet.read_bytes() == written
    rows = {row["run"]: row["metrics"] for row in json.loads(again.out)["servings"]["summaries"]}
    assert rows[f"{run}, all"]["context_tokens"]["mean"] == every
    assert "--answer-with" in coseek("score", run, "--serve", "all").sentence
    assert "'most' cannot be served" in coseek(*words, "--serve", "most").sentence


@pytest.mark.slow
def test_judges_are_compared(runs: list[Path], model: Path, world: Path, coseek: Type) -> None:
    outcome = coseek("score", runs[0], "--judge", world, "--judge", model)
    assert "Cohen's κ" in outcome.out
    tree = json.loads(coseek("score", runs[0], "--judge", world, "--judge", model, "--json").out)
    (row,) = tree["agreement"]
    assert row["judged"] + row["unread"] > 0 and row["unread"] > 0  # an untrained network says neither yes nor no


def test_a_metric_without_its_judge_and_a_domain_without_data_sets_are_refused(runs: list[Path], coseek: Type) -> None:
    assert "gen_acc needs a judge" in coseek("score", runs[0], "--metrics", "gen_acc").sentence
    assert "do not say which data set" in coseek("score", runs[0], "--in-domain", "nq").sentence


def test_questions_that_a_stopped_run_never_reached_are_missing_unless_they_are_others_now(
    run_to_spoil: Path, world: Path, tmp_path: Path, coseek: Type
) -> None:
    path = Run(run_to_spoil).trajectories_path
    path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:5]), encoding="utf-8")
    assert json.loads(coseek("score", run_to_spoil, "--json").out)["summaries"][0]["missing"] == 7
    assert "7 questions are missing" in " ".join(coseek("score", run_to_spoil).out.split())
    shutil.copytree(world, tmp_path / "world")
    for file, old, new in (
        (run_to_spoil / "run.yaml", str(world), str(tmp_path / "world")),
        (tmp_path / "world" / "questions.test.jsonl", " ?", "  ?"),
    ):
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")
    outcome = coseek("score", run_to_spoil)
    assert "has changed since" in outcome.err and "are missing" not in outcome.out


def test_a_leaderboard_has_a_line_for_each_system(runs: list[Path], tmp_path: Path, coseek: Type) -> None:
    out = tmp_path / "board"
    outcome = coseek("leaderboard", f"the <expert>={runs[0]}", runs[1], "--in-domain", "world", "--out", out)
    assert outcome.code == 0, outcome.err
    text = (out / "leaderboard.md").read_text(encoding="utf-8")
    assert text.index("the <expert>") < text.index("faulty-expert (search-r1) on world-bm25")
    assert "world *" in text
    assert "the &lt;expert&gt;" in (out / "leaderboard.html").read_text(encoding="utf-8")
    tree = json.loads((out / "leaderboard.json").read_text(encoding="utf-8"))
    assert {place["dataset"] for place in tree["places"]} == {"world"}
    assert "twice" in coseek("leaderboard", f"a={runs[0]}", f"a={runs[1]}").sentence


@pytest.mark.slow
def test_a_combination_gain_is_fair(runs: list[Path], model: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    words = ("combination-gain", runs[0], "--retriever", index, "--answer-with", model, "--ks", "1,3")
    outcome = coseek(*words, "--metric", "recall", "--out", tmp_path / "gain", "--json")
    assert outcome.code == 0, outcome.err
    tree = json.loads(outcome.out)
    points = {point["run"]: point["metrics"] for point in tree["points"]}
    assert list(points) == ["naive RAG, k = 1", "naive RAG, k = 3", "naive RAG, as many as the agent", "agent"]
    agent, matched = points["agent"], points["naive RAG, as many as the agent"]
    assert agent["context_passages"]["mean"] == pytest.approx(matched["context_passages"]["mean"])
    assert agent["recall"]["mean"] > matched["recall"]["mean"] >= points["naive RAG, k = 1"]["recall"]["mean"]
    assert "<svg" in (tmp_path / "gain" / "combination-gain.html").read_text(encoding="utf-8")
    assert "whole numbers from 1 on" in coseek(*words[:-1], "0,x").sentence
    assert "not sound" not in coseek("audit", runs[0]).out


# --- reading reasonings


def test_more_reasonings_cover_more_and_all_everything(run: Path, world: Path, tmp_path: Path, coseek: Type) -> None:
    words = ("reasoning", run, "--read-with", world, "--latest", "1,2,all", "--out", tmp_path / "read", "--json")
    outcome = coseek(*words)
    assert outcome.code == 0, outcome.err
    assert [row["latest"] for row in json.loads(outcome.out)["rows"]] == ["k = 1", "k = 2", "k = all"]
    rows = [json.loads(line) for line in (tmp_path / "read" / "questions.jsonl").read_text().splitlines()]
    covered = {name: {row["id"]: row["metrics"].get("coverage") for row in rows if row["run"] == name}
               for name in ("k = 1", "k = 2", "k = all")}  # fmt: skip
    known = [ident for ident, share in covered["k = all"].items() if share is not None]
    one, two, every = (covered[f"k = {latest}"] for latest in ("1", "2", "all"))
    assert known and all(one[ident] <= two[ident] <= every[ident] == 1 for ident in known)
    assert any(one[ident] < 1 for ident in known)


def test_a_list_of_other_words_is_refused(run: Path, world: Path, coseek: Type) -> None:
    outcome = coseek("reasoning", run, "--read-with", world, "--latest", "1,some")
    assert outcome.code == 2 and "write for example 1,2,all" in outcome.err
