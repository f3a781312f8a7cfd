"""From a folder of documents to what is trained on it, by the commands that a user types."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Outcome
from tests.retrieval.tiny_encoder import make_encoder

from coseek.cli.main import main
from coseek.core.files import read_jsonl
from coseek.data.dataset import Dataset
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.pipelines.agent_recipe import DataSettings
from coseek.pipelines.data_folder import make_data

ROOT = Path(__file__).parents[2]
QUICK = ("training.steps=2", "threads=1", "query_tokens=32", "passage_tokens=48")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def type_in(capsys: pytest.CaptureFixture[str], *words: object) -> Outcome:
    capsys.readouterr()
    return Outcome(main([str(word) for word in words]), *capsys.readouterr())


def succeed(capsys: pytest.CaptureFixture[str], *words: object) -> Outcome:
    outcome = type_in(capsys, *words)
    assert outcome.code == 0, outcome.err
    return outcome


def asked_town(capsys: pytest.CaptureFixture[str]) -> None:
    """`town`: a world's passages, imported from Markdown files, with a question that somebody asked."""
    Path("notes").mkdir()
    for number, passage in enumerate(make_world(WorldSettings(size="tiny", train=0, dev=0, test=0)).corpus):
        Path(f"notes/{number:03}.md").write_text(f"# {passage.title}\n\n{passage.text}\n", encoding="utf-8")
    succeed(capsys, "data", "import", "documents", "notes", "--out", "town")
    first = next(row for _, row in read_jsonl(Path("town/corpus.jsonl")))
    mine = {"id": "mine", "question": f"What is {first['title']}?", "answers": ["x"], "gold_ids": [first["id"]]}
    Path("town/questions.asked.jsonl").write_text(json.dumps(mine) + "\n")


@pytest.mark.slow
def test_documents_that_give_no_questions_train_a_retriever_by_their_headings_and_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = make_encoder(tmp_path / "tiny")
    succeed(capsys, "data", "import", "documents", ROOT / "docs" / "how-to", "--out", "pages")
    done = succeed(
        capsys, "train", "retriever", "documents", "data.folder=pages", f"encoder={encoder}", *QUICK, "--out", "out"
    )
    assert "headings and sentences" in done.err and "coseek ask" in done.out
    table = json.loads(Path("out/table.json").read_text())
    assert set(table["searchers"]) == {"BM25", "before", "trained", "BM25 + trained"} and table["questions"] == {}
    assert "Verdict: " in Path("out/table.md").read_text()
    outcome = succeed(capsys, "search", "out/hybrid.yaml", "how do I train a retriever", "--json")
    assert len(json.loads(outcome.out)[0]["hits"]) == 5


@pytest.mark.slow
def test_documents_are_asked_what_they_say_and_what_people_asked_is_measured_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = make_encoder(tmp_path / "tiny")
    asked_town(capsys)
    command = (
        "train", "retriever", "documents", "data.folder=town", "data.synthesis.count=40", f"encoder={encoder}", *QUICK,
        "--out", "out",
    )  # fmt: skip
    done = succeed(capsys, *command)
    assert "made from its passages" in done.err
    page = Path("out/table.md").read_text()
    for name in ("Questions: test", "Questions: own-asked", "Held-out turns", "BM25 + trained", "rules over BM25"):
        assert name in page
    tables = json.loads(Path("out/table.json").read_text())["questions"]
    runs = {summary["run"]: summary["metrics"]["recall@5"]["mean"] for summary in tables["own-asked"]["summaries"]}
    assert runs["BM25"] == 1.0, "the title stands in the question"
    weights = Path("out/encoder/model.safetensors").read_bytes()
    succeed(capsys, *command, "--resume")
    assert Path("out/encoder/model.safetensors").read_bytes() == weights
    assert Path("out/table.md").read_text() == page


AGENT = (
    "warm_start.sft={steps: 2, repeat_steps: 0, tokens_per_step: 1500}", "warm_start.one_shot=0.02", "threads=1",
    "rl={steps: 1, questions_per_step: 2, group_size: 2, evaluate_every: 0}",
    "table={questions: 2, dev_questions: 2, sampled: false}", "limits.max_turns=2", "limits.max_turn_tokens=24",
)  # fmt: skip


@pytest.mark.slow
def test_an_agent_is_trained_from_the_shipped_base_on_questions_made_of_the_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_town(capsys)
    shown = "warm_start.demonstrator=expert"  # who follows the paths of made questions
    command = (
        "train", "agent", "documents", "data.folder=town", "data.synthesis.count=40", shown, *AGENT, "--out", "out"
    )  # fmt: skip
    done = succeed(capsys, *command)
    assert "made from its passages" in done.err
    assert Path("out/data/questions.train.jsonl").exists() and not Path("town/questions.train.jsonl").exists()
    page = Path("out/table.md").read_text()
    assert "| recall | dev | test | own-asked |" in page
    assert all(f"| {row} |" in page for row in ("before", "after", "rules"))
    succeed(capsys, *command, "--resume")
    assert Path("out/table.md").read_text() == page
    succeed(capsys, "ask", "Who?", "--agent", "out/policy/trained", "--retriever", "out/data.index")


@pytest.mark.slow
def test_agent_and_retriever_are_trained_together_on_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = make_encoder(tmp_path / "tiny")
    asked_town(capsys)
    succeed(
        capsys, "train", "together", "documents", "data.folder=town", "data.synthesis.count=40", "rounds=1",
        *(f"agent.{pair}" for pair in AGENT), "agent.protocol=s3", f"start={encoder}", "start.index={view: query}",
        "labels.questions=4", "retriever.training.steps=1", "stop=null", "pairs={questions: 2}", "--out", "out",
    )  # fmt: skip
    assert len(list(read_jsonl(Path("out/round-1/labels/labels.jsonl")))) >= 4
    assert Path("out/round-1/retriever/encoder/model.safetensors").exists() and Path("out/table.md").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("data.folder=nowhere",), "there is no folder nowhere"),
        (("data.folder=empty",), "is empty"),
        (("data.folder=raw",), "coseek data import documents raw --out raw-data, then name raw-data"),
        (("data.folder=raw/a.md",), "is a file"),
        (("data.folder=index",), "name the data set that it was made from"),
        (("data.folder=set", "data.train=trian"), "did you mean 'train'"),
        (("data.folder=set", "data.questions=[x.jsonl]"), "there is no x.jsonl"),
        (("data.folder=set", "data.synthesis.cuont=3"), "did you mean 'data.synthesis.count'"),
    ],
)
def test_what_a_new_user_mistypes_is_one_sentence_with_the_way_out(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("empty", "raw", "index", "set"):
        Path(name).mkdir()
    Path("raw/a.md").write_text("# A\n\nwords")
    Path("index/index.json").write_text("{}")
    Path("set/corpus.jsonl").write_text('{"id": "1", "title": "A", "text": "words"}\n')
    Path("set/questions.train.jsonl").write_text('{"id": "1", "question": "A?", "answers": ["words"]}\n')
    done = type_in(capsys, "train", "retriever", "documents", *words)
    assert done.code == 2
    assert message in done.sentence
    assert not Path("runs").exists()


def asked_set(folder: Path, **splits: int) -> None:
    """A data set of 30 short passages with questions of some splits."""
    folder.mkdir()
    names = [f"Town{number}" for number in range(30)]
    rows = [{"id": name, "title": name, "text": f"{name} is a town at the river Lim{name}."} for name in names]
    Path(folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, count in splits.items():
        lines = [
            {"id": f"{split}{index}", "question": f"Where is {name}?", "answers": [f"Lim{name}"], "gold_ids": [name]}
            for index, name in enumerate(names[:count])
        ]
        (folder / f"questions.{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))


def test_a_data_set_without_a_dev_split_gets_one_from_its_training_questions_before_anything_is_trained(
    tmp_path: Path,
) -> None:
    asked_set(tmp_path / "set", train=20, test=5)
    data = DataSettings(folder=str(tmp_path / "set"))
    lines: list[str] = []
    make_data(data, tmp_path / "made", lines.append)
    make_data(data, tmp_path / "made", lines.append)
    assert len(lines) == 1 and "dev" in lines[0]
    made = Dataset(tmp_path / "made")
    ids = {split: {question.id for question in made.questions(split)} for split in ("train", "dev", "test")}
    assert [len(ids[split]) for split in ids] == [18, 2, 5]
    assert ids["train"] | ids["dev"] == {question.id for question in Dataset(tmp_path / "set").questions("train")}
    assert Dataset(tmp_path / "set").splits == ["test", "train"], "what was given stays as it is"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("agent", "documents", "data.folder=set", "--dry-run"), marks=pytest.mark.slow),
        ("agent", "documents", "data.folder=set"),
        ("together", "documents", "agent.data.folder=set"),
    ],
)
def test_a_data_set_with_too_few_questions_to_measure_by_is_refused_before_the_warm_start(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    asked_set(Path("set"), train=2)
    done = type_in(capsys, "train", *command)
    assert done.code == 2
    assert "2 training questions" in done.err and "--generator" in done.err
    assert not Path("runs").exists()
