"""A run goes on with what it was begun with: replaced weights, questions, prompts and indexes are refused by name."""

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Type
from tests.cli.test_resume import rows

from coseek.data.run import Run
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.retrieval.index import build_index

SHAPE = LaptopSettings(hidden=16, layers=("conv",), heads=2, kv_heads=1, feed_forward=16, vocabulary=300)


@pytest.fixture
def home(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with copies of the world and its index, which the tests may change."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(world, tmp_path / "set")
    build_index(Path("set"), "bm25", Path("bm25"))
    return tmp_path


WORDS = ("run", "set", "--split", "dev", "--count", 8, "--agent", "rules", "--retriever", "bm25", "--out", "out")


def half(run: Path) -> bytes:
    """Cut a finished run to its first four rows, as a kill leaves it."""
    path = Run(run).trajectories_path
    kept = b"".join(path.read_bytes().splitlines(keepends=True)[:4])
    path.write_bytes(kept)
    return kept


def written(run: Path) -> dict[str, list[int]]:
    """Question → every id of its trajectory. The last bits of log-probabilities depend on how many rows run at once."""
    return {one.question.id: [ident for part in one.segments for ident in part.ids] for one in Run(run).trajectories()}


def refused(coseek: Type, what: str, *words: object) -> None:
    """The run in `out` does not go on; the sentence says what differs, and no row was added."""
    before = Run(Path("out")).trajectories_path.read_bytes()
    outcome = coseek(*(words or WORDS), "--resume")
    assert outcome.code == 2
    said = f"out was begun with other parts than there are now (what differs: {what}); put back what it was begun with"
    assert outcome.sentence.startswith(said)
    assert Run(Path("out")).trajectories_path.read_bytes() == before


def test_a_run_of_replaced_questions_does_not_go_on(home: Path, coseek: Type) -> None:
    assert coseek(*WORDS).code == 0
    whole = rows(Path("out"))
    last = list(Run("out").trajectories())[-1].question.id
    half(Path("out"))
    asked = home / "set" / "questions.dev.jsonl"
    true = asked.read_bytes()
    lines = [json.loads(line) for line in true.splitlines()]
    (left,) = [line for line in lines if line["id"] == last]  # one that is still to be asked
    left["answers"] = ["something else"]
    asked.write_text("".join(json.dumps(line) + "\n" for line in lines))
    refused(coseek, "questions")
    asked.write_bytes(b"".join(true.splitlines(keepends=True)[::-1]))
    refused(coseek, "questions")  # other questions are the first eight now
    asked.write_bytes(true + b"\n")
    assert coseek(*WORDS, "--resume").code == 0
    assert rows(Path("out")) == whole


@pytest.mark.slow
def test_a_run_of_replaced_weights_does_not_go_on(home: Path, coseek: Type) -> None:
    words = [*WORDS[:5], 5, "--agent", "policy", "--prompt-template", "laptop", *WORDS[8:], "limits.max_turn_tokens=8"]
    for seed in (0, 1):
        make_policy(SHAPE, ["who wrote the book"], [], home / f"seed-{seed}", seed)
    shutil.copytree("seed-0", "policy")
    assert coseek(*words).code == 0
    whole = written(Path("out"))
    half(Path("out"))
    shutil.copyfile("seed-1/model.safetensors", "policy/model.safetensors")
    refused(coseek, "agent", *words)
    shutil.copyfile("seed-0/model.safetensors", "policy/model.safetensors")
    tokenizer = json.loads(Path("policy/tokenizer_config.json").read_text())
    Path("policy/tokenizer_config.json").write_text(json.dumps({**tokenizer, "eos_token": "w"}))
    refused(coseek, "agent, tokenizer", *words)  # a model folder's tokenizer is a part of it
    shutil.copyfile("seed-0/tokenizer_config.json", "policy/tokenizer_config.json")
    assert coseek(*words, "--resume").code == 0
    assert written(Path("out")) == whole


def test_a_run_does_not_go_on_under_another_prompt_or_protocol_of_the_same_name(home: Path, coseek: Type) -> None:
    from coseek.agents.prompt_template import FOLDER
    from coseek.agents.protocol import FOLDER as PROTOCOLS

    shutil.copyfile(PROTOCOLS / "search-r1.yaml", "mine.yaml")
    shutil.copyfile(FOLDER / "laptop.yaml", "words.yaml")
    words = (*WORDS, "--protocol", "mine.yaml", "--prompt-template", "words.yaml")
    assert coseek(*words).code == 0
    half(Path("out"))
    mine, said = Path("mine.yaml").read_text(), Path("words.yaml").read_text()
    Path("mine.yaml").write_text(mine + "opens_with_search: true\n")
    refused(coseek, "protocol", *words)
    Path("mine.yaml").write_text(mine)
    Path("words.yaml").write_text(said.replace("{question}", "{question} !"))
    refused(coseek, "prompt_template", *words)
    Path("words.yaml").write_text("# a remark changes nothing\n" + said)
    assert coseek(*words, "--resume").code == 0


def test_a_start_that_failed_on_a_wrong_path_is_no_run(home: Path, coseek: Type) -> None:
    for wrong in (("--retriever", "bm26"), ("--agent", "nowhere"), ("--protocol", "mine.yaml")):
        assert coseek(*WORDS, *wrong).code == 2
        assert not Path("out").exists()
    Run.create(Path("out"), {"questions": "elsewhere"}).trajectories_path.touch()  # it failed before its first row
    assert coseek(*WORDS).code == 0
    assert len(rows(Path("out"))) == 8
    assert "holds a run already" in coseek(*WORDS).sentence
