"""Our arithmetic compared with TRL's and verl's on the same tensors. Differences: bench/results/parity.md.

TRL comes with the `dev` extra. verl pins another transformers, so it has to be put there by hand; without it these
tests are skipped. Known differences are written out here, so that everything else must agree.
"""

import random
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from tests.training.echo import settings_of
from tests.training.tiny import VOCABULARY, agent, clipped_losses, environment, seeded, trajectory
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from coseek.models.tokenizer import HfTokenizer, train_tokenizer
from coseek.rewards.reward import Reward
from coseek.training.learner.logprobs import entropies
from coseek.training.learner.policy import Policy
from coseek.training.learner.settings import LearnerSettings, OptimizerSettings
from coseek.training.rl.algorithm import open_algorithm
from coseek.training.rl.backends.local import LocalBackend
from coseek.training.rl.experience import Experience, make_experience
from coseek.training.rl.losses import (
    gae,
    group_advantages,
    kl_estimate,
    leave_one_out,
    loss_weights,
    rewards_to_come,
    value_loss,
    whiten,
)
from coseek.training.rl.rollout import score
from coseek.training.rl.settings import KlEstimator, LossAggMode
from coseek.training.rl.update import update_weights

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the libraries' own warnings
REWARDS = torch.tensor([0.0, 1.0, 0.3, 0.25, 0.25, 0.25])
"""Two groups of three; the second has no spread."""


@pytest.fixture(scope="module")
def verl() -> ModuleType:
    module: ModuleType = pytest.importorskip("verl.trainer.ppo.core_algos", exc_type=ImportError)
    return module


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    """Six rows of nine tokens, some of which the environment wrote, in float64."""
    draw = torch.Generator().manual_seed(0)
    mask_BT = torch.rand(6, 9, generator=draw) < 0.6
    mask_BT[:, 4] = True
    names = ("old", "new", "ref", "a", "v", "r")
    noise = {name: torch.randn(6, 9, generator=draw, dtype=torch.float64) for name in names}
    return {**noise, "mask": mask_BT, "float_mask": mask_BT.double()}


def by_group(rewards_B: Tensor) -> Tensor:
    return torch.cat([group_advantages(rewards_B[:3]), group_advantages(rewards_B[3:])])


def bessel(count: int) -> float:
    """Ours is the population's spread, theirs the sample's."""
    return float(np.sqrt((count - 1) / count))


# --- verl -----------------------------------------------------------------------------------------------------------


def test_verls_advantages_are_ours_but_for_the_sample_spread_and_its_eps(verl: ModuleType) -> None:
    scores_BT, mask_BT = torch.zeros(6, 4), torch.ones(6, 4)
    scores_BT[:, -1] = REWARDS
    index = np.array([0, 0, 0, 1, 1, 1])
    centred, _ = verl.compute_grpo_outcome_advantage(scores_BT, mask_BT, index, norm_adv_by_std_in_grpo=False)
    assert torch.allclose(centred[:3, 0], group_advantages(REWARDS[:3], scale=False))
    scaled, _ = verl.compute_grpo_outcome_advantage(scores_BT, mask_BT, index)
    assert torch.allclose(scaled[:, 0], by_group(REWARDS) * bessel(3), atol=1e-4)
    loo, _ = verl.compute_rloo_outcome_advantage(scores_BT, mask_BT, index)
    assert torch.allclose(loo[:, 0], torch.cat([leave_one_out(REWARDS[:3]), leave_one_out(REWARDS[3:])]), atol=1e-6)


def test_a_residue_of_rounding_is_no_advantage_here_and_one_at_verl(verl: ModuleType) -> None:
    """Three rewards of 0.9 in float32: the mean need not be 0.9, and 1 / (0 + eps) makes that residue count."""
    scores_BT = torch.full((3, 1), 0.9)
    theirs, _ = verl.compute_grpo_outcome_advantage(scores_BT, torch.ones(3, 1), np.array([0, 0, 0]))
    assert group_advantages(torch.full((3,), 0.9)).tolist() == [0, 0, 0]
    print(f"verl gives a group without spread {theirs[:, 0].tolist()}")
    assert float(theirs.abs().max()) < 0.1


def test_verls_gae_and_reinforce_plus_plus_are_ours_but_for_the_sample_spread(
    verl: ModuleType, tensors: dict[str, Tensor]
) -> None:
    mask_BT, factor = tensors["mask"], bessel(int(tensors["mask"].sum()))
    rewards_BT, values_BT = tensors["r"] * tensors["float_mask"], tensors["v"]
    theirs, returns = verl.compute_gae_advantage_return(rewards_BT, values_BT, tensors["float_mask"], 0.9, 0.8)
    ours, our_returns = gae(rewards_BT, values_BT, mask_BT, 0.9, 0.8)
    assert torch.allclose(returns[mask_BT], our_returns[mask_BT])
    assert torch.allclose(theirs[mask_BT], whiten(ours, mask_BT)[mask_BT] * factor, atol=1e-6)
    theirs, returns = verl.compute_reinforce_plus_plus_outcome_advantage(
        rewards_BT, tensors["float_mask"], config=verl.AlgoConfig(gamma=0.9)
    )
    ours = rewards_to_come(rewards_BT, mask_BT, 0.9)
    assert torch.allclose(returns, ours)
    assert torch.allclose(theirs, whiten(ours, mask_BT) * factor, atol=1e-6)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_verls_policy_and_value_loss_are_ours_but_for_the_second_clip(
    verl: ModuleType, tensors: dict[str, Tensor], mode: LossAggMode
) -> None:
    """`clip_ratio_c`, a second clip at negative advantages, is always on at verl; far away here, it is ours."""
    old, new, a, mask_BT = tensors["old"], tensors["new"], tensors["a"], tensors["mask"]
    weights_BT = loss_weights(mask_BT, mode, loss_scale_factor=9)
    clips = {"cliprange_low": 0.2, "cliprange_high": 0.28, "clip_ratio_c": 1e12}
    theirs, *_ = verl.compute_policy_loss(old, new, a, tensors["float_mask"], loss_agg_mode=mode, **clips)
    ours = clipped_losses(new, old, a, mask_BT, clip_ratio_high=0.28)
    assert float((ours * weights_BT).sum()) == pytest.approx(float(theirs), rel=1e-6)
    theirs, _ = verl.compute_value_loss(new, tensors["r"], old, tensors["float_mask"], 0.2, loss_agg_mode=mode)
    assert float((value_loss(new, old, tensors["r"], mask_BT, 0.2) * weights_BT).sum()) == pytest.approx(
        float(theirs), rel=1e-6
    )


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_verls_kl_estimates_are_ours_with_its_clamp(
    verl: ModuleType, tensors: dict[str, Tensor], kind: KlEstimator
) -> None:
    """It cuts k3 at 10, and only that."""
    theirs = verl.kl_penalty(3 * tensors["new"], tensors["ref"], kind)
    ours = kl_estimate(3 * tensors["new"], tensors["ref"], tensors["mask"], kind, 10.0 if kind == "k3" else None)
    assert torch.allclose(theirs[tensors["mask"]], ours[tensors["mask"]])


def test_verls_entropy_is_ours(verl: ModuleType) -> None:
    raw = torch.randn(7, VOCABULARY, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(verl.verl_F.entropy_from_logits(raw), entropies(raw, rows=3), atol=1e-5)


# --- TRL ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer() -> HfTokenizer:
    return HfTokenizer(train_tokenizer(["a b c d"], ("<answer>",), 300))


def small_llama(tokenizer: HfTokenizer) -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=len(tokenizer.fast), hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, pad_token_id=None, bos_token_id=None,
        eos_token_id=tokenizer.eos_id,
    )  # fmt: skip
    return seeded(LlamaForCausalLM, config)


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_trls_advantages_are_ours_but_for_the_sample_spread_and_its_eps(
    tmp_path: Path, tokenizer: HfTokenizer, algorithm: str
) -> None:
    """Its trainer samples; the rewards are fixed."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")

    kind, config = (trl.GRPOTrainer, trl.GRPOConfig) if algorithm == "grpo" else (trl.RLOOTrainer, trl.RLOOConfig)
    trainer = kind(
        model=small_llama(tokenizer),
        reward_funcs=lambda completions, **_: REWARDS.tolist(),
        args=config(
            output_dir=str(tmp_path), report_to=[], use_cpu=True, bf16=False, beta=0.0, per_device_train_batch_size=6,
            num_generations=3, max_completion_length=3,
        ),
        train_dataset=datasets.Dataset.from_list([{"prompt": "a b"}] * 6),
        processing_class=tokenizer.fast,
    )  # fmt: skip
    trainer.model.train()
    advantages = trainer._generate_and_score_completions([{"prompt": "a b"}] * 6)["advantages"]
    if algorithm == "grpo":
        std = float(REWARDS[:3].std())
        assert torch.allclose(advantages, by_group(REWARDS) * bessel(3) * std / (std + 1e-4), atol=1e-5)
    else:
        expected = torch.cat([leave_one_out(REWARDS[:3]), leave_one_out(REWARDS[3:])])
        assert torch.allclose(advantages, expected, atol=1e-6)


def step_of(policy: Policy, reference: Policy, loss_agg_mode: str) -> Experience:
    """Six runs with observations in them, with prompts of four tokens, and their reference."""
    rng = random.Random(0)

    def ids(low: int, high: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high))]

    runs = [
        trajectory(
            environment(*ids(4, 4)), agent(*ids(1, 5), logprob=-5.5), environment(*ids(1, 4)),
            agent(*ids(1, 3), logprob=-5.8), question=str(number),
        )
        for number in range(6)
    ]  # fmt: skip
    paid = iter([0.0, 1.0, 0.3, 0.2, 0.6, 0.9])
    episodes = score([0, 0, 0, 1, 1, 1], runs, lambda _: Reward(next(paid)))
    choice = settings_of("grpo", kl_coef=0.1, loss_agg_mode=loss_agg_mode)
    backend = LocalBackend(policy, choice)
    backend.reference = reference
    return make_experience(episodes, choice, open_algorithm(choice), backend)


@pytest.mark.parametrize(
    ("loss_type", "loss_agg_mode", "policy_loss"),
    [
        ("bnpo", "token-mean", "ppo-clip"),
        ("dapo", "token-mean", "ppo-clip"),
        ("grpo", "seq-mean-token-mean", "ppo-clip"),
        ("dr_grpo", "seq-mean-token-sum-norm", "dr-grpo"),
        ("grpo", "seq-mean-token-mean", "gspo"),
        ("cispo", "token-mean", "cispo"),
        ("sapo", "seq-mean-token-mean", "sapo"),
    ],
)
def test_trls_loss_gives_the_gradient_that_ours_gives(
    tmp_path: Path, tokenizer: HfTokenizer, loss_type: str, loss_agg_mode: LossAggMode, policy_loss: str
) -> None:
    """The whole road: ids, masks, ratios off 1, both clips, k3 against a reference, loss_agg_mode, backward."""
    pytest.importorskip("trl")
    from tests.training.trl_side import inputs_of, trl_loss

    linear = OptimizerSettings(lr=1e6, eps=1e3, max_grad_norm=0.0)
    policy = Policy(small_llama(tokenizer), LearnerSettings(optimizer=linear), 1)
    other = small_llama(tokenizer)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(3.0)
    experience = step_of(policy, Policy(other, LearnerSettings(), 1), loss_agg_mode)
    other.save_pretrained(tmp_path / "reference")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "reference")
    model.load_state_dict(policy.model.state_dict())
    their_loss = trl_loss(
        model, tokenizer, tmp_path, inputs_of(experience, 4), loss_type=loss_type,
        clip_ratio_high=1.28 if loss_type == "cispo" else 0.28,  # its epsilon_high is the largest weight itself
        level="sequence" if policy_loss == "gspo" else "token",
    )  # fmt: skip
    their_loss.backward()
    before = [weight.detach().clone() for weight in policy.module.parameters()]
    choice = settings_of(
        "grpo", kl_coef=0.1, clip_ratio_high=0.28, loss_agg_mode=loss_agg_mode, loss_scale_factor=20,
        num_minibatches=1, group_size=3, policy_loss=policy_loss,
        policy_loss_settings={"max_weight": 1.28} if policy_loss == "cispo" else {},
    )  # fmt: skip
    metrics = update_weights(experience, choice, open_algorithm(choice), LocalBackend(policy, choice), random.Random(0))
    assert metrics["loss"] == pytest.approx(float(their_loss.detach()), rel=1e-4)
    assert metrics["clip_frac"] > 0 if policy_loss in ("ppo-clip", "dr-grpo") else "clip_frac" not in metrics
    # The first step of AdamW with a huge eps is lr · g / (|g| + eps): our weights show our gradient.
    largest = 0.0
    for old, new, their in zip(before, policy.module.parameters(), model.parameters(), strict=True):
        assert their.grad is not None
        expected = 1e6 * their.grad / (their.grad.abs() + 1e3)
        largest = max(largest, float(((old - new).detach() - expected).abs().max() / expected.abs().max()))
    print(f"largest difference: {largest:.1e} of a gradient's largest entry")
    assert largest < 1e-5
