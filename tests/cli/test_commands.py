"""The commands one after another, as a newcomer types them."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Type
from tests.cli.test_bad_input import contents
from tests.core.test_lock import holder
from tests.hardware.paces import FAST, SLOW, processor
from tests.hub.hub_server import HubState
from tests.hub.test_sharing import (
    TINY,
    server as server,  # a fixture
)
from tests.models.tiny_policy import tiny_policy
from tests.retrieval.tiny_encoder import make_encoder
from tests.source_tree import ROOT

from coseek.core.files import write_jsonl, write_yaml
from coseek.core.lock import lock_folder
from coseek.core.settings import make_settings
from coseek.data.dataset import Dataset, draw
from coseek.data.run import Run
from coseek.data.trajectory import Trajectory
from coseek.hardware import placement
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.pipelines.agent_recipe import DataSettings
from coseek.retrieval.index import IndexCard


@pytest.mark.medium
def test_the_road_from_a_world_to_a_score(tmp_path: Path, coseek: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = coseek("world", "make", "w", "--size", "tiny", "train=10", "dev=20", "test=10")
    assert "questions: 10 train, 20 dev, 10 test" in made.out
    assert "bm25 over" in coseek("index", "w", "--out", "w-bm25").out
    ran = coseek("run", "w", "--split", "dev", "--agent", "expert", "--retriever", "w-bm25", "--out", "r")
    assert (ran.code, "em" in ran.out) == (0, True)
    scored = [json.loads(coseek("score", "r", "--budget", tokens, "--json").out) for tokens in (1, 100_000)]
    first, second = (result["summaries"][0]["metrics"] for result in scored)
    assert first["em"]["mean"] >= 0.9
    assert (first["budgeted_recall"]["mean"], second["budgeted_recall"]) == (0, second["recall"])
    assert "budgeted_recall: 30 tokens of passages" in coseek("score", "r", "--budget", 30).out
    audit = coseek("audit", "r", "--retriever", "w-bm25")
    assert audit.out.splitlines() == ["r: sound; 20 trajectories checked, 100% derived again, with a digest file"]
    assert audit.err == ""  # nothing was left out


@pytest.mark.medium
def test_the_next_step_a_command_names_works(tmp_path: Path, coseek: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("w", "my worlds/$(touch harm); 'a'"):
        output = coseek("world", "make", name, "--size", "tiny").out
        output = coseek(*shlex.split(output.partition("Next: coseek ")[2])).out
        assert coseek(*shlex.split(output.partition("Try: coseek ")[2])).code == 0
        assert (tmp_path / f"{name}-bm25" / "index.json").is_file()


def test_an_index_with_a_view_of_ones_own_says_how_it_is_searched(world: Path, tmp_path: Path, coseek: Type) -> None:
    view, out = tmp_path / "view.py", tmp_path / "index"
    view.write_text("from coseek.retrieval.views import QueryView\nVIEW = QueryView('the query')\n")
    output = coseek("index", world, "--out", out, f"view={view}").out
    assert "Try:" not in output
    (tmp_path / "mine.yaml").write_text(output.partition("its view: ")[2])
    assert coseek("search", tmp_path / "mine.yaml", "some words").code == 0


def test_search_gives_k_passages_a_query(index: Path, coseek: Type) -> None:
    entries = json.loads(coseek("search", index, "is", "in", "-k", 2, "--json").out)
    assert [entry["query"] for entry in entries] == ["is", "in"]
    assert all(len(entry["hits"]) == 2 for entry in entries)


@pytest.mark.slow
def test_a_folder_answers_with_its_source(tmp_path: Path, coseek: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "birds.md").write_text("# Herons\n\nThey wait.\n\n## Food\n\n[red] perch\n\n## End\n\nof it")
    (tmp_path / "notes" / "scan.pdf").write_bytes(b"%PDF-1.4 [bold]cut off")
    imported = coseek("data", "import", "documents", "notes", "size=50", "--out", "d")
    assert (imported.code, "failed: notes/scan.pdf: it is no whole PDF" in imported.out) == (0, True)
    assert coseek(*imported.out.partition("Next: coseek ")[2].split()).code == 0
    shown = coseek("search", "d-bm25", "perch", "--context", 1).out
    assert "Herons › Food  [red] perch" in shown
    assert [line.strip() for line in shown.splitlines()[-3:]] == ["path notes/birds.md", "↑ They wait.", "↓ of it"]
    ((entry,),) = (json.loads(coseek("search", "d-bm25", "perch", "--context", 1, "--json").out)[0]["hits"],)
    assert (entry["before"][0]["text"], entry["after"][0]["text"]) == ("They wait.", "of it")
    outcome = coseek("ask", "What do herons eat?", "--agent", "rules", "--retriever", "d-bm25")
    assert (outcome.code, "Herons" in outcome.out) == (0, True)
    quoted = coseek("ask", "What do herons do while they wait?", "--retriever", "d-bm25")
    assert (quoted.out, "source:\n  Herons: notes/birds.md" in quoted.err) == ("They wait.\n", True)
    silent = coseek("ask", "Who won the 1998 world cup?", "--retriever", "d-bm25")
    assert (silent.out, "source" in silent.err) == ("not in these documents\n", False)
    again = json.loads(coseek("data", "import", "documents", "notes", "--out", "d", "--json").out)
    assert again["kinds"]["markdown"] == {
        "files": 1, "read": 1, "in part": 0, "failed": 0, "left out": 0, "passages": 3, "words": 6,
    }  # fmt: skip
    refused = coseek("data", "import", "documents", "notes", "sizes=50", "--out", "d")
    assert (refused.code, "did you mean 'size'" in refused.err) == (2, True)


def test_a_run_remembers_everything(world: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    run = tmp_path / "r"
    words = ("run", world, "--split", "test", "--count", 3, "--agent", "expert", "--retriever", index, "--out", run)
    done = coseek(*words, "--samples", 2, "--seed", 5, "limits.max_turns=6", "--json")
    assert json.loads(done.out)["run"] == str(run) and not done.err
    settings = Run(run).settings
    assert settings["limits"] == {**settings["limits"], "max_turns": 6}  # type: ignore[dict-item]
    assert (settings["count"], settings["samples"], settings["seed"]) == (3, 2, 5)
    trajectories = list(Run(run).trajectories())
    assert len({(trajectory.question.id, trajectory.seed) for trajectory in trajectories}) == 6
    assert {trajectory.question.id for trajectory in trajectories} == {
        question.id for question in draw(Dataset(world).questions("test"), 3, 5)
    }


def test_an_unsound_run_ends_with_one_and_is_named(run_to_spoil: Path, coseek: Type) -> None:
    path = run_to_spoil / "trajectories.jsonl"
    written = path.read_text(encoding="utf-8")
    path.write_text(written.replace('"author": "agent"', '"author": "environment"', 1), encoding="utf-8")
    outcome = coseek("audit", run_to_spoil)
    assert outcome.code == 1
    assert "trajectories.jsonl, line 1" in outcome.out


def test_no_output_replaces_a_file_of_a_run_or_a_data_set(
    world: Path, index: Path, run_to_spoil: Path, tmp_path: Path, coseek: Type
) -> None:
    data, run = Path(shutil.copytree(world, tmp_path / "data")), run_to_spoil
    before = contents(data) | contents(run)
    refused = []
    (tmp_path / "notes.md").write_text("mine")
    for path in (run / "run.yaml", index / "index.json", tmp_path / "notes.md"):
        outcome = coseek("measure", data, index, "--split", "dev", "--per-question", path)
        assert outcome.code == 2 and "name a file that ends in .jsonl" in outcome.sentence
    assert (tmp_path / "notes.md").read_text() == "mine"
    for path in (data / "corpus.jsonl", data / "questions.dev.jsonl", data / "world.json"):
        refused.append(coseek("audit", "corpus", data, "--out", path))
    for path in (data / "questions.dev.jsonl", run / "trajectories.jsonl"):
        refused.append(coseek("measure", data, index, "--split", "dev", "--per-question", path))
        refused.append(coseek("data", "export", run, "--format", "messages", "--out", path))
    label = ("label", run, "--method", "gold", "--out", tmp_path / "labels", "--tevatron")
    for path in (data / "questions.dev.jsonl", tmp_path / "labels" / "labels.jsonl", run):
        refused.append(coseek(*label, path))
    assert [outcome.code for outcome in refused] == [2] * len(refused)
    assert (
        all("choose another name" in outcome.sentence for outcome in refused[:-1])
        and "is a folder" in refused[-1].sentence
    )
    assert contents(data) | contents(run) == before
    assert not (tmp_path / "labels").exists()
    assert coseek("audit", "corpus", data, "--out", tmp_path / "world.json").code == 0  # of no data set


@pytest.mark.medium
def test_an_export_of_documents_replaces_no_other_file(run: Path, tmp_path: Path, coseek: Type) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        assert coseek("data", "export", run, "--format", "atif", "--out", out).code == 0
    (out / "thesis.tex").write_text("all of it")
    assert "thesis.tex" in coseek("data", "export", run, "--format", "atif", "--out", out).sentence


@pytest.mark.slow
def test_a_run_keeps_its_precision(
    world: Path, index: Path, tmp_path: Path, coseek: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "WIDE", 1)  # a model of the tests is narrow
    (tmp_path / "agent.yaml").write_text(f"name: {tiny_policy(tmp_path / 'policy')}\nprecision: auto\n")
    words = ("run", world, "--split", "dev", "--count", 2, "--agent", tmp_path / "agent.yaml", "--retriever", index)
    taken = {}
    for first, then in ((FAST, SLOW), (SLOW, FAST)):
        out = tmp_path / f"run-{first}"
        processor(tmp_path / "cache", monkeypatch, first)
        assert coseek(*words, "--out", out, "limits.max_tokens=60").code == 0
        agent = Run(out).settings["agent"]
        assert isinstance(agent, dict)
        taken[first] = agent["precision"]
        processor(tmp_path / "cache", monkeypatch, then)
        assert coseek(*words, "--out", out, "limits.max_tokens=60", "--resume").code == 0
    assert taken == {FAST: "bfloat16", SLOW: "float32"}


@pytest.mark.slow
def test_a_model_folder_is_an_agent(world: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    texts = [passage.text for passage in Dataset(world).corpus]
    tags = ("<think>", "</think>", "<search>", "</search>", "<information>", "</information>", "<answer>", "</answer>")
    make_policy(LaptopSettings(hidden=16, feed_forward=16, heads=2), texts, tags, tmp_path / "policy", seed=0)
    (tmp_path / "policy" / "coseek.yaml").write_text("prompt_template: laptop\n", encoding="utf-8")
    words = ("run", world, "--split", "dev", "--count", 8, "--agent", tmp_path / "policy", "--retriever", index)
    budgets = ("limits.max_tokens=60", "--temperature", 1.0, "--samples", 2)
    assert coseek(*words, "--out", tmp_path / "r", *budgets).code == 0
    agent = Run(tmp_path / "r").settings["agent"]
    assert isinstance(agent, dict)
    assert (agent["protocol"], agent["prompt_template"], agent["temperature"]) == ("search-r1", "laptop", 1.0)
    assert "sound; 16 trajectories checked, 100% derived again" in coseek("audit", tmp_path / "r").out
    outcome = coseek("ask", "Who ?", "max_tokens=40", "--agent", tmp_path / "policy", "--retriever", index)
    assert (outcome.code, "no answer: the run ended by" in outcome.err or bool(outcome.out)) == (0, True)


def test_ask_prints_only_the_answer_to_stdout(index: Path, coseek: Type) -> None:
    outcome = coseek("ask", "Where was Ada born ?", "--agent", "rules", "--retriever", index)
    assert outcome.code == 0
    assert len(outcome.out.splitlines()) == 1
    assert "<search>" in outcome.err
    assert "[1]" in outcome.err


def test_an_agent_that_only_searches_owes_no_answer(index: Path, coseek: Type) -> None:
    words = ("ask", "Where was Ada born ?", "--agent", "rules", "--retriever", index)
    outcome = coseek(*words, "--protocol", "deepretrieval")
    assert (outcome.code, outcome.out) == (0, "")
    assert "are ready for a generator" in outcome.err and "no answer" not in outcome.err


def test_an_empty_question_is_not_answered_by_no_answer(index: Path, coseek: Type) -> None:
    assert "the question is empty" in coseek("ask", " ", "--retriever", index).sentence


def test_ask_takes_a_budget_as_run_spells_it(index: Path, coseek: Type) -> None:
    words = ("ask", "Where was Ada born ?", "--agent", "rules", "--retriever", index, "--json")
    stops = {"max_turns=4": "answered", "max_turns=0": "turn_limit", "limits.max_turns=0": "turn_limit"}
    for typed, stop in stops.items():
        assert Trajectory.from_json(json.loads(coseek(*words, typed).out)).stop.value == stop


def test_no_result_replaces_another_result_s_rows(run: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    out = tmp_path / "out"
    assert coseek("score", run, "--out", out).code == 0
    rows = (out / "questions.jsonl").read_bytes()
    for words in (
        ("combination-gain", run, "--retriever", index, "--answer-with", "base"),
        ("reasoning", run, "--read-with", "base"),
        ("credit", run),
    ):
        assert "something else already" in coseek(*words, "--out", out).sentence
    assert (out / "questions.jsonl").read_bytes() == rows


# --- the list of runs


def training(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True)
    write_yaml(folder / "recipe.yaml", {"recipe": {"about": "mine", "rl": {}}, "created": "2026-01-02T03:04:05+00:00"})
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".", 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_a_training_is_finished_where_its_table_is_and_else_says_how_far_it_is(tmp_path: Path, coseek: Type) -> None:
    table = "# mine\n\n| em | test |\n| --- | --- |\n| before | 0.1 [0, 1] |\n| after | 0.3 [0, 1] |\n"
    training(tmp_path / "runs/done", table_md=table)
    write_yaml(tmp_path / "runs/done/table/after.test/run.yaml", {"settings": {}})
    training(tmp_path / "runs/half", rl__metrics_jsonl='{"step": 1}\n{"step": 2}\n{"st')
    training(tmp_path / "runs/now")
    training(tmp_path / "runs/unmeasured", encoder__config_json="{}")
    unmeasured = {"encoder__config_json": "{}", "before_json": "{}", "metrics_jsonl": '{"step": 3}\n'}
    training(tmp_path / "runs/unmeasured-yet", **unmeasured)
    write_yaml(tmp_path / "runs/theirs/run.yaml", {"settings": {"traces": ["logs.jsonl"]}})
    with lock_folder(tmp_path / "runs/now"):
        rows = {Path(row["folder"]).name: row for row in json.loads(coseek("runs", tmp_path / "runs", "--json").out)}
    assert set(rows) == {"done", "half", "now", "unmeasured", "unmeasured-yet", "theirs"}
    assert (rows["done"]["state"], rows["done"]["result"]) == ("finished", "em on test: before 0.1, after 0.3")
    assert (rows["half"]["state"], rows["half"]["result"]) == ("stopped, rl step 2", "")
    assert (rows["unmeasured"]["state"], rows["unmeasured-yet"]["state"]) == ("finished", "stopped, step 3")
    assert rows["theirs"]["about"] == "logs: logs.jsonl"
    assert rows["now"]["state"] == "running" and rows["now"]["what"] == "agent"
    assert "done" in coseek("runs", tmp_path / "runs").out
    write_yaml(tmp_path / "recipe.yaml", {"extends": "quickstart"})  # of `coseek init`
    assert len(json.loads(coseek("runs", tmp_path, "--json").out)) == 6


def test_a_wrong_place_is_one_sentence(tmp_path: Path, coseek: Type) -> None:
    assert "coseek runs DIR" in coseek("runs", tmp_path / "nowhere").sentence
    assert "holds no training" in coseek("runs", tmp_path).out


# --- paths below ~


@pytest.mark.medium
def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coseek: Type) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    write_jsonl(home / "data" / "corpus.jsonl", [{"id": "a", "title": "Orlen", "text": "Orlen lies on the Tave."}])
    write_jsonl(home / "data" / "questions.test.jsonl", [{"id": "q", "question": "Orlen?", "answers": ["Tave"]}])
    assert coseek("index", "~/data", "--out=~/index").code == 0
    assert IndexCard.read(home / "index").corpus.passages == 1
    write_yaml(home / "bm25.yaml", {"retriever": "index", "path": "~/index", "settings": {}})
    for number, retriever in enumerate(("~/index", "~/bm25.yaml")):
        words = ("run", "~/data", "--split", "test", "--agent", "rules", "--retriever", retriever)
        assert coseek(*words, f"--out=~/run-{number}").code == 0
        assert (home / f"run-{number}" / "trajectories.jsonl").is_file()
    assert coseek("search", "~/index", "~/nothing of that name, a query").code == 0
    assert not list(here.iterdir())
    assert make_settings(DataSettings, {"folder": "~/data"}).folder == str(home / "data")


# --- a new project


TEXT = (ROOT / "src" / "coseek" / "cli" / "project" / "AGENTS.md").read_text(encoding="utf-8")
STEPS: list[tuple[str, str]] = re.findall(r"```sh\n(.*?)\n```\n\n```text\n(.*?)\n```", TEXT, flags=re.DOTALL)


def prints_expected_lines(expected: str, out: str) -> bool:
    """Whether the output contains every expected line, in order. `…` matches anything; columns may be wider."""
    rest = [" ".join(line.split()) for line in out.splitlines()]
    for line in expected.splitlines():
        parts = [re.escape(" ".join(piece.split())) for piece in line.split("…")]
        pattern = re.compile(".*".join(piece and rf" ?{piece} ?" for piece in parts))
        position = next((number for number, shown in enumerate(rest) if pattern.fullmatch(shown)), None)
        if position is None:
            return False
        rest = rest[position + 1 :]
    return True


@pytest.mark.slow
def test_a_new_project_prints_what_its_page_says(tmp_path: Path, coseek: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(STEPS) == 6
    outcome = coseek("init", tmp_path / "mine")
    names = {path.name for path in (tmp_path / "mine").iterdir()}
    assert outcome.code == 0 and names == {"AGENTS.md", "data", "recipe.yaml"}
    monkeypatch.chdir(tmp_path / "mine")
    for command, expected in STEPS:
        done = coseek(*shlex.split(command)[1:])
        assert done.code == 0 and prints_expected_lines(expected, done.out), f"{command}\n{done.out}{done.err}"


def test_init_takes_a_new_folder_alone(tmp_path: Path, coseek: Type) -> None:
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    assert coseek("init", tmp_path).sentence == f"{tmp_path} is not empty; name a new folder"
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8") == "mine"


# --- push and pull


@pytest.mark.slow
def test_a_pulled_agent_encoder_and_data_set_run(coseek: Type, world: Path, tmp_path: Path, server: HubState) -> None:
    make_policy(TINY, ["a few words"], (), tmp_path / "policy", 0)
    make_encoder(tmp_path / "encoder")
    for name, folder in (("policy", tmp_path / "policy"), ("encoder", tmp_path / "encoder"), ("data", world)):
        sent = coseek("push", folder, f"me/{name}")
        assert sent.code == 0 and "license: unknown" in sent.err and f"me/{name}: " in sent.out
        fetched = coseek("pull", f"me/{name}", tmp_path / "pulled" / name)
        assert fetched.code == 0 and "Try: coseek " in fetched.out
    data, encoder, agent = (tmp_path / "pulled" / name for name in ("data", "encoder", "policy"))
    made = coseek("index", data, "--retriever", "dense", "--encoder", encoder, "--out", tmp_path / "index")
    assert made.code == 0, made.err
    run = ("run", data, "--split", "test", "--agent", agent, "--retriever", tmp_path / "index")
    ended = coseek(*run, "--out", tmp_path / "run", "count=2", "limits.max_turns=1", "limits.max_turn_tokens=4")
    assert ended.code == 0, ended.err
    assert "apache-2.0" in coseek("push", data, "me/other", "--license", "MIT License").sentence


# --- two processes


@pytest.mark.medium
@pytest.mark.parametrize("more", [(), ("--resume",)], ids=["new", "resumed"])
def test_two_commands_never_share_a_folder(
    more: tuple[str, ...], world: Path, index: Path, tmp_path: Path, coseek: Type
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    playing = ("run", world, "--split", "dev", "--count", 2, "--agent", "faulty-expert", "--retriever", index)
    assert coseek(*playing, "--out", run).code == 0
    labelling = ("label", run, "--method", "agentic-r", "--scorer", "oracle")
    with holder("folder", out) as other:
        for words in (playing, labelling, ("train", "agent", "from-nothing")):
            sentence = f"{out} is being written by another process ({other.pid}); wait until it ends, or choose another"
            assert sentence in coseek(*words, "--out", out, *more).sentence
