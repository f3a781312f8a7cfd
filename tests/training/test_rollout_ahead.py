"""Fears about rollouts that are sampled while the policy trains: tokens that are older than allowed or have a wrong
version of the weights; episodes that are lost or sampled twice; a training that hangs."""

import json
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from tests.models.tiny_policy import tiny_policy
from tests.processes import run_workers
from tests.serve.live import EchoRetriever
from tests.training.test_rollout_servers import LIMITS, PROTOCOL, QUESTIONS, Training, by_odd_ids, ids, servers, urls_of

from coseek.agents.drivers import Agent, rollout
from coseek.core.errors import ModelError, SettingError
from coseek.core.settings import make_settings
from coseek.data.trajectory import Author, Trajectory
from coseek.hardware.placement import Placement
from coseek.models.model import EpisodeState, Request, Turn, TurnEnd
from coseek.models.pretrained import load_model
from coseek.models.server_pool import ServerPool
from coseek.rewards.reward import Reward
from coseek.training.learner.batch import make_batch
from coseek.training.learner.logprobs import target_logprobs
from coseek.training.learner.workers import workers_here
from coseek.training.rl.callbacks import Callback, StepReport
from coseek.training.rl.settings import RlSettings, RolloutSettings

STEPS = 4


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return tiny_policy(tmp_path / "shared" / "policy")


class KeptWeights(Training):
    """A training that keeps the weights of every version."""

    def save_extra(self, folder: Path) -> None:
        super().save_extra(folder)
        kept = self.weights_of(self.backend.policy.updates_done)
        if not kept.exists():
            shutil.copytree(folder, kept)

    def weights_of(self, version: int) -> Path:
        return self.folder.parent / f"kept-{version}"


class Look(Callback):
    """A greedy evaluation by servers that also sample later steps."""

    def __init__(self, training: Training) -> None:
        self.agent = Agent(PROTOCOL, training.open_sampler(0.0))
        self.policy = training.backend.policy

    def after_step(self, report: StepReport) -> None:
        runs = rollout(self.agent, EchoRetriever(), QUESTIONS[:2], [1, 2], LIMITS)
        versions = {segment.version for run in runs for segment in run.segments if segment.author is Author.AGENT}
        report.row["eval/behind"] = max(self.policy.updates_done - (version or 0) for version in versions)


def keys_of(runs: Sequence[Sequence[Trajectory]]) -> list[list[tuple[str, int]]]:
    return [[(run.question.id, run.seed) for run in step] for step in runs]


def first_version(rows: Sequence[dict[str, float]], step: int) -> int:
    """The version of the weights at the beginning of a step."""
    return int(sum(row["updates"] for row in rows[:step]))


def gap_of(run: Trajectory, version: int, folder: Path) -> float:
    """The largest difference of a run's log-probabilities of one version from those of its weights."""
    batch = make_batch([run])
    network = load_model(folder, Placement(device="cpu", precision="float32"))
    with torch.no_grad():
        hidden = network(input_ids=batch.ids_BT).logits
    ours_BT = target_logprobs(hidden, lambda logits: logits, batch.ids_BT, batch.agent_BT, 1.0)
    of_BT = torch.tensor([[segment.version == version for segment in run.segments for _ in segment.ids]])
    return float((ours_BT - batch.logprobs_BT)[of_BT].abs().max())


@pytest.mark.slow
def test_no_token_is_older_than_allowed_or_of_other_weights_than_it_says(tmp_path: Path, policy: Path) -> None:
    wanted = Training(tmp_path / "here", policy, steps=STEPS)
    wanted.train()
    with servers(policy, 2) as live:
        training = KeptWeights(tmp_path / "there", policy, urls_of(live), ahead=2, steps=STEPS)
        rows = training.train(callbacks=[Look(training)])
    assert keys_of(training.trained) == keys_of(wanted.trained)  # each once, none lost
    assert [row["faults"] for row in rows] == [0] * STEPS and [row["eval/behind"] for row in rows] == [0] * STEPS
    for step, (row, runs) in enumerate(zip(rows, training.trained, strict=True)):
        begins = [first_version(rows, earlier) for earlier in range(step + 1)]
        ages = []
        for run in runs:
            for version in sorted({segment.version for segment in run.segments if segment.version is not None}):
                assert gap_of(run, version, training.weights_of(version)) < 1e-3
                ages.append(step - max(index for index, begin in enumerate(begins) if begin == version))
        assert max(ages) == row["steps_behind_max"] <= 2 and 0 <= row["waited"] <= 1
    assert max(row["steps_behind_max"] for row in rows) > 0


@pytest.mark.slow
def test_a_row_of_one_version_is_what_its_seed_gives_with_these_weights(tmp_path: Path, policy: Path) -> None:
    with servers(policy, 2) as live:
        training = KeptWeights(tmp_path / "there", policy, urls_of(live), ahead=1)

        def late(run: Trajectory) -> Reward:
            """The next step is sampled before this one is trained on."""
            until(lambda: len(training.runs) == min(len(training.trained) + 2, 3))
            return by_odd_ids(run)

        rows = training.train(late)
    assert [(row["steps_behind"], row["steps_behind_max"]) for row in rows] == [(0, 0), (1, 1), (1, 1)]
    assert rows[0]["logprob_gap"] < 1e-3 < rows[2]["logprob_gap"]  # the gap to older weights is seen
    for version, runs in ((0, training.runs[0]), (0, training.runs[1]), (1, training.runs[2])):
        weights = training.weights_of(version)
        with servers(weights, 1) as live:
            again = Training(tmp_path / "again", weights, urls_of(live))
            again.backend.refresh()
            assert ids(runs) == ids(again.rollout([run.question for run in runs], [run.seed for run in runs]))


@pytest.mark.slow
def test_no_turn_is_sampled_while_weights_are_changed(tmp_path: Path, policy: Path) -> None:
    with servers(policy, 1) as (server,):
        training = Training(tmp_path / "there", policy, [server.url], ahead=1)
        training.backend.refresh()
        pool = training.sampler
        assert isinstance(pool, ServerPool)
        prompt = tuple(training.tokenizer.encode(" one fish"))

        def request(key: int, tokens: int) -> Request:
            return Request(key, prompt, tokens, key, EpisodeState(QUESTIONS[0]))

        for key in range(3):
            pool.start(request(key, 100))
        pool.pause()
        written = server.written_tokens
        assert written > 0 and not server.running  # running requests were waited for
        pool.start(request(3, 20))
        pool.start(request(4, 20))
        pool.close(4)
        assert turns_of(pool, 3) == dict.fromkeys(range(3), 0)
        assert server.written_tokens == written  # the fourth was not sent
        pool.use((0,), 1)
        assert turns_of(pool, 1) == {3: 1}
        pool.pause()
        pool.start(request(5, 20))
        pool.use((), 2)  # no server loaded them
        (lost,) = until_turns(pool, 1)
        assert (lost.key, lost.end) == (5, TurnEnd.FAULT)
        pool.stop()
        with pytest.raises(ModelError, match="was stopped"):
            pool.step()


def until_turns(pool: ServerPool, count: int) -> list[Turn]:
    turns = pool.step()
    while len(turns) < count:
        turns += pool.step()
    return turns


def turns_of(pool: ServerPool, count: int) -> dict[int, int | None]:
    """The key of each of the next turns → the version of its weights."""
    return {turn.key: turn.version for turn in until_turns(pool, count)}


@pytest.mark.slow
def test_a_resumed_training_samples_again_what_it_had_not_trained_on(tmp_path: Path, policy: Path) -> None:
    """In the third step, while rollouts of the fourth are running."""
    wanted = Training(tmp_path / "here", policy, steps=STEPS)
    wanted.train()
    with servers(policy, 2) as live:
        ended = Training(tmp_path / "there", policy, urls_of(live), ahead=2, steps=STEPS, checkpoint_every=2)

        def end_in_the_third_step(run: Trajectory) -> Reward:
            if len(ended.trained) == 2:
                raise ZeroDivisionError
            return by_odd_ids(run)

        with pytest.raises(ZeroDivisionError):
            ended.train(end_in_the_third_step)
        training = Training(tmp_path / "there", policy, urls_of(live), ahead=2, steps=STEPS, checkpoint_every=2)
        rows = training.train(resume=True)
    assert [row["step"] for row in rows] == [1, 2, 3, 4] and [row["faults"] for row in rows] == [0] * STEPS
    assert keys_of(training.trained) == keys_of(wanted.trained)[2:]
    assert rows[2]["steps_behind_max"] == 0 and rows[2]["logprob_gap"] < 1e-3  # from the checkpoint's weights
    assert max(row["steps_behind_max"] for row in rows) <= 2


def train_together(folder: Path, policy: Path, urls: Sequence[str]) -> None:
    """What each of several workers does: train in turn, then ahead."""
    workers = workers_here()
    for ahead in (0, 1):
        training = Training(folder / f"ahead-{ahead}", policy, urls, ahead, workers)
        training.train()
        rows = [
            [(run.question.id, run.seed, run.ids) for step in kind for run in step]
            for kind in (training.runs, training.trained)
        ]
        (folder / f"ahead-{ahead}-{workers.rank}.json").write_text(json.dumps(rows))


@pytest.mark.slow
def test_workers_divide_the_rows_and_push_every_version_once(tmp_path: Path, policy: Path) -> None:
    with servers(policy, 1) as single:
        alone = Training(tmp_path / "here", policy, urls_of(single))
        alone.train()
    wanted = [[run.question.id, run.seed, list(run.ids)] for step in alone.trained for run in step]
    with servers(policy, 2) as live:
        run_workers(2, train_together, tmp_path, policy, urls_of(live))
    versions = 0
    for ahead in (0, 1):
        results = [json.loads((tmp_path / f"ahead-{ahead}-{rank}.json").read_text()) for rank in range(2)]
        shares, trained = [runs for runs, _ in results], [runs for _, runs in results]
        assert [len(share) for share in shares] == [12, 15]  # of 9 rows a step
        assert trained[0] == trained[1]
        assert [row[:2] for row in trained[0]] == [row[:2] for row in wanted]
        assert sorted(map(str, [*shares[0], *shares[1]])) == sorted(map(str, trained[0]))
        if not ahead:
            assert trained[0] == wanted
        rows = [json.loads(line) for line in (tmp_path / f"ahead-{ahead}" / "metrics.jsonl").read_text().splitlines()]
        assert [(row["faults"], row["servers"]) for row in rows] == [(0, 2)] * 3
        assert max(row.get("steps_behind_max", 0) for row in rows) <= ahead
        versions += 1 + sum(row["updates"] > 0 for row in rows)
    assert [server.paths.count("/collective_rpc") for server in live] == [versions] * 2 and versions > 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fails", "error"),
    [("reward", "a bug"), ("retriever", "a bug"), ("server", "no rollout server loaded the new weights")],
)
def test_an_error_ends_the_rollouts_in_progress(fails: str, error: str, tmp_path: Path, policy: Path) -> None:
    with ExitStack() as doomed:
        live = doomed.enter_context(servers(policy, 1))
        training = Training(tmp_path / "there", policy, urls_of(live), ahead=2 if fails == "reward" else 1)

        def pay(run: Trajectory) -> Reward:
            if fails == "reward":
                raise ZeroDivisionError("a bug")
            if fails == "server":
                doomed.close()
            return by_odd_ids(run)

        def search() -> None:
            if fails == "retriever" and training.runs:
                raise ZeroDivisionError("a bug")

        training.before_turn = search
        with pytest.raises((ZeroDivisionError, ModelError), match=error):
            training.train(pay)
        assert len(training.runs) < 3 and (fails != "retriever" or len(training.trained) == 1)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("coseek-rollout")]


def test_sampling_ahead_is_refused_where_it_cannot_be() -> None:
    with pytest.raises(SettingError, match="max_steps_behind=2 needs servers"):
        make_settings(RolloutSettings, {"max_steps_behind": 2})
    ahead = make_settings(RolloutSettings, {"servers": ["http://127.0.0.1:9"], "max_steps_behind": 1})
    with pytest.raises(SettingError, match="set max_steps_behind=0 or dynamic_sampling=false"):
        ahead.check(make_settings(RlSettings, {"dynamic_sampling": True}))
    ahead.check(RlSettings())


def until(done: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not done():
        assert time.monotonic() < ends
        time.sleep(0.01)
