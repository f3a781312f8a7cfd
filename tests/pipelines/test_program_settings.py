"""Fear: `preset=code` is called what the published programs do, and trains otherwise.

The values are those of the programs' own command lines, by their own names, and of the defaults below them
(`verl/trainer/config/ppo_trainer.yaml`, `verl/workers/fsdp_workers.py`).
"""

from collections.abc import Callable

import pytest

from coseek.agents.protocol import load_protocol
from coseek.pipelines.agent_recipe import AgentRecipe, load_recipe
from coseek.pipelines.together_recipe import load_together_recipe
from coseek.rewards.parts.format import FormatSettings
from coseek.rewards.reward import make_reward
from coseek.training.rl.algorithm import open_algorithm

DEFAULTS: dict[str, object] = {
    "clip_ratio": 0.2, "entropy_coeff": 0.001, "ppo_epochs": 1, "grad_clip": 1.0, "weight_decay": 0.01,
    "top_p": 0.95, "betas": (0.9, 0.999), "warmup_style": "constant", "use_kl_loss": False, "n_agent": 1,
}  # fmt: skip
GAE: dict[str, object] = {"adv_estimator": "gae", "cliprange_value": 0.5, "gamma": 1.0, "lam": 1.0, "critic.lr": 1e-5}
SEARCH_R1: dict[str, object] = {
    **DEFAULTS, "train_batch_size": 512, "max_prompt_length": 4096, "max_response_length": 500, "max_obs_length": 500,
    "ppo_mini_batch_size": 256, "lr_warmup_steps_ratio": 0.285, "temperature": 1.0, "kl_coef": 0.001, "max_turns": 4,
    "topk": 3, "total_training_steps": 1005, "save_freq": 100, "test_freq": 100,
}  # fmt: skip
FORMAT: dict[str, object] = {"structure_format_score": 0.2, "final_format_score": 0.1}
PPO = {**SEARCH_R1, **GAE, "lr": 1e-6, "critic.lr_warmup_steps_ratio": 0.015, "top_p": 1.0}
SCRIPTS: dict[str, dict[str, object]] = {
    # scripts/nq_hotpotqa/v0.3/train_ppo_format.sh; the same numbers in v0.2
    "search-r1-ppo": {**PPO, **FORMAT},
    # scripts/nq_hotpotqa/v0.3/train_grpo_format.sh; v0.2 has lr 1e-6
    "search-r1-grpo": {
        **SEARCH_R1, **FORMAT, "adv_estimator": "grpo", "lr": 5e-7, "n_agent": 5, "use_kl_loss": True,
        "kl_loss_type": "low_var_kl",
    },
    # scripts/train/train_s3.sh; copies of it differ in the number of steps, of which the paper takes 20
    "s3": {
        **DEFAULTS, **GAE, "train_batch_size": 120, "max_prompt_length": 8000, "max_response_length": 500,
        "max_obs_length": 1400, "lr": 1e-6, "lr_warmup_steps_ratio": 0.0, "critic.lr_warmup_steps_ratio": 0.01,
        "ppo_mini_batch_size": 30, "temperature": 0.6, "kl_coef": 0.001, "max_turns": 3, "topk": 8,
    },
    # Search-R1's PPO with longer turns and fewer steps; its five searches are the paper's
    "agentic-r": {
        **PPO, "max_turns": 5, "max_response_length": 800, "max_obs_length": 800, "total_training_steps": 400,
    },
}  # fmt: skip


def rows_a_step(recipe: AgentRecipe) -> int:
    return recipe.rl.questions_per_step * recipe.rl.group_size


def format_settings(recipe: AgentRecipe) -> FormatSettings:
    """Of the code's variant, the one part of the reward."""
    (part,) = make_reward(recipe.reward).parts
    assert part.name == "format" and isinstance(part.settings, FormatSettings) and part.settings.variant == "code"
    return part.settings


HERE: dict[str, Callable[[AgentRecipe], object]] = {
    "structure_format_score": lambda one: format_settings(one).lambda_f,
    "final_format_score": lambda one: format_settings(one).answer_found,
    "train_batch_size": lambda one: one.rl.questions_per_step,
    "n_agent": lambda one: one.rl.group_size,
    "max_prompt_length": lambda one: one.limits.max_tokens,
    "max_response_length": lambda one: one.limits.max_turn_tokens,
    "max_obs_length": lambda one: one.limits.max_observation_tokens,
    "max_turns": lambda one: one.limits.max_turns,
    "topk": lambda one: one.limits.passages_per_search,
    "adv_estimator": lambda one: {"ppo": "gae"}.get(one.rl.algorithm, one.rl.algorithm),
    "ppo_mini_batch_size": lambda one: rows_a_step(one) / one.rl.num_minibatches,  # rows, not questions
    "ppo_epochs": lambda one: one.rl.epochs,
    "temperature": lambda one: one.rl.temperature,
    "top_p": lambda one: one.rl.top_p,
    "clip_ratio": lambda one: one.rl.clip_ratio_low if one.rl.clip_ratio_low == one.rl.clip_ratio_high else None,
    "entropy_coeff": lambda one: one.rl.entropy_coef,
    "use_kl_loss": lambda one: one.rl.kl_location == "loss",
    "kl_loss_type": lambda one: {"k3": "low_var_kl"}.get(one.rl.kl_estimator),
    "kl_coef": lambda one: one.rl.kl_coef,
    "cliprange_value": lambda one: open_algorithm(one.rl).value_clip,
    "gamma": lambda one: open_algorithm(one.rl).settings.model_dump()["gamma"],
    "lam": lambda one: open_algorithm(one.rl).settings.model_dump()["lam"],
    "lr": lambda one: one.rl.policy.optimizer.lr,
    "lr_warmup_steps_ratio": lambda one: one.rl.policy.optimizer.warmup_ratio,
    "warmup_style": lambda one: one.rl.policy.optimizer.lr_scheduler_type,
    "weight_decay": lambda one: one.rl.policy.optimizer.decay_vectors and one.rl.policy.optimizer.weight_decay,
    "betas": lambda one: one.rl.policy.optimizer.betas,
    "grad_clip": lambda one: one.rl.policy.optimizer.max_grad_norm,
    "critic.lr": lambda one: one.rl.critic.optimizer.lr,
    "critic.lr_warmup_steps_ratio": lambda one: one.rl.critic.optimizer.warmup_ratio,
    "total_training_steps": lambda one: one.rl.steps,
    "save_freq": lambda one: one.rl.checkpoint_every,
    "test_freq": lambda one: one.rl.evaluate_every,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_code_preset_holds_every_value_of_the_program_s_script(name: str) -> None:
    if name == "agentic-r":
        recipe = load_together_recipe(name, ["agent.preset=code"]).agent
    else:
        recipe = load_recipe(name, ["preset=code"])
    assert {key: HERE[key](recipe) for key in SCRIPTS[name]} == SCRIPTS[name]
    assert load_protocol(recipe.protocol).file.retries and recipe.rl.old_logprobs == "recompute"
    if name != "search-r1-grpo":
        critic, policy = recipe.rl.critic.optimizer, recipe.rl.policy.optimizer
        assert (critic.weight_decay, critic.decay_vectors) == (policy.weight_decay, policy.decay_vectors)


def test_search_r1_asks_again_and_its_laptop_recipes_end_as_they_were_measured() -> None:
    for name in ("search-r1-ppo", "search-r1-grpo", "rejection-sampling", "zerosearch"):
        assert load_protocol(load_recipe(name).protocol).file.retries
        assert load_recipe(name, ["preset=laptop"]).protocol == "search-r1"
    strict = load_recipe("search-r1-grpo", ["preset=strict"])
    assert strict.protocol == "search-r1" and not load_protocol("search-r1").file.retries
    assert load_recipe("search-r1-grpo").rl == strict.rl
