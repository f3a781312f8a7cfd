"""Labels and logs of other agents on the command line: what a user types, the resulting files, and mistakes."""

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest
from tests.cli.conftest import Type
from tests.retrieval.tiny_encoder import make_encoder
from tests.source_tree import ROOT
from tests.traces.chats import own_runs, search_chat, stored, write_log

from coseek.core.files import Json, JsonObject, read_jsonl, write_jsonl
from coseek.data.dataset import Dataset
from coseek.data.passage import Corpus
from coseek.data.question import load_questions
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.labels.label_folder import LabelFolder
from coseek.library import run_agent
from coseek.retrieval.index import build_index
from coseek.retrieval.retrievers.bm25 import Bm25

GUIDE = ROOT / "docs" / "how-to" / "logs-to-encoder.md"
SMALL = "encoder=encoder training.steps=2 training.batch_size=4 query_tokens=32 passage_tokens=32 held_out.share=0.2"


def their_logs(world: Path) -> list[JsonObject]:
    """Logs of a foreign agent: its own tool names, results as text."""
    bm25 = Bm25.over(Corpus.load(world / "corpus.jsonl"))
    rows: list[JsonObject] = []
    for question in load_questions(world / "questions.train.jsonl"):
        (hits,) = bm25.search([question.question], 2)
        shown = "\n".join(f"[{rank}] {hit.passage.text}" for rank, hit in enumerate(hits, start=1))
        call: JsonObject = {"name": "wiki_search", "arguments": json.dumps({"q": question.question})}
        messages: list[Json] = [
            {"role": "user", "content": question.question},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": call}]},
            {"role": "tool", "tool_call_id": "1", "content": shown},
            {"role": "assistant", "content": question.answers[0]},
        ]
        fields = {**question.to_json(), "answers": []}  # the oracle, which stands in for a rating model, needs its plan
        rows.append({"question": fields, "gold": [*question.answers], "messages": messages})
    return rows


@pytest.mark.slow
def test_the_guide_makes_an_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: Path, coseek: Type) -> None:
    monkeypatch.chdir(tmp_path)
    write_log(Path("logs.jsonl"), their_logs(world))
    make_encoder(Path("encoder"))
    (block,) = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    commands = [shlex.split(line)[1:] for line in block.strip().splitlines()]
    assert len(commands) == 4
    places = {"DATA": str(world), "SCORER": str(world)}  # the oracle of the world rates passages
    for command in commands:
        words = [places.get(word, word) for word in command]
        done = coseek(*words, *(SMALL.split() if words[0] == "train" else ()))
        assert done.code == 0, done.err
    labelled = Path("labels/theirs/labels.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(labelled) >= 10
    assert Path("runs/retriever/encoder/coseek.yaml").is_file()


def test_an_import_of_a_log_is_summarized_and_its_run_is_scored_viewed_and_sound(tmp_path: Path, coseek: Type) -> None:
    log = write_log(tmp_path / "log.jsonl", [{"messages": [*search_chat()], "gold": "Goethe"}])
    log.write_text(log.read_text() + '{"messages": [\n')
    imported = coseek("data", "import", "traces", log, "answers=gold", "--out", tmp_path / "run")
    assert imported.code == 0 and "left out: log.jsonl, line 2: not valid JSON" in imported.out
    assert "1 conversation (1 with gold answers), 1 search; 1 record left out" in imported.out
    assert json.loads((tmp_path / "run" / "source.json").read_text())["left_out"][0]["where"] == "log.jsonl, line 2"
    assert coseek("audit", tmp_path / "run").code == 0
    scored = json.loads(coseek("score", tmp_path / "run", "--json").out)
    assert scored["summaries"][0]["metrics"]["em"]["mean"] == 1
    assert coseek("view", tmp_path / "run").code == 0
    out = coseek("data", "export", tmp_path / "run", "--format", "messages", "--out", tmp_path / "out.jsonl", "--json")
    assert json.loads(out.out)["trajectories"] == 1
    again = coseek("data", "import", "traces", tmp_path / "out.jsonl", "--out", tmp_path / "again", "--json")
    assert json.loads(again.out)["with_answers"] == 1


def test_conversations_that_end_without_an_answer_are_counted(tmp_path: Path, coseek: Type) -> None:
    log = write_log(tmp_path / "log.jsonl", [{"messages": [*search_chat()[:4]]}])
    imported = coseek("data", "import", "traces", log, "--out", tmp_path / "run")
    assert "Without an answer: 1 conversation (answer=PATH names its place)" in imported.out


def test_mistakes_are_one_sentence_with_the_way_out(tmp_path: Path, coseek: Type) -> None:
    log = write_log(tmp_path / "log.jsonl", [{"messages": [*search_chat()]}])
    out = ("--out", tmp_path / "run")
    (tmp_path / "empty.jsonl").write_text("")
    for words, message in (
        ((log, "--split", "test"), "traces takes no --split"),
        ((tmp_path / "none.jsonl",), "there is no file"),
        ((log, "answers=gold.x"), "no record has anything at answers=gold.x"),
        ((log, "answer_s=x"), "answers"),
        ((log, "map=none.yaml"), "there is no mapping file none.yaml"),
        ((log, "messages=chat"), "no record has anything at messages=chat"),
        ((tmp_path / "empty.jsonl",), "no conversation found"),
    ):
        assert message in coseek("data", "import", "traces", *words, *out).sentence
    run = stored(tmp_path / "own", own_runs()).folder
    for folder, kind, message in (
        (run, "atf", "did you mean 'atif'"),
        (run, "messages", "ends in .jsonl"),
        (tmp_path, "atif", "not a run"),
    ):
        assert message in coseek("data", "export", folder, "--format", kind, *out).sentence
    if importlib.util.find_spec("inspect_ai") is None:
        assert "'coseek[inspect]'" in coseek("data", "export", run, "--format", "inspect", "--out", "own.eval").sentence
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    assert "something else already" in coseek("data", "export", run, "--format", "atif", *out).sentence


def test_an_agent_that_cannot_continue_a_log_is_refused(tmp_path: Path, world: Path, index: Path, coseek: Type) -> None:
    log = write_log(tmp_path / "logs.jsonl", their_logs(world))
    assert coseek("data", "import", "traces", log, "answers=gold", "--out", tmp_path / "run").code == 0
    words = ("label", tmp_path / "run", "--method", "agentic-r", "--scorer", world, "--retriever", index)
    sentence = coseek(*words, "--agent", "rules", "--out", tmp_path / "labels").sentence
    assert "gac=false" in sentence or "protocol" in sentence


def test_a_metric_that_was_asked_for_and_has_no_value_does_not_vanish(tmp_path: Path, coseek: Type) -> None:
    log = write_log(tmp_path / "log.jsonl", [{"messages": [*search_chat()]}])
    assert coseek("data", "import", "traces", log, "--out", tmp_path / "run").code == 0
    assert "f1: undefined" in coseek("score", tmp_path / "run", "--metrics", "searches,f1").out


# --- labels from the command line


@pytest.fixture(scope="module")
def ran(world: Path, index: Path) -> Path:
    """A run of the faulty expert, whose agent and retriever make the labels."""
    return run_agent(world, "faulty-expert", index, world.with_name("labelled-run"), split="train").folder


@pytest.mark.slow
def test_labels_take_the_runs_own_agent_and_retriever(ran: Path, tmp_path: Path, coseek: Type) -> None:
    out, rows = tmp_path / "labels", tmp_path / "rows.jsonl"
    words = ("label", ran, "--method", "agentic-r", "--scorer", "oracle", "--out", out, "--json", "--tevatron", rows)
    outcome = coseek(*words, "negatives=7", "limits.max_turns=3")
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert report["turns"] == report["labelled"] + sum(report["dropped"].values()) and report["left"] == 0
    assert max(len(label.negatives) for label in LabelFolder(out).sets()) == 7
    record = LabelFolder(out).record
    settings = record["settings"]
    assert isinstance(settings, dict)
    assert settings["agentic-r"]["negatives"] == 7 and settings["limits"]["max_turns"] == 3  # type: ignore[index,call-overload]
    assert len(str(record["identity"])) == 64 and {"versions", "commit", "created"} <= record.keys()
    exported = [row for _, row in read_jsonl(rows)]
    assert len(exported) == report["sets"]
    assert set(exported[0]) == {"query_id", "query", "positive_passages", "negative_passages"}
    assert " [SEP] " in str(exported[0]["query"])
    assert set(exported[0]["positive_passages"][0]) == {"docid", "title", "text"}  # type: ignore[index,arg-type]


def test_gold_labels_need_neither_agent_nor_scorer(ran: Path, tmp_path: Path, coseek: Type) -> None:
    outcome = coseek("label", ran, "--method", "gold", "--out", tmp_path / "g", "--count", 5)
    assert re.search(r"\d+ of \d+ search turns have a label, in \d+ label sets", outcome.out), outcome.err
    assert len({label.question.id for label in LabelFolder(tmp_path / "g").sets()}) <= 5


@pytest.mark.medium
def test_runs_of_two_agents_share_labels(ran: Path, world: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    rules = ("run", world, "--split", "dev", "--count", 3, "--agent", "rules", "--retriever", index)
    assert coseek(*rules, "--out", tmp_path / "run").code == 0
    together, out = ("label", ran, tmp_path / "run"), ("--out", tmp_path / "labels")
    assert coseek(*together, "--method", "gold", *out).code == 0
    assert len({label.question.id.split("-")[1] for label in LabelFolder(tmp_path / "labels").sets()}) == 2
    outcome = coseek(*together, "--method", "agentic-r", "--scorer", "oracle", "--out", tmp_path / "other")
    assert "name it with --agent" in outcome.sentence


@pytest.mark.medium
def test_passages_of_another_world_are_no_gold_passages(ran: Path, world: Path, tmp_path: Path, coseek: Type) -> None:
    make_world(WorldSettings(size="tiny", train=1, dev=1, test=1, seed=5)).save(tmp_path / "other")
    # Its texts in other words are its own passages still, and are compared with a warning.
    rows = [row | {"text": f"{row['text']} (1)"} for _, row in read_jsonl(world / "corpus.jsonl")]
    write_jsonl(tmp_path / "reworded.jsonl", rows)
    for source in ("other", "reworded.jsonl"):
        build_index(tmp_path / source, "bm25", tmp_path / f"{source}-bm25")
    options = ("--split", "test", "--count", 5)
    commands = (
        ("run", world, *options, "--agent", "rules", "--out", tmp_path / "run", "--retriever"),
        ("label", ran, "--method", "gold", "--out", tmp_path / "labels", "--retriever"),
        ("measure", world, *options),
        ("measure", ran),
    )
    for command in commands:
        assert "searches another corpus" in coseek(*command, tmp_path / "other-bm25").sentence
        done = coseek(*command, tmp_path / "reworded.jsonl-bm25")
        assert done.code == 0 and "have another title or text in the corpus" in done.err
    assert "another title" not in coseek("measure", world, *options, world.with_name("world-bm25")).err


@pytest.mark.medium
def test_resuming_finished_labels_changes_nothing(ran: Path, tmp_path: Path, coseek: Type) -> None:
    words = ("label", ran, "--method", "agentic-r", "--scorer", "gold", "--out", tmp_path / "a", "--count", 6)
    assert coseek(*words).code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert coseek(*words, "--resume").code == 0
    assert {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()} == before
    assert "holds labels already" in coseek(*words).sentence
    assert "min_lr = 60, and now 50" in coseek(*words, "min_lr=50", "--resume").sentence


@pytest.mark.medium
def test_a_mistake_about_labels_has_a_way_out(ran: Path, world: Path, tmp_path: Path, coseek: Type) -> None:
    agent, rows = tmp_path / "agent.yaml", tmp_path / "rows"
    agent.write_text("name: http://127.0.0.1:1\ntokenizer: bytes\n")
    rows.mkdir()
    gold, agentic = (ran, "--method", "gold"), (ran, "--method", "agentic-r", "--scorer", "oracle")
    for words, says in (
        ((ran, "--method", "agentic"), "did you mean 'agentic-r'?"),
        (agentic[:3], "name with --scorer"),
        ((*agentic[:3], "--scorer", "oracel"), "did you mean 'oracle'?"),
        ((*agentic, "negative=3"), "no setting named 'negative'"),
        ((*agentic, "limits.turns=3"), "no setting named 'limits.turns'"),
        ((*agentic, "max_turns=3"), "'max_turns'; the agent's budgets are a group: limits.max_turns="),
        ((*agentic, "--view", "querry"), "no query view named 'querry'"),
        ((*agentic, "--retriever", "nowhere"), "there is no retriever at nowhere"),
        ((ran, "--method", "dr-synth", "--agent", agent, "samples=4"), "one run 4 times; add --temperature 1"),
        ((world, "--method", "gold"), "is not a run"),
        ((*gold, "--tevatron", rows), f"{rows} is a folder; name a file in it"),
        ((*gold, "--out", world), "holds something else"),
        ((*gold, "--out", agent), "is a file; choose a folder"),
        (("negatives=3", *gold[1:]), "name a run folder"),
        ((ran, *gold), "two trajectories with the seed"),
    ):
        assert says in coseek("label", "--out", tmp_path / "x", *words).sentence


def test_a_run_without_gold_passages_gets_a_warning(world: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    rows = [question.to_json() | {"gold_ids": []} for question in Dataset(world).questions("test")[:2]]
    write_jsonl(tmp_path / "q.jsonl", rows)
    made = ("run", tmp_path / "q.jsonl", "--agent", "rules", "--retriever", index, "--out", tmp_path / "run")
    assert coseek(*made).code == 0
    outcome = coseek("label", tmp_path / "run", "--method", "gold", "--out", tmp_path / "labels")
    assert "no search has a label" in outcome.err and "--method answer-in-passage" in outcome.err
    assert coseek("label", tmp_path / "run", "--method", "opened-next", "--out", tmp_path / "used").code == 0


@pytest.mark.medium
def test_a_retriever_in_braces_labels_and_its_python_runs_only_if_it_is_named(
    world: Path, index: Path, tmp_path: Path, coseek: Type
) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from coseek.core.settings import Settings\n\n\nclass SETTINGS(Settings):\n    over: str\n\n\n"
        "def open(settings, opening):\n    return opening.open(settings.over)\n",
        encoding="utf-8",
    )
    run = ("run", world, "--split", "train", "--count", 4, "--agent", "faulty-expert", "--retriever")
    noisy, named = (f"{{retriever: {name}, over: {index}}}" for name in ("noisy", own))
    for name, retriever in (("noisy", noisy), ("named", named)):
        assert coseek(*run, retriever, "--out", tmp_path / name).code == 0
    for words in (("noisy",), ("named", "--retriever", named)):
        done = coseek(
            "label", tmp_path / words[0], *words[1:], "--method", "gold", "--out", tmp_path / f"{words[0]}-labels"
        )
        assert done.code == 0, done.err
    refused = coseek("label", tmp_path / "named", "--method", "gold", "--out", tmp_path / "refused")
    assert f"{own}, which is run only if you name it" in refused.sentence
