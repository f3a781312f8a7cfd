"""Fears about rollout servers: that they sample from other weights than those that are trained, that a dead one costs
episodes or makes them zeros, and that anybody can have one load any folder."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TypeAlias, cast

import pytest
import torch
from tests.serve.live import WEB, EchoRetriever
from tests.serve.model_live import live_model, tiny_policy

from coseek.agents.limits import Limits
from coseek.agents.protocol import load_protocol
from coseek.agents.rollout import Agent, rollout
from coseek.core.errors import ModelError, SettingError
from coseek.core.settings import make_settings
from coseek.data.question import Question
from coseek.data.trajectory import StopReason, Trajectory
from coseek.hardware.placement import FLOAT32
from coseek.models.dialect import WeightUpdate, weight_dialect_of
from coseek.models.model import Model
from coseek.models.pretrained import load_model
from coseek.models.remote import RemoteModel, ServerInfo
from coseek.models.sampler import SamplerSettings
from coseek.models.server_pool import ServerPool
from coseek.models.tokenizer import HfTokenizer
from coseek.rewards.reward import Reward
from coseek.serve.model_service import ModelService
from coseek.training.rl.backend import TrainingBackend, open_backend
from coseek.training.rl.callbacks import Callback, StepReport
from coseek.training.rl.loop import train_rl
from coseek.training.rl.losses import importance_weights
from coseek.training.rl.rollout_servers import ServedBackend, ServerMetrics, check_servers
from coseek.training.rl.settings import RlSettings, RolloutSettings
from coseek.training.trainer.lora import ADAPTER
from coseek.training.trainer.workers import ALONE, Workers

PROTOCOL = load_protocol("search-r1", "laptop")
LIMITS = Limits(max_turns=2, max_turn_tokens=16, max_observation_tokens=64, max_tokens=1000)
QUESTIONS = [Question(f"q{number}", f"Who wrote program {number} ?", ("ada",)) for number in range(8)]
RL = {
    "steps": 3, "questions_per_step": 3, "group_size": 3, "minibatches": 1,
    "policy": {"optimiser": {"lr": 0.02, "warmup_updates": 0}, "precision": "float32"},
}  # fmt: skip
RewardFunction: TypeAlias = Callable[[Trajectory], Reward]
QUICK = {"patience": {"attempts": 1, "first_wait_s": 0.0, "timeout_s": 20.0}}


def by_length(run: Trajectory) -> Reward:
    return Reward(run.agent_tokens / 32, {})


def served(
    folder: Path, urls: Sequence[str], backend: TrainingBackend, extra: Callable[[Path], None], ahead: int = 0
) -> ServedBackend:
    tree = {"servers": list(urls), "weights": str(folder), "remote": QUICK, "max_steps_behind": ahead}
    return ServedBackend(backend, make_settings(RolloutSettings, tree), folder / "run", extra)


class Training:
    """A training of the tiny policy, by servers or in this process."""

    def __init__(
        self,
        folder: Path,
        policy: Path,
        urls: Sequence[str] = (),
        /,
        ahead: int = 0,
        workers: Workers = ALONE,
        **changes: object,
    ) -> None:
        self.folder = folder
        self.settings = make_settings(RlSettings, {**RL, **changes})
        network, self.tokenizer = load_model(policy, FLOAT32), HfTokenizer.load(policy)
        self.local = open_backend(self.settings, network, workers)
        self.backend = served(policy.parent, urls, self.local, self.save_extra, ahead) if urls else self.local
        self.sampler = self.open_sampler()
        self.runs: list[list[Trajectory]] = []
        self.trained: list[tuple[Trajectory, ...]] = []
        """The scored runs of each step."""
        self.before_turn: Callable[[], None] = lambda: None

    def save_extra(self, folder: Path) -> None:
        self.tokenizer.save(folder)

    def open_sampler(self, temperature: float = 1.0) -> Model:
        settings = SamplerSettings(temperature=temperature, dtype="float32")
        return self.backend.sampler(self.tokenizer, PROTOCOL.grammar.stops, settings)

    def rollout(self, questions: Sequence[Question], seeds: Sequence[int]) -> list[Trajectory]:
        self.before_turn()
        self.runs.append(rollout(Agent(PROTOCOL, self.sampler), EchoRetriever(), questions, seeds, LIMITS))
        return self.runs[-1]

    def train(
        self, reward: RewardFunction = by_length, callbacks: Sequence[Callback] = (), resume: bool = False
    ) -> list[dict[str, float]]:
        callbacks = [*callbacks, Trained(self.trained)]
        if isinstance(self.backend, ServedBackend):
            callbacks.append(ServerMetrics(self.backend, lambda _: None))
        train_rl(
            self.backend,
            QUESTIONS,
            self.rollout,
            reward,
            self.settings,
            self.folder,
            callbacks=callbacks,
            resume=resume,
        )
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]


class Trained(Callback):
    """Keeps the scored runs of every step."""

    def __init__(self, runs: list[tuple[Trajectory, ...]]) -> None:
        self.runs = runs

    def after_step(self, report: StepReport) -> None:
        self.runs.append(tuple(episode.trajectory for episode in report.episodes.scored))


@contextmanager
def servers(policy: Path, count: int, log: bool = False) -> Iterator[list[tuple[str, ModelService]]]:
    def live() -> AbstractContextManager[tuple[str, ModelService]]:
        return live_model(policy, weights_below=str(policy.parent), precision="float32", device="cpu", log=log)

    with ExitStack() as stack:
        yield [stack.enter_context(live()) for _ in range(count)]


def ids(runs: Sequence[Trajectory]) -> list[tuple[int, ...]]:
    return [run.ids for run in runs]


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return tiny_policy(tmp_path / "shared" / "policy")


@pytest.mark.slow
def test_servers_sample_what_this_process_samples_before_and_after_updates(tmp_path: Path, policy: Path) -> None:
    here = Training(tmp_path / "here", policy)
    rows = here.train()
    with servers(policy, 2) as live:
        there = Training(tmp_path / "there", policy, [url for url, _ in live])
        found = there.train()
        written = [service.generation.written_tokens for _, service in live]
    assert [ids(runs) for runs in there.runs] == [ids(runs) for runs in here.runs]
    assert len({tuple(ids(runs)) for runs in here.runs}) == 3  # the weights did change
    assert min(written) > 0
    for row, other in zip(rows, found, strict=True):
        assert other["reward"] == pytest.approx(row["reward"]) and other["loss"] == pytest.approx(row["loss"], abs=1e-4)
        assert other["logprob_gap"] < 1e-3  # the next sample comes from the weights that are trained
        assert (other["servers"], other["servers_lost"], other["faults"]) == (2, 0, 0)
    versions = [
        {part.version for run in runs for part in run.segments if part.version is not None} for runs in there.runs
    ]
    assert versions == [{0}, {1}, {2}]
    assert len(list((policy.parent).glob("*/version-*"))) == 1  # older weights are removed


@pytest.mark.slow
def test_a_server_that_dies_in_a_step_costs_no_episode_and_makes_no_zero(tmp_path: Path, policy: Path) -> None:
    whole = Training(tmp_path / "whole", policy)
    whole.train()
    with servers(policy, 1) as live, ExitStack() as doomed:
        dying = doomed.enter_context(servers(policy, 1))
        training = Training(tmp_path / "there", policy, [live[0][0], dying[0][0]])
        steps = 0

        def kill_in_the_second_step() -> None:
            nonlocal steps
            steps += 1
            if steps == 2:
                threading.Timer(0.05, doomed.close).start()

        training.before_turn = kill_in_the_second_step
        rows = training.train()
    assert [ids(runs) for runs in training.runs] == [ids(runs) for runs in whole.runs]
    assert [row["faults"] for row in rows] == [0, 0, 0]
    assert (rows[0]["servers"], rows[-1]["servers"]) == (2, 1)


@pytest.mark.slow
def test_rows_of_a_dead_server_go_on_elsewhere(tmp_path: Path, policy: Path) -> None:
    seeds = list(range(len(QUESTIONS)))
    wanted = Training(tmp_path / "here", policy).rollout(QUESTIONS, seeds)
    with servers(policy, 1) as live, ExitStack() as doomed:
        dying = doomed.enter_context(servers(policy, 1))
        training = Training(tmp_path / "there", policy, [live[0][0], dying[0][0]])
        training.backend.refresh()
        doomed.close()  # after it got the weights
        runs = training.rollout(QUESTIONS, seeds)
        assert isinstance(training.backend, ServedBackend) and training.backend.moved > 0
    assert ids(runs) == ids(wanted)


@pytest.mark.slow
def test_without_any_server_episodes_are_faults_and_training_stops_with_a_sentence(
    tmp_path: Path, policy: Path
) -> None:
    with ExitStack() as doomed:
        live = doomed.enter_context(servers(policy, 1))
        training = Training(tmp_path / "there", policy, [live[0][0]])
        late = Training(tmp_path / "late", policy, [live[0][0]])
        training.backend.refresh()
        doomed.close()
        runs = training.rollout(QUESTIONS[:2], [1, 2])
        assert {run.stop for run in runs} == {StopReason.MODEL_ERROR}
        with pytest.raises(ModelError, match="no rollout server loaded the new weights"):
            late.backend.refresh()


@pytest.mark.slow
def test_turns_of_other_weights_are_not_taken_for_those_of_the_policy(tmp_path: Path, policy: Path) -> None:
    with servers(policy, 1) as ((url, _),):
        training = Training(tmp_path / "there", policy, [url])
        training.backend.refresh()
        told = WEB.post(f"{url}/update_weights_from_disk", json={"model_path": str(policy), "weight_version": 7})
        assert told.json()["success"] is True
        (run,) = training.rollout(QUESTIONS[:1], [1])
    assert run.stop is StopReason.MODEL_ERROR and "version 7 of the weights, and not with 0" in run.stop_detail


@pytest.mark.slow
def test_a_service_loads_only_what_it_was_allowed_to(tmp_path: Path, policy: Path) -> None:
    outside = tiny_policy(tmp_path / "outside")
    (policy.parent / "link").symlink_to(outside)
    with servers(policy, 1) as ((url, _),), live_model(policy) as (locked, _):
        for base, path, says in (
            (url, str(outside), "no model folder below"),
            (url, "../outside", "no model folder below"),
            (url, "link", "no model folder below"),
            (url, "nowhere", "no model folder below"),
            (url, "a\0b", "no path"),
            (locked, str(policy), "--weights-below"),
        ):
            answer = WEB.post(f"{base}/update_weights_from_disk", json={"model_path": path})
            assert answer.status_code == 400 and says in answer.text, path
        assert WEB.post(f"{url}/update_weights_from_disk", json={"model_path": "policy"}).status_code == 200


@pytest.mark.slow
def test_a_text_is_written_by_one_version_of_the_weights(tmp_path: Path, policy: Path) -> None:
    other = tiny_policy(policy.parent / "other", seed=9)
    body = {"prompt": " one fish", "max_tokens": 200, "temperature": 1.0, "seed": 4, "return_token_ids": True}
    with servers(policy, 1) as ((url, _),):
        texts: list[dict[str, object]] = []

        def ask() -> None:
            texts.append(WEB.post(f"{url}/v1/completions", json=body).json())

        ask()
        threads = [threading.Thread(target=ask) for _ in range(6)]
        for place, thread in enumerate(threads):
            thread.start()
            if place == 2:
                WEB.post(f"{url}/update_weights_from_disk", json={"model_path": str(other), "weight_version": 1})
        for thread in threads:
            thread.join()
        ask()
    written = {str(text.get("weight_version")): set[str]() for text in texts}
    for text in texts:
        written[str(text.get("weight_version"))].add(str(text["choices"]))
    assert written.keys() == {"None", "1"} and all(len(found) == 1 for found in written.values())
    assert written["None"] != written["1"]


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(SettingError, match="names one twice"):
        make_settings(RolloutSettings, {"servers": ["http://127.0.0.1:9", "http://127.0.0.1:9"]})
    with pytest.raises(SettingError, match="add old_logprobs=recompute"):
        make_settings(RlSettings, {"importance": "mask"})


def test_a_server_that_is_not_there_is_named_before_training(policy: Path) -> None:
    def given(url: str, **remote: object) -> RolloutSettings:
        return make_settings(RolloutSettings, {"servers": [url], "remote": {**QUICK, **remote}})

    with pytest.raises(SettingError, match=r"127\.0\.0\.1:9: the connection failed"):
        check_servers(given("http://127.0.0.1:9"))
    with servers(policy, 1) as ((url, _),):
        check_servers(given(url))
        with pytest.raises(SettingError, match="cannot load weights while it serves"):
            check_servers(given(url, dialect="chat"))


def test_each_dialect_asks_for_weights_in_its_servers_words() -> None:
    whole, adapter = WeightUpdate("/w/version-3", 3), WeightUpdate("/w/version-3", 3, "/w/version-3/adapter", "a1")
    asked = {
        name: [(call.path, call.body) for update in (whole, adapter) for call in dialect.update_calls(update)]
        for name in ("coseek", "sglang", "vllm")
        if (dialect := weight_dialect_of(name)) is not None
    }
    disk = ("/update_weights_from_disk", {"model_path": "/w/version-3", "weight_version": "3", "flush_cache": True})
    assert asked["coseek"] == asked["sglang"] == [disk, disk]
    assert asked["vllm"] == [
        ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "/w/version-3"}}),
        ("/reset_prefix_cache", {}),
        ("/v1/load_lora_adapter", {"lora_name": "coseek-a1-3", "lora_path": "/w/version-3/adapter"}),
    ]
    assert weight_dialect_of("chat") is None


@dataclass
class Asked:
    """A server that does whatever it is told."""

    served: ServerInfo
    version: int | None = None
    tokenizer: None = None
    done: None = None
    pending: tuple[()] = ()
    calls: "Asked | None" = None

    def fetch(self, *_: object) -> None: ...


@pytest.mark.parametrize("dialects", [("coseek", "vllm"), ("vllm", "sglang")])
def test_servers_of_two_dialects_each_sample_with_the_new_adapter(tmp_path: Path, dialects: tuple[str, str]) -> None:
    class Trained:
        workers, policy = ALONE, SimpleNamespace(updates_done=3)

        def save(self, folder: Path, extra: object) -> None:
            (folder / ADAPTER).mkdir(parents=True)

    asked = [Asked(ServerInfo(dialect, "base")) for dialect in dialects]
    for one in asked:
        one.calls = one
    backend = served(tmp_path, [f"http://127.0.0.1:{port}" for port in (1, 2)], cast(TrainingBackend, Trained()), print)
    backend._pools.append(ServerPool(cast(list[RemoteModel], asked)))
    backend.refresh()
    assert [one.version for one in asked] == [3, 3]
    assert [one.served.model.startswith("coseek-") for one in asked] == [name == "vllm" for name in dialects]


def test_a_gap_of_the_sampler_is_corrected_up_to_the_cap() -> None:
    trainer, mask = torch.tensor([[-1.0, -1.0, -1.0, -9.0]]), torch.tensor([[True, True, True, False]])
    sampler = torch.tensor([[-1.0, -3.0, 1.0, 0.0]]) - 0.1
    cut = importance_weights(trainer, sampler, mask, "truncate", 2.0)[0].tolist()
    assert cut == pytest.approx([1.10517, 2.0, 0.14957, 1.0], abs=1e-5)
    assert importance_weights(trainer, sampler, mask, "mask", 2.0)[0].tolist() == pytest.approx(
        [1.10517, 0.0, 0.0, 1.0], abs=1e-5
    )


@pytest.mark.slow
def test_a_step_without_an_update_loads_nothing_again(tmp_path: Path, policy: Path) -> None:
    with servers(policy, 1) as ((url, service),):
        training = Training(tmp_path / "there", policy, [url])
        training.backend.refresh()
        opened = service.weights
        training.backend.refresh()
        assert service.weights is opened
        again = Training(tmp_path / "again", policy, [url])  # another training at the same version
        again.backend.refresh()
        assert service.weights is not opened
