"""Seams of the loop: an algorithm, a backend and a callback are one file or one class outside the package."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.training.echo import LEARNER, QUESTIONS, experience_of, fixed, reward, sampling, settings_of, train
from tests.training.tiny import agent, environment, tiny_model

from coseek.core.errors import SettingError, UnknownName
from coseek.core.plugins import plugin_names
from coseek.training.learner.policy import Policy
from coseek.training.learner.settings import LearnerSettings, OptimizerSettings
from coseek.training.learner.workers import ALONE
from coseek.training.rl import algorithm
from coseek.training.rl.algorithm import PACKAGE, StepRewards, open_algorithm, spread_over_steps
from coseek.training.rl.backend import open_backend
from coseek.training.rl.backends.local import LocalBackend
from coseek.training.rl.callbacks import Callback, StepReport
from coseek.training.rl.loop import train_rl

EXAMPLES = Path(__file__).parents[2] / "examples"
RECORDER = '''
"""Recorder: the local backend, with a list of the calls of its policy."""

from coseek.training.rl.backends import local

CALLS = []


class Recorded:
    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        CALLS.append(name)
        return getattr(self._model, name)


def make(network, settings, workers):
    backend = local.make(network, settings, workers)
    backend.policy = Recorded(backend.policy)
    return backend
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLES / "opo.py", tmp_path)
    (tmp_path / "recorder.py").write_text(RECORDER)
    return tmp_path


def test_a_users_algorithm_computes_the_advantages(here: Path) -> None:
    long = replace(fixed(QUESTIONS[0], right=False), segments=(environment(1), agent(2, 3, 4, 5, 6, 7)))
    experience = experience_of([fixed(QUESTIONS[0]), long], [0, 0], settings_of("opo.py"))
    # Two tokens with reward 1 and six with 0: the baseline is 2 / 8.
    assert experience.advantages_BT[:, 1].tolist() == [0.75, -0.25]


@pytest.mark.medium
def test_the_loop_reaches_the_models_only_through_the_backend(here: Path) -> None:
    weights: list[dict[str, torch.Tensor]] = []
    for name in ("local", "recorder.py"):
        settings = settings_of("grpo", steps=2, kl_coef=0.1, backend=name)
        network = tiny_model(3)
        backend = open_backend(settings, network, ALONE)
        runs = sampling(Policy(network, LEARNER, 0))
        train_rl(backend, QUESTIONS, runs, reward, settings, here / f"run-{len(weights)}")
        weights.append({key: value.clone() for key, value in network.state_dict().items()})
    assert all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())
    calls = vars(type(backend.policy))["__getattr__"].__globals__["CALLS"]
    assert calls.count("optim_step") == calls.count("forward_backward") == 4  # two steps of two minibatches
    assert {"forward", "state"} <= set(calls)


@pytest.mark.parametrize("name", plugin_names(PACKAGE))
def test_every_algorithm_is_found_by_name_and_refuses_unknown_settings(name: str) -> None:
    assert open_algorithm(settings_of(name)).name == name
    assert isinstance(open_algorithm(settings_of(name)).settings, algorithm.settings_of(name))
    with pytest.raises(UnknownName, match=f"no algorithm named '{name}x'; did you mean '{name}'"):
        algorithm.settings_of(f"{name}x")
    with pytest.raises(UnknownName, match=f"did you mean '{name}'"):
        open_algorithm(settings_of(f"{name}x"))
    with pytest.raises(SettingError, match="scale_by_stdd"):
        open_algorithm(settings_of(name, algorithm_settings={"scale_by_stdd": False}))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            "from coseek.training.rl.algorithm import GroupSettings as SETTINGS\n"
            "def advantages(step, settings): return step.rewards_B.mean()\n",
            "one number per token or per run",
        ),
        (
            "from coseek.training.rl.algorithm import CriticSettings as SETTINGS\n"
            "def advantages(step, settings): return step.token_rewards()\n",
            "returned no returns",
        ),
        (
            "from coseek.training.rl.algorithm import AlgorithmSettings as SETTINGS\ndef advantages(step): return 1\n",
            r"must take \(step, settings\), in this order",
        ),
        ("def advantages(step, settings): return 1\n", "has no 'SETTINGS', so it is no algorithm"),
        (
            "from coseek.training.rl.algorithm import AlgorithmSettings as SETTINGS\n"
            "def advantages(step, settings): raise ValueError('boo')\n",
            r"the algorithm file mine.py failed: ValueError: boo \(line 2\); mend it",
        ),
    ],
)
def test_a_file_that_is_no_algorithm_is_one_sentence(here: Path, source: str, says: str) -> None:
    (here / "mine.py").write_text(source)
    with pytest.raises(SettingError, match=says):
        train(here / "run", settings_of("mine.py"))


class Noted(Callback):
    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def begin(self) -> None:
        self.calls.append(("begin", 0))

    def before_step(self, report: StepReport) -> None:
        assert not report.row
        self.calls.append(("before", report.step))

    def after_step(self, report: StepReport) -> None:
        self.calls.append(("after", report.step))
        report.row["mine"] = float(len(report.episodes.episodes))


def test_a_callback_is_called_around_every_step_and_what_it_adds_is_written(tmp_path: Path) -> None:
    settings, noted = settings_of("grpo", steps=2), Noted()
    policy = Policy(tiny_model(3), settings.policy, settings.total_updates)
    backend = LocalBackend(policy, settings)
    last = train_rl(backend, QUESTIONS, sampling(policy), reward, settings, tmp_path, callbacks=[noted])
    assert noted.calls == [("begin", 0), ("before", 1), ("after", 1), ("before", 2), ("after", 2)]
    assert last["mine"] == 32.0 and '"mine": 32.0' in (tmp_path / "metrics.jsonl").read_text()


FALLING = LearnerSettings(optimizer=OptimizerSettings(lr_scheduler_type="linear"))
LEVEL = LearnerSettings(optimizer=OptimizerSettings(lr_scheduler_type="constant"))


@pytest.mark.parametrize(
    ("algorithm", "policy", "critic", "name"),
    [
        ("grpo", LEVEL, FALLING, ""),  # GRPO trains no critic
        ("ppo", LEVEL, LEVEL, ""),
        ("ppo", LEVEL, FALLING, "rl.critic.optimizer.lr_scheduler_type"),
        ("ppo", FALLING, FALLING, "rl.policy.optimizer.lr_scheduler_type"),
        ("grpo", FALLING, LEVEL, "rl.policy.optimizer.lr_scheduler_type"),
    ],
)
def test_a_decaying_rate_of_a_model_that_is_trained_follows_the_steps(
    algorithm: str, policy: LearnerSettings, critic: LearnerSettings, name: str
) -> None:
    assert spread_over_steps(settings_of(algorithm, policy=policy, critic=critic)) == name


def test_a_run_alone_in_its_group_has_no_advantage_unless_groups_are_of_one() -> None:
    def compared(group_size: int, *groups: tuple[int, ...]) -> list[float]:
        rewards_B, mask_BT = torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64), torch.ones(3, 2, dtype=torch.bool)
        step = StepRewards(rewards_B, torch.full((3, 2), 0.25), mask_BT, groups, group_size, torch.zeros(3).bool())
        advantages_B = step.compare_groups(lambda rewards_G: rewards_G.float())
        assert advantages_B.dtype == torch.float32
        advantages: list[float] = advantages_B.tolist()
        return advantages

    assert compared(2, (0, 2), (1,)) == [0.5, 0.0, 4.5]  # each less the KL of its two tokens
    assert compared(3, (0, 2), (1,)) == [0.5, 0.0, 4.5]
    assert compared(1, (0,), (1,), (2,)) == [0.5, 2.5, 4.5]


def test_a_users_algorithm_that_returns_nan_is_named_and_a_nan_of_the_model_is_not_its_fault(tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    own.write_text(
        "from coseek.training.rl.algorithm import GroupSettings as SETTINGS\n"
        "def advantages(step, settings): return step.every_token(step.rewards_B.float() / step.rewards_B)\n"
    )
    mask_BT = torch.tensor([[False, False], [True, True], [False, True]])

    def step(penalty: float) -> StepRewards:
        rewards_B = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
        return StepRewards(rewards_B, torch.full((3, 2), penalty), mask_BT, ((0, 1, 2),), 3, torch.zeros(3).bool())

    with pytest.raises(SettingError, match=r"the algorithm mine returned advantages that are not finite \(row 2\)"):
        open_algorithm(settings_of(str(own))).advantages(step(0.0))
    open_algorithm(settings_of(str(own))).advantages(step(float("nan")))  # the gradient will say so
