"""Seams of the loop: an algorithm, a backend and a callback are one file or one class outside the package."""

import shutil
from pathlib import Path

import pytest
import torch
from tests.training.echo import LEARNER, QUESTIONS, fixed, reward, sampling, settings_of, train
from tests.training.tiny import agent, environment, tiny_model

from coseek.core.errors import SettingError, UnknownName
from coseek.core.plugins import plugin_names
from coseek.data.trajectory import StopReason, Trajectory
from coseek.training.learner.policy import Policy
from coseek.training.learner.workers import ALONE
from coseek.training.rl.algorithm import PACKAGE, open_algorithm
from coseek.training.rl.backend import open_backend
from coseek.training.rl.backends.local import LocalBackend
from coseek.training.rl.callbacks import Callback, StepReport
from coseek.training.rl.experience import make_experience
from coseek.training.rl.rollout import score
from coseek.training.rl.trainer import train_rl

EXAMPLES = Path(__file__).parents[2] / "examples"
RECORDER = '''
"""Recorder: the local backend, with a list of what was asked of its policy."""

from coseek.training.rl.backends import local

ASKED = []
NAMES = ("forward", "forward_backward", "optim_step", "weights", "load_weights", "state", "load_state")


class Recorded:
    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        if name in NAMES:
            ASKED.append(name)
        return getattr(self._model, name)


class Recorder(local.LocalBackend):
    def __init__(self, policy, settings):
        super().__init__(policy, settings)
        self.policy = Recorded(policy)


def make(network, settings, workers):
    made = local.make(network, settings, workers)
    return Recorder(made.policy, settings)
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLES / "opo.py", tmp_path)
    (tmp_path / "recorder.py").write_text(RECORDER)
    return tmp_path


def test_an_algorithm_of_ones_own_is_its_own_arithmetic(here: Path) -> None:
    settings = settings_of("opo.py")
    long = Trajectory(
        QUESTIONS[0], "test", (environment(1), agent(2, 3, 4, 5, 6, 7)), (), StopReason.ANSWERED, "no", True
    )
    policy = Policy(tiny_model(), settings.policy, 1)
    episodes = score([0, 0], [fixed(QUESTIONS[0]), long], reward)
    found = make_experience(episodes, settings, open_algorithm(settings), LocalBackend(policy, settings))
    # Two tokens paid 1 and six paid 0: the baseline is 2 / 8.
    assert found.advantages_BT[:, 1].tolist() == [0.75, -0.25]


@pytest.mark.slow
def test_a_policy_learns_with_an_algorithm_of_ones_own(here: Path) -> None:
    _, rows = train(here / "run", settings_of("opo.py"))
    assert sum(row["reward"] for row in rows[-3:]) / 3 > 0.25 > 0.2 > rows[0]["reward"]


def test_a_backend_of_ones_own_is_all_that_the_loop_knows(here: Path) -> None:
    weights: list[dict[str, torch.Tensor]] = []
    for name in ("local", "recorder.py"):
        settings = settings_of("grpo", steps=2, kl_coef=0.1, backend=name)
        network = tiny_model(3)
        backend = open_backend(settings, network, ALONE)
        runs = sampling(Policy(network, LEARNER, 0))
        train_rl(backend, QUESTIONS, runs, reward, settings, here / f"run-{len(weights)}")
        weights.append({key: value.clone() for key, value in network.state_dict().items()})
    assert all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())
    asked = type(backend).__init__.__globals__["ASKED"]
    assert asked.count("optim_step") == asked.count("forward_backward") == 4  # two steps of two minibatches
    assert {"forward", "state"} <= set(asked)


@pytest.mark.parametrize("name", plugin_names(PACKAGE))
def test_every_algorithm_says_what_it_can_be_told_and_refuses_the_rest(name: str) -> None:
    assert open_algorithm(settings_of(name)).name == name
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
