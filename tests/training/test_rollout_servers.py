"""Fears about rollout servers: that they sample from other weights than those that are trained, and that a dead server
loses episodes or scores them 0."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TypeAlias, cast

import pytest
import torch
from tests.models.http_site import Said, site
from tests.models.tiny_policy import tiny_policy
from tests.models.vllm_server import VllmServer, vllm_server
from tests.serve.live import EchoRetriever

from coseek.agents.drivers import Agent, rollout
from coseek.agents.limits import Limits
from coseek.agents.protocol import load_protocol
from coseek.core.errors import ModelError, SettingError
from coseek.core.files import JsonObject
from coseek.core.settings import make_settings
from coseek.data.question import Question
from coseek.data.trajectory import Author, StopReason, Trajectory
from coseek.hardware.placement import FLOAT32
from coseek.models.dialect import WeightDialect, WeightUpdate, dialect_of
from coseek.models.model import EpisodeState, Model, Request, TurnEnd
from coseek.models.pretrained import load_model
from coseek.models.remote import RemoteModel, RemoteModelSettings, ServerInfo, open_remote
from coseek.models.sampler import SamplerSettings
from coseek.models.server_pool import ServerPool
from coseek.models.tokenizer import ByteTokenizer, HfTokenizer
from coseek.rewards.reward import Reward
from coseek.training.learner.policy import ADAPTER
from coseek.training.learner.workers import ALONE, Workers
from coseek.training.rl.backend import TrainingBackend, open_backend
from coseek.training.rl.callbacks import Callback, StepReport
from coseek.training.rl.loop import train_rl
from coseek.training.rl.losses import importance_weights
from coseek.training.rl.rollout_servers import ServedBackend, ServerMetrics, check_servers
from coseek.training.rl.settings import RlSettings, RolloutSettings

PROTOCOL = load_protocol("search-r1", "laptop")
LIMITS = Limits(max_turns=2, max_turn_tokens=16, max_observation_tokens=64, max_tokens=1000)
QUESTIONS = [Question(f"q{number}", f"Who wrote program {number} ?", ("ada",)) for number in range(8)]
RL = {
    "steps": 3, "questions_per_step": 3, "group_size": 3, "num_minibatches": 1,
    "policy": {"optimizer": {"lr": 0.02, "warmup_updates": 0}, "precision": "float32"},
}  # fmt: skip
RewardFunction: TypeAlias = Callable[[Trajectory], Reward]
QUICK = {"patience": {"attempts": 1, "first_wait_s": 0.0, "timeout_s": 20.0}}


def by_odd_ids(run: Trajectory) -> Reward:
    """Rewards are rarely equal, so that every step has an update."""
    written = [ident for segment in run.segments if segment.author is Author.AGENT for ident in segment.ids]
    return Reward(sum(ident % 2 for ident in written) / len(written), {})


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
        self, reward: RewardFunction = by_odd_ids, callbacks: Sequence[Callback] = (), resume: bool = False
    ) -> list[dict[str, float]]:
        callbacks = [*callbacks, Trained(self.trained)]
        if isinstance(self.backend, ServedBackend):
            callbacks.append(ServerMetrics(self.backend, lambda _: None))
        train_rl(
            self.backend, QUESTIONS, self.rollout, reward, self.settings, self.folder, callbacks=callbacks,
            resume=resume,
        )  # fmt: skip
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]


class Trained(Callback):
    """Keeps the scored runs of every step."""

    def __init__(self, runs: list[tuple[Trajectory, ...]]) -> None:
        self.runs = runs

    def after_step(self, report: StepReport) -> None:
        self.runs.append(tuple(episode.trajectory for episode in report.episodes.scored))


@contextmanager
def servers(policy: Path, count: int) -> Iterator[list[VllmServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(vllm_server(policy)) for _ in range(count)]


def urls_of(live: Sequence[VllmServer]) -> list[str]:
    return [server.url for server in live]


def ids(runs: Sequence[Trajectory]) -> list[tuple[int, ...]]:
    return [run.ids for run in runs]


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return tiny_policy(tmp_path / "shared" / "policy")


@pytest.mark.medium
def test_servers_sample_with_the_weights_of_every_step(tmp_path: Path, policy: Path) -> None:
    """Each row is the one that its seed and the current weights give, at whichever server it is."""
    with servers(policy, 1) as live:
        alone = Training(tmp_path / "alone", policy, urls_of(live))
        rows = alone.train()
    with servers(policy, 2) as live:
        training = Training(tmp_path / "there", policy, urls_of(live))
        metrics = training.train()
    assert [ids(runs) for runs in training.runs] == [ids(runs) for runs in alone.runs]
    assert len({tuple(ids(runs)) for runs in alone.runs}) == 3  # the weights did change
    assert min(server.written_tokens for server in live) > 0
    for row, other in zip(rows, metrics, strict=True):
        assert other["reward"] == pytest.approx(row["reward"]) and other["loss"] == pytest.approx(row["loss"], abs=1e-4)
        assert other["logprob_gap"] < 1e-3  # the next sample comes from the weights that are trained
        assert (other["servers"], other["servers_lost"], other["faults"]) == (2, 0, 0)
    versions = [
        {piece.version for run in runs for piece in run.segments if piece.version is not None} for runs in training.runs
    ]
    assert versions == [{0}, {1}, {2}]
    assert len(list((policy.parent).glob("*/version-*"))) == 1  # older weights are removed


@pytest.mark.medium
def test_what_servers_sample_greedily_is_what_this_process_samples(tmp_path: Path, policy: Path) -> None:
    here = Training(tmp_path / "here", policy)
    with servers(policy, 1) as live:
        there = Training(tmp_path / "there", policy, urls_of(live))
        for training in (here, there):
            greedy = SamplerSettings(temperature=0.0, dtype="float32")
            stops = PROTOCOL.grammar.stops
            training.sampler = training.backend.sampler(training.tokenizer, stops, greedy, on_policy=False)
        there.backend.refresh()
        seeds = list(range(len(QUESTIONS)))
        assert ids(there.rollout(QUESTIONS, seeds)) == ids(here.rollout(QUESTIONS, seeds))


@pytest.mark.medium
def test_rows_of_a_dead_server_go_on_elsewhere(tmp_path: Path, policy: Path) -> None:
    seeds = list(range(len(QUESTIONS)))
    with servers(policy, 1) as live, ExitStack() as doomed:
        dying = doomed.enter_context(servers(policy, 1))
        training = Training(tmp_path / "there", policy, urls_of([*live, *dying]))
        training.backend.refresh()
        wanted = training.rollout(QUESTIONS, seeds)
        assert isinstance(training.backend, ServedBackend) and training.backend.moved == 0
        doomed.close()
        runs = training.rollout(QUESTIONS, seeds)
        assert training.backend.moved > 0
    assert ids(runs) == ids(wanted)


def test_without_any_server_episodes_are_faults_and_training_stops_with_a_sentence(
    tmp_path: Path, policy: Path
) -> None:
    with ExitStack() as doomed:
        live = doomed.enter_context(servers(policy, 1))
        training = Training(tmp_path / "there", policy, urls_of(live))
        late = Training(tmp_path / "late", policy, urls_of(live))
        training.backend.refresh()
        doomed.close()
        runs = training.rollout(QUESTIONS[:2], [1, 2])
        assert {run.stop for run in runs} == {StopReason.MODEL_ERROR}
        with pytest.raises(ModelError, match="no rollout server loaded the new weights"):
            late.backend.refresh()


def test_turns_of_other_weights_are_not_taken_for_those_of_the_policy() -> None:
    """SGLang returns the version of the weights with every text."""
    meta: JsonObject = {"output_token_logprobs": [[-0.5, 97, None]], "finish_reason": {"type": "stop"}}
    reply = Said({"text": "a", "meta_info": {**meta, "weight_version": "7"}})
    with site(lambda _: reply) as there:
        settings = make_settings(RemoteModelSettings, {"dialect": "sglang", "model": "m", **QUICK})
        for version, end in ((0, TurnEnd.FAULT), (7, TurnEnd.EOS)):
            model = open_remote(there.url, settings, ByteTokenizer(), (), 1.0)
            model.version = version
            model.start(Request(1, (97,), 5, 1, EpisodeState(QUESTIONS[0])))
            (turn,) = model.step()
            model.calls.close()
            assert turn.end is end
            assert version or "version 7 of the weights, and not with 0" in turn.fault


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(SettingError, match="names a server twice"):
        make_settings(RolloutSettings, {"servers": ["http://127.0.0.1:9", "http://127.0.0.1:9"]})
    with pytest.raises(SettingError, match="add old_logprobs=recompute"):
        make_settings(RlSettings, {"rollout_is": "mask"})


def test_a_server_that_is_not_there_is_named_before_training(policy: Path) -> None:
    def given(url: str, **remote: object) -> RolloutSettings:
        return make_settings(RolloutSettings, {"servers": [url], "remote": {**QUICK, **remote}})

    with pytest.raises(SettingError, match=r"127\.0\.0\.1:9: the connection failed"):
        check_servers(given("http://127.0.0.1:9"))
    with servers(policy, 1) as (server,):
        check_servers(given(server.url))
        with pytest.raises(SettingError, match="cannot load weights while it serves"):
            check_servers(given(server.url, dialect="chat"))


def test_each_dialect_asks_for_weights_in_its_servers_words() -> None:
    whole, adapter = WeightUpdate("/w/version-3", 3), WeightUpdate("/w/version-3", 3, "/w/version-3/adapter", "a1")
    requests = {
        name: [(call.path, call.body) for update in (whole, adapter) for call in dialect.update_calls(update)]
        for name in ("sglang", "vllm")
        if isinstance(dialect := dialect_of(name), WeightDialect)
    }
    disk = ("/update_weights_from_disk", {"model_path": "/w/version-3", "weight_version": "3", "flush_cache": True})
    assert requests["sglang"] == [disk, disk]
    assert requests["vllm"] == [
        ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "/w/version-3"}}),
        ("/reset_prefix_cache", {}),
        ("/v1/load_lora_adapter", {"lora_name": "coseek-a1-3", "lora_path": "/w/version-3/adapter"}),
    ]
    assert not isinstance(dialect_of("chat"), WeightDialect)


@dataclass
class Asked:
    """A server that accepts every call."""

    served: ServerInfo
    version: int | None = None
    tokenizer: None = None
    done: None = None
    pending: tuple[()] = ()
    calls: "Asked | None" = None

    def fetch(self, *_: object) -> None: ...


@pytest.mark.parametrize("dialects", [("sglang", "vllm"), ("vllm", "sglang")])
def test_servers_of_two_dialects_each_sample_with_the_new_adapter(tmp_path: Path, dialects: tuple[str, str]) -> None:
    class Trained:
        workers, policy, critic, reference = ALONE, SimpleNamespace(updates_done=3), None, None

        def save(self, folder: Path, extra: object) -> None:
            (folder / ADAPTER).mkdir(parents=True)

    clients = [Asked(ServerInfo(dialect, "base")) for dialect in dialects]
    for client in clients:
        client.calls = client
    backend = served(tmp_path, [f"http://127.0.0.1:{port}" for port in (1, 2)], cast(TrainingBackend, Trained()), print)
    backend._pools.append(ServerPool(cast(list[RemoteModel], clients)))
    backend.refresh()
    assert [client.version for client in clients] == [3, 3]
    assert [client.served.model.startswith("coseek-") for client in clients] == [name == "vllm" for name in dialects]


def test_a_gap_of_the_sampler_is_corrected_up_to_the_cap() -> None:
    trainer, mask = torch.tensor([[-1.0, -1.0, -1.0, -9.0]]), torch.tensor([[True, True, True, False]])
    sampler = torch.tensor([[-1.0, -3.0, 1.0, 0.0]]) - 0.1
    cut = importance_weights(trainer, sampler, mask, "truncate", 2.0)[0].tolist()
    assert cut == pytest.approx([1.10517, 2.0, 0.14957, 1.0], abs=1e-5)
    assert importance_weights(sampler, sampler, mask, "mask", 1.0).eq(1.0).all()  # both bounds are inside
    assert importance_weights(trainer, sampler, mask, "mask", 2.0)[0].tolist() == pytest.approx(
        [1.10517, 0.0, 0.0, 1.0], abs=1e-5
    )


def test_a_step_without_an_update_loads_nothing_again(tmp_path: Path, policy: Path) -> None:
    with servers(policy, 1) as (server,):
        for loads, run in enumerate(("there", "again"), start=1):  # two trainings at the same version
            training = Training(tmp_path / run, policy, [server.url])
            training.backend.refresh()
            training.backend.refresh()
            assert server.paths.count("/collective_rpc") == loads
