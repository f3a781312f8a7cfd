"""The labels of a round: what a fault leaves undone, whether all settings of the runs arrive, labels that several
workers make, and a scorer that a command serves: one too many, one left running, a fault that nobody reads.

The scripted expert stands in the place of every agent, and BM25 in the place of every retriever: nothing is trained."""

import os
import shutil
import signal
import socket
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from tests.labels.small import Faulty
from tests.pipelines.small_together import small as recipe
from tests.processes import KILLED, run_workers
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from coseek.agents.drivers import Agent
from coseek.agents.scripted_agent import ScriptedAgentModel
from coseek.core.errors import RunError, SettingError
from coseek.core.plugins import plugin_names
from coseek.core.progress import NoProgress
from coseek.core.settings import make_settings
from coseek.data.dataset import Dataset
from coseek.data.run import Run
from coseek.lab.agents.expert import ExpertAgent, ExpertSettings
from coseek.labels.label_folder import LabelFolder
from coseek.labels.maker import PACKAGE, RolloutMaker, maker_module
from coseek.labels.resources import LabelResources
from coseek.models.tokenizer import ByteTokenizer
from coseek.pipelines.together import labelling
from coseek.pipelines.together.labelling import label_counts, label_round, serving
from coseek.pipelines.together.paths import CoTrainingPaths
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.retrievers.bm25 import Bm25

pytestmark = pytest.mark.medium

LIMITS = "agent.limits={max_turns: 4, max_turn_tokens: 4000, max_observation_tokens: 8000, max_tokens: 64000}"
BY_ANSWERS = ("agent.protocol=search-r1", "labels.settings={}")


@dataclass
class Played(CoTrainingPaths):
    """A co-training whose agents are the expert."""

    broken_at: float | None = None
    """An agent that is opened at this temperature fails at every turn behind a search."""
    asked_for: list[float] = field(default_factory=list)
    """Temperatures at which agents were opened."""

    def open_agent(self, number: int, temperature: float) -> Agent:
        self.asked_for.append(temperature)
        protocol = self.first.protocol
        expert, tokenizer = ExpertAgent(ExpertSettings(bad_query=0.2)), ByteTokenizer(protocol.grammar.special_tokens)
        made = Faulty if temperature == self.broken_at else ScriptedAgentModel
        return Agent(protocol, made(expert, protocol, tokenizer))

    def policy(self, number: int) -> Path:
        return self.data_folder

    def retriever(self, number: int | None) -> Retriever:
        return self._bm25

    @cached_property
    def _bm25(self) -> Bm25:
        return Bm25.over(Dataset(self.data_folder).corpus)


def co_training(folder: Path, *overrides: str, broken_at: float | None = None) -> Played:
    given = (LIMITS, *BY_ANSWERS, "labels.questions=8", *overrides)
    made = Played(recipe(folder, *given), folder / "run", broken_at=broken_at)
    made.first.prepare_data()
    return made


def test_labels_that_a_fault_left_incomplete_are_never_trained_on_and_are_gone_on_with(tmp_path: Path) -> None:
    broken = co_training(tmp_path, broken_at=0.0)  # the agent that continues from passages, not the one of the runs
    paths = broken.round(1)
    with pytest.raises(RunError, match=r"left \d+ of \d+ search turns.*agent \d+.*--resume"):
        label_round(broken, 1)
    assert not paths.label_counts.exists()
    label_round(co_training(tmp_path), 1)
    counts, searches = label_counts(broken, 1), [len(run.searches) for run in Run(paths.run).trajectories()]
    assert counts["left"] == 0 and counts["sets"] and counts["turns"] == sum(searches)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["agentic-r", "dr-synth"])
def test_a_run_that_a_fault_ended_is_made_anew(tmp_path: Path, method: str) -> None:
    method_of = f"labels=!replace {{method: {method}, scorer: oracle}}"
    broken = co_training(tmp_path, method_of, broken_at=1.0)
    with pytest.raises(RunError, match=r"run \d+.*--resume"):
        label_round(broken, 1)
    assert not broken.round(1).label_counts.exists()
    mended = co_training(tmp_path, method_of)
    label_round(mended, 1)
    whole = co_training(tmp_path / "whole", method_of)
    label_round(whole, 1)
    assert label_counts(mended, 1) == label_counts(whole, 1)
    rows = [(training.round(1).labels / "labels.jsonl").read_bytes() for training in (mended, whole)]
    assert rows[0] == rows[1] != b""


def test_a_method_that_makes_its_runs_itself_makes_as_many_and_as_hot_as_was_asked(tmp_path: Path) -> None:
    played = co_training(tmp_path, "labels=!replace {method: dr-synth, scorer: oracle, samples: 3, temperature: 0.7}")
    label_round(played, 1)
    assert set(played.asked_for) == {0.7}
    runs = list(Run(played.round(1).labels / "run").trajectories())
    assert list(Counter(run.question.id for run in runs).values()) == [3] * 8
    assert len({run.ids for run in runs}) > 8


@pytest.mark.parametrize("method", plugin_names(PACKAGE))
def test_what_a_method_asks_for_when_it_is_opened_it_says_beforehand(tmp_path: Path, method: str) -> None:
    module = maker_module(method)
    settings = make_settings(module.SETTINGS, {})
    terms, message = module.terms(settings), ""
    try:
        maker = module.open(settings, LabelResources(tmp_path, found_by=co_training(tmp_path).retriever(0)))
        assert isinstance(maker, RolloutMaker) == terms.rolls_out
        assert maker.identity
    except SettingError as error:
        message = str(error)
    assert (terms.scorer, terms.likelihood) == ("--scorer" in message, "--likelihood" in message)


@pytest.fixture
def address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def command(folder: Path, address: str) -> str:
    """A server of files, of which one is the list of its models."""
    (folder / "v1").mkdir(exist_ok=True)
    (folder / "v1" / "models").write_text("{}")
    return f"{sys.executable} -S -m http.server {address.rpartition(':')[2]} --bind 127.0.0.1 --directory {folder}"


def ask(training: CoTrainingPaths, number: int) -> None:
    """In place of labels: every worker asks the scorer."""
    with urlopen(f"{training.recipe.labels.scorer}/v1/models") as answer:
        (training.folder.parent / f"asked-{training.workers.rank}").write_bytes(answer.read())
    training.workers.barrier()


def work(folder: Path, address: str) -> None:
    labelling._label_round = ask
    served = [f"labels.scorer={address}", f"labels.serve={command(folder, address)}"]
    own = folder / "recipes" / os.environ["RANK"]
    labelling.label_round(CoTrainingPaths(recipe(own, *served), folder / "run"), 1)


@pytest.mark.slow
def test_two_workers_ask_one_scorer_which_ends_after_the_labels(tmp_path: Path, address: str) -> None:
    run_workers(2, work, tmp_path, address)
    assert sorted(path.name for path in tmp_path.glob("asked-*")) == ["asked-0", "asked-1"]
    with pytest.raises(URLError):
        urlopen(address)


def test_a_scorer_that_does_not_start_says_why(tmp_path: Path, address: str) -> None:
    (tmp_path / "bad.py").write_text("import sys; print('loading', flush=True); sys.exit('no such model')")
    says = pytest.raises(RunError, match=r"ended with exit status 1: no such model \(more in .*serve.log\)")
    with says, serving(f"{sys.executable} -S {tmp_path / 'bad.py'}", address, tmp_path):
        raise AssertionError


def test_the_scorer_of_another_is_not_taken_for_one_s_own(tmp_path: Path, address: str) -> None:
    started, says = command(tmp_path, address), pytest.raises(SettingError, match=r"answers at .* already")
    with serving(started, address, tmp_path), says, serving(started, address, tmp_path):
        raise AssertionError


METHODS = ("agentic-r", "dr-synth")
FILES = ("labels.jsonl", "dropped.jsonl", "texts.jsonl")


def labels_in(folder: Path, method: str) -> Path:
    return folder / method / "round-1" / "labels"


def written(folder: Path, method: str) -> dict[str, bytes]:
    """The labels, the dropped turns, their long texts and the counts."""
    paths = [*(labels_in(folder, method) / name for name in FILES), folder / method / "round-1" / "labels.json"]
    return {path.name: path.read_bytes() for path in paths if path.exists()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one worker makes."""
    folder = tmp_path_factory.mktemp("alone")
    for method in METHODS:
        label_round(shared_co_training(folder, method), 1)
    return folder


@pytest.mark.slow
def test_two_workers_write_the_bytes_that_one_writes(alone: Path, tmp_path: Path) -> None:
    run_workers(2, label, tmp_path, METHODS)
    for method in METHODS:
        one, two = written(alone, method), written(tmp_path, method)
        assert len(one["labels.jsonl"].splitlines()) > 16 and one["dropped.jsonl"]
        assert two == one
        names = {path.name for path in labels_in(tmp_path, method).iterdir()}
        assert "parts" not in names and names == {path.name for path in labels_in(alone, method).iterdir()}


@pytest.mark.slow
def test_what_a_killed_worker_labelled_is_taken_over_by_another_number_of_workers(alone: Path, tmp_path: Path) -> None:
    method = "agentic-r"
    with pytest.raises(ChildFailedError, match=KILLED):
        run_workers(2, label, tmp_path, (method,), dies=True)
    part = LabelFolder(labels_in(tmp_path, method) / "parts" / "1")
    turns = {row.turn for row in part.sets()} | {row.turn for row in part.dropped()}
    assert len(turns) == 6 and not (tmp_path / method / "round-1" / "labels.json").exists()
    shutil.copytree(tmp_path / method, tmp_path / "killed")
    run_workers(3, label, tmp_path, (method,))
    assert written(tmp_path, method) == written(alone, method)
    shutil.rmtree(tmp_path / method)
    shutil.move(tmp_path / "killed", tmp_path / method)
    label_round(shared_co_training(tmp_path, method), 1)
    assert written(tmp_path, method) == written(alone, method)
    assert scored_once(labels_in(tmp_path, method) / "scores") > 8


def scored_once(folder: Path) -> int:
    """The number of lines of the scores, which are all different."""
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_bytes().splitlines()]
    assert len(set(lines)) == len(lines)
    return len(lines)


class Deadly(NoProgress):
    """Kills this process when six turns are labelled."""

    now = ""

    def stage(self, name: str, total: int) -> None:
        self.now = name

    def advance(self, done: int, note: str = "") -> None:
        if done == 6 and self.now.startswith("labels"):
            os.kill(os.getpid(), signal.SIGKILL)


def shared_co_training(folder: Path, method: str) -> Played:
    settings = f"labels=!replace {{method: {method}, scorer: oracle, questions: 16, samples: 2}}"
    own = folder / "recipes" / os.environ.get("RANK", "0")  # each worker rewrites it, and not atomically
    made = Played(recipe(own, LIMITS, *BY_ANSWERS, "agent.limits.max_turns=2", settings), folder / method)
    if made.workers.is_main:
        made.first.prepare_data()
    made.workers.barrier()
    return made


def label(folder: Path, methods: tuple[str, ...], dies: bool = False) -> None:
    """One round by every method; the second worker may have to die while it labels."""
    for method in methods:
        made = shared_co_training(folder, method)
        if dies and not made.workers.is_main:
            made.progress = Deadly()
        label_round(made, 1)
