"""Fears about runs that several workers share, and about work on a cluster: other rows than one worker's or machine's,
a kill that loses or doubles some, other files on a node. `test_ray.py` has the same over nodes that die."""

import json
import os
import pickle
import re
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pytest
from tests.measure.samples import run as sampled
from tests.pipelines.test_agent import TINY
from tests.processes import KILLED, run_workers
from tests.this_process import ThisProcess
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from coseek.agents.drivers import Agent
from coseek.agents.factory import limits_for, settings_for
from coseek.agents.scripted_agent import ScriptedAgentModel
from coseek.core.cluster import Job, check_cluster, shares_of
from coseek.core.errors import SettingError, UserError
from coseek.core.files import JsonObject, json_line
from coseek.data.run import Run, RunRows
from coseek.graders.factory import open_frozen_model
from coseek.lab.agents.expert import ExpertAgent, ExpertSettings
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.labels.label_folder import LabelFolder
from coseek.labels.labelling import LabelJob
from coseek.models.pretrained import load_model
from coseek.models.tokenizer import ByteTokenizer
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.agent_run import RunSettings, run_agent, share_run, take_over_runs
from coseek.pipelines.labelling import label_runs, label_settings, open_maker
from coseek.retrieval.index import build_index

LOGPROBS = re.compile(r'"logprobs": \[([^]]*)\]')


def rows(run: Path) -> list[str]:
    """The stored rows in their order, without the seconds that they took."""
    lines = (run / "trajectories.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.dumps({**json.loads(line), "timings": {}}) for line in lines]


def logprobs(rows: list[str]) -> list[float]:
    return [float(value) for row in rows for values in LOGPROBS.findall(row) for value in values.split(",") if value]


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
    there = part.finished_keys()
    assert 9 <= len(there) < 30
    shutil.copytree(tmp_path / "dead", tmp_path / "again")
    assert run_well(3, "expert", tmp_path / "dead") == alone
    shared("expert", tmp_path / "again")
    assert rows(tmp_path / "again" / "run") == alone


def test_a_kill_while_parts_are_taken_over_doubles_no_row_and_other_weights_are_refused(tmp_path: Path) -> None:
    whole, part = Run.create(tmp_path / "run", {}), Run.create(tmp_path / "run" / "parts" / "1", {})
    trajectory = sampled(seed=7)
    questions = [replace(trajectory.question, id=f"q{number}") for number in range(6)]
    lines = [json_line(replace(trajectory, question=question).to_json()).rstrip("\n") for question in questions]
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


LIMITS = {"max_turn_tokens": 4000, "max_observation_tokens": 8000, "max_tokens": 64000}


def expert(training: AgentTraining) -> Agent:
    protocol = training.protocol
    scripted = ExpertAgent(ExpertSettings(bad_query=0.2, blind_guess=0.2))
    return Agent(protocol, ScriptedAgentModel(scripted, protocol, ByteTokenizer(protocol.grammar.special_tokens)))


def policy(training: AgentTraining) -> Agent:
    model = load_model(training.policy_folder("start"), training.recipe.in_float32())
    limits = training.recipe.limits
    return Agent(training.protocol, training.sampler(model, training.protocol, 1.0, limits))


def shared(mode: str, folder: Path) -> Run:
    """The run of 20 questions, each three times, by these workers. `die` kills all but the first after nine rows."""
    training = AgentTraining(load_recipe("from-nothing", TINY), folder)
    if training.workers.is_main:
        training.prepare_data()
        training.make_policy()
    training.workers.barrier()

    def tell(ended: int, _: int) -> None:
        if mode == "die" and not training.workers.is_main and ended >= 9:
            os.kill(os.getpid(), signal.SIGKILL)

    return share_run(
        training.workers, folder / "run", {"mode": "shared"},
        policy(training) if mode == "policy" else expert(training), training.retrievers["data"],
        training.questions("dev"),
        training.recipe.limits if mode == "policy" else training.recipe.limits.model_copy(update=LIMITS), seed=5,
        samples=3, concurrency=7, tell=tell,
    )  # fmt: skip


A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class Sending(ThisProcess):
    """Sends jobs, items and results through a pipe, as it were."""

    def map(
        self, job: Job[A, B], items: Iterable[A], *, ordered: bool = False, pinned: bool = False
    ) -> Iterator[tuple[int, B]]:
        sent: Iterable[A] = (pickle.loads(pickle.dumps(item)) for item in items)
        for number, result in super().map(pickle.loads(pickle.dumps(job)), sent):
            yield number, pickle.loads(pickle.dumps(result))


@dataclass(frozen=True)
class Dying(Sending):
    """Kills the caller after three items, of which the last came first."""

    def map(
        self, job: Job[A, B], items: Iterable[A], *, ordered: bool = False, pinned: bool = False
    ) -> Iterator[tuple[int, B]]:
        yield from reversed([*super().map(job, [*items][:3])])
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world of 24 questions, its index, and a run."""
    folder = tmp_path_factory.mktemp("cluster")
    make_world(WorldSettings(size="tiny", train=24, dev=0, test=0)).save(folder / "world")
    build_index(folder / "world", "bm25", folder / "index")
    run_agent(settings_of(folder), folder / "run", resume=False)
    Run(folder / "run").arrange(question.id for question in run_agent(settings_of(folder), folder / "run", True)[1])
    return folder


def settings_of(base: Path) -> RunSettings:
    who = settings_for("faulty-expert")
    return RunSettings(
        questions=str(base / "world"), retriever=str(base / "index"), agent=who, limits=limits_for(who), samples=2
    )


@pytest.mark.slow
def test_a_run_on_a_cluster_has_the_rows_of_one_machine_also_when_its_caller_was_killed(
    base: Path, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_agent(settings_of(base), tmp_path / "run", False, cluster=Dying(workers=2))
    assert 0 < len(rows(tmp_path / "run")) < 48
    told: list[tuple[int, int]] = []
    run_agent(settings_of(base), tmp_path / "run", True, lambda *at: told.append(at), cluster=Sending())
    assert rows(tmp_path / "run") == rows(base / "run") and len(rows(base / "run")) == 48
    assert told[-1] == (48, 48) and told == sorted(told)


@pytest.mark.medium
def test_rows_of_another_agent_are_refused(base: Path, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    sent = Run(base / "run").sent()
    with run.open_for_append() as file:
        run.append_rows(file, sent)
    with pytest.raises(SettingError, match="agent"), run.open_for_append() as file:
        run.append_rows(file, RunRows({**sent.identities, "agent": "another"}, sent.lines))


METHODS: dict[str, JsonObject] = {"agentic-r": {"exhaustive": True}, "dr-synth": {"samples": 2}}


def labelled(base: Path, method: str) -> Callable[..., object]:
    named: JsonObject = {"method": method, "count": None, "scorer": "oracle", "likelihood": None}
    chosen, own = label_settings([str(base / "run")], METHODS[method], named)
    return lambda out, resume=False, cluster=None: label_runs(chosen, own, out, resume, cluster=cluster)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_labels_of_a_cluster_are_those_of_one_machine_to_the_byte_also_when_its_caller_was_killed(
    base: Path, tmp_path: Path, method: str
) -> None:
    label, one, other = labelled(base, method), tmp_path / "one", tmp_path / "other"
    label(one)
    with pytest.raises(KeyboardInterrupt):
        label(other, cluster=Dying())
    label(other, resume=True, cluster=Sending())
    assert len([*LabelFolder(one).sets()]) > 5
    for name in ("labels.jsonl", "dropped.jsonl", "texts.jsonl"):
        if (one / name).exists() or (other / name).exists():
            assert (other / name).read_bytes() == (one / name).read_bytes()
    for path in one.glob("scores/*.jsonl"):
        assert sorted((other / "scores" / path.name).read_text().splitlines()) == sorted(path.read_text().splitlines())
    if method == "dr-synth":
        assert rows(other / "run") == rows(one / "run")


def test_a_node_with_another_index_makes_no_label(base: Path, tmp_path: Path) -> None:
    named: JsonObject = {"method": "gold", "count": None, "scorer": None, "likelihood": None}
    chosen, own = label_settings([str(base / "run")], {}, named)
    job = LabelJob(lambda folder: open_maker(chosen, own, [], None, folder), tmp_path, "another identity")
    with pytest.raises(UserError, match="on a node of the cluster is not the caller's"):
        job.open()


@pytest.mark.slow
def test_a_model_on_a_cluster_writes_what_it_writes_here(base: Path) -> None:
    prompts = [f"Who founded company {number}?" for number in range(9)]
    here, there = open_frozen_model("base", None), open_frozen_model("base", None, cluster=Sending(workers=3))
    assert there.write(prompts, 8) == here.write(prompts, 8) and there.identity == here.identity


def test_shares_are_all_items_in_order_and_many_enough_for_all_processes() -> None:
    for count in (0, 1, 7, 100, 10_000):
        items = [*range(count)]
        shares = [*shares_of(items, ThisProcess(workers=3))]
        assert [item for share in shares for item in share] == items
        assert max(map(len, shares), default=1) <= 64 and len(shares) >= min(count, 24)


@pytest.mark.parametrize("address", ["locally", "ray://host", "ray://:80", "http:x", ""])
def test_what_is_no_address_of_a_cluster_is_refused(address: str) -> None:
    with pytest.raises(SettingError, match="use local, auto or ray://HOST:PORT"):
        check_cluster(address)
    with pytest.raises(SettingError, match="gpu"):
        check_cluster("auto?gpu=1")
