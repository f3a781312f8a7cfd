"""One setting for what a paper says and what its program does: it expands where everybody can read it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.agents.playing import QUESTION, Shelf, play

from coseek.agents.protocol import load_protocol
from coseek.agents.sources import served_context
from coseek.core.errors import SettingError
from coseek.core.settings import dump_settings
from coseek.data.passage import Corpus, Passage
from coseek.data.trajectory import StopReason
from coseek.graders.generator import ContextBudget
from coseek.pipelines.agent_recipe import AgentRecipe, load_recipe
from coseek.pipelines.estimate import PROMPT_TOKENS
from coseek.pipelines.together_recipe import load_together_recipe
from coseek.retrieval.retrievers.simulated import SimulatedSettings
from coseek.rewards.parts.format import FormatSettings
from coseek.rewards.reward import make_reward
from coseek.training.rl.algorithm import open_algorithm


def contexts(*overrides: str) -> int:
    """Contexts that a generator gets from an agent that selects three documents a turn and never stops."""
    recipe = load_recipe("s3", overrides)
    corpus = [Passage(f"d{n}", f"T{n}", f"text {n}") for n in range(64)]
    shelves = {f"q{n}": [f"d{n * 8 + m}" for m in range(8)] for n in range(1, 8)}
    retriever = Shelf(Corpus(corpus), {QUESTION.question: [f"d{m}" for m in range(8)], **shelves})
    more = "<important_info>[1, 2, 3]</important_info><search_complete>False</search_complete>"
    more += '<query>{"query": "q%d"}</query>'
    limits = recipe.limits.model_copy(update={"max_turn_tokens": 500, "max_tokens": 60_000})
    run = play(recipe.protocol, *(more % number for number in range(1, 8)), retriever=retriever, limits=limits)
    assert run.stop is StopReason.TURN_LIMIT
    return len(served_context(run))


def test_the_paper_s_s3_serves_nine_contexts_and_its_program_twelve() -> None:
    assert contexts() == contexts("preset=paper") == 9
    assert contexts("preset=code") == 12


def test_s3_blocks_without_a_selection_reach_the_generator_whole() -> None:
    recipe = load_recipe("s3")
    budget, limits = recipe.graders.generator, recipe.limits
    assert budget is not None
    count = limits.passages_of(0) + limits.max_turns * limits.passages_of(1)
    passages = [Passage(f"d{n}", f"T{n}", f"word{n} " * 130) for n in range(count)]
    given, _ = ContextBudget(budget.max_context_tokens, budget.max_passages).fill(passages)
    assert count == 19 and [passage.text.count(" ") for passage in given] == [129] * count


def test_five_simulated_documents_reach_the_agent_of_zerosearch_whole() -> None:
    recipe = load_recipe("zerosearch")
    written = SimulatedSettings(model="").document_tokens - 1
    corpus = Corpus([Passage(f"d{number}", f"Title {number}", "x" * written + "!") for number in range(5)])
    retriever = Shelf(corpus, {"q": [passage.id for passage in corpus]})
    look = "<think>a</think><search>q</search>"
    limits = recipe.limits.model_copy(update={"max_tokens": 60_000})  # one character, one token
    run = play(recipe.protocol, look, "<think>a</think><answer>b</answer>", retriever=retriever, limits=limits)
    seen = [segment.text for segment in run.segments if segment.tag == "information"]
    assert len(run.searches[0].hits) == 5 and seen[0].count("x!") == 5

    limits, least = recipe.limits, 5 * (written + 1)
    each_turn = limits.max_turn_tokens + limits.passages_per_search * (limits.max_document_tokens or 0)
    assert each_turn - limits.max_turn_tokens > least
    assert limits.max_turns * each_turn + limits.max_turn_tokens + PROMPT_TOKENS <= limits.max_tokens


def test_a_preset_stands_in_the_record_as_the_settings_that_it_means() -> None:
    recipe = load_recipe("s3", ["preset=code"])
    assert (recipe.preset, recipe.protocol, recipe.limits.max_turns) == ("code", "s3-code", 3)
    assert (recipe.reward, recipe.rl.entropy_coef, recipe.presets) == ({"preset": "s3-code"}, 0.001, {})
    grpo = load_recipe("search-r1-grpo", ["preset=code"])
    assert (grpo.protocol, grpo.rl.entropy_coef, grpo.rl.algorithm) == ("search-r1-code", 0.001, "grpo")
    assert (grpo.rl.kl_clamp, load_recipe("search-r1-ppo", ["preset=code"]).rl.kl_clamp) == (10, None)


def test_a_preset_of_a_co_trainings_agent_is_applied_below_what_the_recipe_says_and_a_misspelt_one_refused() -> None:
    agent = load_together_recipe("agentic-r", ["agent.preset=code", "agent.rl.entropy_coef=0.5"]).agent
    assert (agent.preset, agent.protocol, agent.rl.top_p, agent.rl.old_logprobs) == (
        "code", "search-r1-code", 1.0, "recompute",
    )  # fmt: skip
    assert (agent.limits.max_turn_tokens, agent.rl.steps, agent.rl.entropy_coef) == (800, 400, 0.5)
    assert agent.reward == {"exact_match": 1.0}
    named = load_together_recipe("agentic-r", ["agent=search-r1-ppo", "agent.preset=code"]).agent
    assert (named.protocol, named.rl.steps) == ("search-r1-code", 1005)
    with pytest.raises(SettingError, match="no preset 'cod'; did you mean"):
        load_together_recipe("agentic-r", ["agent.preset=cod"])


@pytest.mark.parametrize(("name", "top_p"), [("s3", 0.95), ("search-r1-ppo", 1.0), ("search-r1-grpo", 0.95)])
def test_two_programs_sample_from_a_nucleus_and_the_papers_from_the_whole_softmax(name: str, top_p: float) -> None:
    sampled = [load_recipe(name, [f"preset={preset}"]).rl for preset in ("paper", "code")]
    assert [(rl.top_p, rl.old_logprobs) for rl in sampled] == [(1.0, "rollout"), (top_p, "recompute")]
    with pytest.raises(SettingError, match="add old_logprobs=recompute"):
        load_recipe(name, ["rl.top_p=0.95"])


def test_what_was_typed_beside_a_preset_wins_and_outlives_the_record(tmp_path: Path) -> None:
    typed = load_recipe("s3", ["limits.max_turns=7", "preset=code"])
    assert (typed.limits.max_turns, typed.protocol) == (7, "s3-code")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"recipe": dump_settings(typed)}))
    assert load_recipe(str(tmp_path / "recipe.yaml")) == typed


def test_a_setting_of_a_stage_that_is_not_there_makes_no_stage_and_a_list_names_no_preset() -> None:
    with pytest.raises(SettingError, match="no stage 'endtoend'; did you mean 'end-to-end'"):
        load_recipe("qagent", ["stages.endtoend.rl.steps=3"])
    with pytest.raises(SettingError, match="no preset"):
        load_recipe("qagent", ["preset=[laptop]"])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("rl.num_generations=4", "rl.group_size"),
        ("rl.learning_rate=1e-6", "rl.policy.optimizer.lr"),
        ("max_steps=100", "rl.steps"),
        ("rl.beta=0.01", "rl.kl_coef"),
        ("rl.policy.optimizer.decay=cosine", "rl.policy.optimizer.lr_scheduler_type"),
        ("rl.policy.workers=fsdp2", "rl.policy.strategy"),
        ("rl.importance=mask", "rl.rollout_is"),
        ("rl.kl=0", "rl.kl_coef"),
        ("rl.resample=true", "rl.dynamic_sampling"),
        ("rl.policy.optimiser.lr=1", "rl.policy.optimizer"),
    ],
)
def test_names_of_other_libraries_and_of_older_versions_lead_to_the_setting(typed: str, meant: str) -> None:
    with pytest.raises(SettingError, match=f"did you mean '{meant}"):
        load_recipe("search-r1-grpo", [typed])


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
    "structure_format_score": lambda recipe: format_settings(recipe).lambda_f,
    "final_format_score": lambda recipe: format_settings(recipe).answer_found,
    "train_batch_size": lambda recipe: recipe.rl.questions_per_step,
    "n_agent": lambda recipe: recipe.rl.group_size,
    "max_prompt_length": lambda recipe: recipe.limits.max_tokens,
    "max_response_length": lambda recipe: recipe.limits.max_turn_tokens,
    "max_obs_length": lambda recipe: recipe.limits.max_observation_tokens,
    "max_turns": lambda recipe: recipe.limits.max_turns,
    "topk": lambda recipe: recipe.limits.passages_per_search,
    "adv_estimator": lambda recipe: {"ppo": "gae"}.get(recipe.rl.algorithm, recipe.rl.algorithm),
    "ppo_mini_batch_size": lambda recipe: rows_a_step(recipe) / recipe.rl.num_minibatches,  # rows, not questions
    "ppo_epochs": lambda recipe: recipe.rl.epochs,
    "temperature": lambda recipe: recipe.rl.temperature,
    "top_p": lambda recipe: recipe.rl.top_p,
    "clip_ratio": lambda recipe: (
        recipe.rl.clip_ratio_low if recipe.rl.clip_ratio_low == recipe.rl.clip_ratio_high else None
    ),
    "entropy_coeff": lambda recipe: recipe.rl.entropy_coef,
    "use_kl_loss": lambda recipe: recipe.rl.kl_location == "loss",
    "kl_loss_type": lambda recipe: {"k3": "low_var_kl"}.get(recipe.rl.kl_estimator),
    "kl_coef": lambda recipe: recipe.rl.kl_coef,
    "cliprange_value": lambda recipe: open_algorithm(recipe.rl).value_clip,
    "gamma": lambda recipe: open_algorithm(recipe.rl).settings.model_dump()["gamma"],
    "lam": lambda recipe: open_algorithm(recipe.rl).settings.model_dump()["lam"],
    "lr": lambda recipe: recipe.rl.policy.optimizer.lr,
    "lr_warmup_steps_ratio": lambda recipe: recipe.rl.policy.optimizer.warmup_ratio,
    "warmup_style": lambda recipe: recipe.rl.policy.optimizer.lr_scheduler_type,
    "weight_decay": lambda recipe: recipe.rl.policy.optimizer.decay_vectors and recipe.rl.policy.optimizer.weight_decay,
    "betas": lambda recipe: recipe.rl.policy.optimizer.betas,
    "grad_clip": lambda recipe: recipe.rl.policy.optimizer.max_grad_norm,
    "critic.lr": lambda recipe: recipe.rl.critic.optimizer.lr,
    "critic.lr_warmup_steps_ratio": lambda recipe: recipe.rl.critic.optimizer.warmup_ratio,
    "total_training_steps": lambda recipe: recipe.rl.steps,
    "save_freq": lambda recipe: recipe.rl.checkpoint_every,
    "test_freq": lambda recipe: recipe.rl.evaluate_every,
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
