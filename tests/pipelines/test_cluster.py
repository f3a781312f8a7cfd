"""Fears about work on a cluster: other rows than one machine's, rows that a kill loses or doubles, and other files on a
node. `test_ray.py` has the same over nodes that die."""

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
from tests.pipelines.test_shared_run import rows
from tests.this_process import ThisProcess

from coseek.agents.factory import limits_for, settings_for
from coseek.core.cluster import Job, check_cluster, shares_of
from coseek.core.errors import SettingError, UserError
from coseek.core.files import JsonObject
from coseek.data.run import Run, RunRows
from coseek.graders.factory import open_frozen_model
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.labels.label_folder import LabelFolder
from coseek.labels.labelling import LabelJob
from coseek.pipelines.agent_run import RunSettings, run_agent
from coseek.pipelines.labelling import label_runs, label_settings, open_maker
from coseek.retrieval.index import build_index

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
