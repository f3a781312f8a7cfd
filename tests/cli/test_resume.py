"""A stopped run resumes, and ends as if it had never been stopped."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.cli.conftest import Type
from tests.serve.live import live

from coseek.agents.factory import settings_for
from coseek.agents.limits import Limits
from coseek.core.errors import RetrieverError
from coseek.core.files import JsonObject
from coseek.core.settings import dump_settings, fixed_settings
from coseek.data.passage import Hit
from coseek.data.run import Run
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.pipelines.agent_run import RunSettings
from coseek.pipelines.labelling import fixed_parts
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import LayeredRetriever

pytestmark = pytest.mark.medium


def rows(run: Path) -> list[JsonObject]:
    """The stored trajectories without their timings."""
    return [{**trajectory.to_json(), "timings": None} for trajectory in Run(run).trajectories()]


class Interrupted(LayeredRetriever):
    """A retriever that fails after `left` searches."""

    name, identity, left = "interrupted", "interrupted", 1_000

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        self.left -= 1
        if self.left < 0:
            raise RetrieverError("the shelf fell down")
        return self.over.search(queries, k)


def stop_midway(
    words: list[str], how: signal.Signals, run: Path, first: str = "trajectories.jsonl"
) -> subprocess.CompletedProcess[str]:
    """Start a command, and send it a signal as soon as its file `first` is not empty."""
    with subprocess.Popen(
        [sys.executable, "-m", "coseek.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell makes background processes ignore Ctrl-C, and child processes inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        while process.poll() is None and not any(path.stat().st_size for path in run.glob(first)):
            time.sleep(0.001)
        process.send_signal(how)
        out, err = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.slow
def test_a_stopped_run_ends_as_if_it_had_not_been(world: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    words = ["run", str(world), "--split", "dev", "--agent", "faulty-expert", "--retriever", str(index)]
    words += ["--samples", "8"]
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    stop_midway([*words, "--out", str(stopped)], signal.SIGKILL, stopped)
    kept = len(Run(stopped).trajectories_path.read_bytes().splitlines())
    assert kept < 240, "the run was over before it could be stopped"
    assert coseek(*words, "--out", stopped, "--resume").code == 0
    assert coseek(*words, "--out", whole).code == 0
    assert len(rows(whole)) == 240
    assert rows(stopped) == rows(whole)


@pytest.mark.slow
def test_a_stopped_command_says_in_one_sentence_how_to_go_on(world: Path, index: Path, tmp_path: Path) -> None:
    words = ["run", str(world), "--split", "dev", "--agent", "expert", "--retriever", str(index), "--samples", "64"]
    done = stop_midway([*words, "--out", str(tmp_path / "run")], signal.SIGINT, tmp_path / "run")
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1].endswith("Resume with: the same command with --resume")
    assert "Traceback" not in done.stderr and not list((tmp_path / "run").glob(".*"))


def test_resume_begins_a_run_that_is_not_there_and_changes_none_that_is_finished(home: Path, coseek: Type) -> None:
    assert coseek(*WORDS, "--resume").code == 0
    before = Path("out/trajectories.jsonl").read_bytes()
    assert len(before.splitlines()) == 8 and coseek(*WORDS, "--resume").code == 0
    assert Path("out/trajectories.jsonl").read_bytes() == before


@pytest.mark.slow
def test_questions_of_a_dead_retriever_are_asked_again(world: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    served = Interrupted(open_index(index))
    with live({"bm25": served}) as url:
        far = tmp_path / "far.yaml"
        far.write_text(f"retriever: remote\nurl: {url}\nindex: bm25\nretries: 1\nbackoff_s: 0\n", encoding="utf-8")
        words = ("run", world, "--split", "dev", "--count", 6, "--agent", "expert", "--retriever", far, "--out")
        assert coseek(*words, tmp_path / "whole").code == 0
        served.left = 1
        assert coseek(*words, tmp_path / "r").code == 0
        assert any(row["stop"] == "retriever_error" for row in rows(tmp_path / "r"))
        served.left = 1_000
        assert coseek(*words, tmp_path / "r", "--resume").code == 0
    assert rows(tmp_path / "r") == rows(tmp_path / "whole")


def test_more_samples_change_none_of_the_first(world: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    words = ("run", world, "--split", "dev", "--count", 5, "--agent", "faulty-expert", "--retriever", index)
    assert coseek(*words, "--out", tmp_path / "one").code == 0
    assert coseek(*words, "--out", tmp_path / "three", "--samples", 3).code == 0
    three = rows(tmp_path / "three")
    assert all(row in three for row in rows(tmp_path / "one"))


@pytest.mark.parametrize(
    ("setting", "differs"),
    [("patience.concurrency=1&patience.insistent=true&key_env=KEY", False), ("send.seed=null", True)],
)
def test_how_a_server_is_asked_may_change_when_work_goes_on(setting: str, differs: bool) -> None:
    def kept(setting: str) -> tuple[JsonObject, JsonObject]:
        address = f"http://127.0.0.1:9#model=m&{setting}"
        run = RunSettings(questions="q", retriever="r", agent=settings_for(address), limits=Limits())
        return fixed_settings(RunSettings, dump_settings(run)), fixed_parts({"method": "agentic-r", "scorer": address})

    pairs = zip(kept(setting), kept("patience.concurrency=4"), strict=True)
    assert [first != other for first, other in pairs] == [differs] * 2


# --- a run goes on with what it was begun with


SHAPE = LaptopSettings(hidden=16, layers=("conv",), heads=2, kv_heads=1, feed_forward=16, vocabulary=300)


@pytest.fixture
def home(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with copies of the world and its index, which tests may change."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(world, tmp_path / "set")
    build_index(Path("set"), "bm25", Path("bm25"))
    return tmp_path


WORDS = ("run", "set", "--split", "dev", "--count", 8, "--agent", "rules", "--retriever", "bm25", "--out", "out")


def half(run: Path) -> bytes:
    """Truncate a finished run to its first four rows, as a kill would."""
    path = Run(run).trajectories_path
    kept = b"".join(path.read_bytes().splitlines(keepends=True)[:4])
    path.write_bytes(kept)
    return kept


def written(run: Path) -> dict[str, list[int]]:
    """Question → token ids of its trajectory. Log-probabilities vary in the last bits with the number of rows."""
    return {
        trajectory.question.id: [ident for segment in trajectory.segments for ident in segment.ids]
        for trajectory in Run(run).trajectories()
    }


def refused(coseek: Type, what: str, *words: object) -> None:
    """Check that the run in `out` is not resumed, that the sentence names the difference, and that no row is added."""
    before = Run(Path("out")).trajectories_path.read_bytes()
    outcome = coseek(*(words or WORDS), "--resume")
    assert outcome.code == 2
    sentence = f"out was begun with other parts than there are now (what differs: {what}); restore these parts"
    assert outcome.sentence.startswith(sentence)
    assert Run(Path("out")).trajectories_path.read_bytes() == before


def test_a_run_of_replaced_questions_does_not_go_on(home: Path, coseek: Type) -> None:
    assert coseek(*WORDS).code == 0
    whole = rows(Path("out"))
    last = list(Run("out").trajectories())[-1].question.id
    half(Path("out"))
    path = home / "set" / "questions.dev.jsonl"
    true = path.read_bytes()
    lines = [json.loads(line) for line in true.splitlines()]
    (left,) = [line for line in lines if line["id"] == last]  # one that is still to be asked
    left["answers"] = ["something else"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    refused(coseek, "questions")
    path.write_bytes(b"".join(true.splitlines(keepends=True)[::-1]))
    refused(coseek, "questions")  # other questions are the first eight now
    path.write_bytes(true + b"\n")
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
    mine, prompt = Path("mine.yaml").read_text(), Path("words.yaml").read_text()
    Path("mine.yaml").write_text(mine + "opens_with_search: true\n")
    refused(coseek, "protocol", *words)
    Path("mine.yaml").write_text(mine)
    Path("words.yaml").write_text(prompt.replace("{question}", "{question} !"))
    refused(coseek, "prompt_template", *words)
    Path("words.yaml").write_text("# a remark changes nothing\n" + prompt)
    assert coseek(*words, "--resume").code == 0


def test_a_start_that_failed_on_a_wrong_path_is_no_run(home: Path, coseek: Type) -> None:
    for wrong in (("--retriever", "bm26"), ("--agent", "nowhere"), ("--protocol", "mine.yaml")):
        assert coseek(*WORDS, *wrong).code == 2
        assert not Path("out").exists()
    Run.create(Path("out"), {"questions": "elsewhere"}).trajectories_path.touch()  # it failed before its first row
    assert coseek(*WORDS).code == 0
    assert len(rows(Path("out"))) == 8
    assert "holds a run already" in coseek(*WORDS).sentence
