"""One setting for what a paper says and what its program does: it expands where everybody can read it."""

from pathlib import Path

import pytest
import yaml
from tests.agents.playing import QUESTION, Shelf, play

from coseek.agents.sources import served_context
from coseek.core.errors import SettingError
from coseek.core.settings import dump_settings
from coseek.data.passage import Corpus, Passage
from coseek.data.trajectory import StopReason
from coseek.graders.generator import ContextBudget
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.estimate import PROMPT_TOKENS
from coseek.pipelines.together_recipe import load_together_recipe
from coseek.retrieval.retrievers.simulated import SimulatedSettings


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
    assert count == 19 and [one.text.count(" ") for one in given] == [129] * count


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


def test_a_file_that_extends_a_recipe_may_choose_the_preset_and_go_on_from_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: s3\npreset: code\nlimits: {max_turns: 5}\n")
    mine = load_recipe(str(tmp_path / "mine.yaml"))
    assert (mine.protocol, mine.limits.max_turns, mine.preset) == ("s3-code", 5, "code")


@pytest.mark.parametrize(("name", "preset"), [("s3", "cod"), ("deepretrieval", "code"), ("quickstart", "code")])
def test_a_preset_that_a_recipe_lacks_is_refused_by_name(name: str, preset: str) -> None:
    with pytest.raises(SettingError, match=f"no preset '{preset}'.*Known: paper"):
        load_recipe(name, [f"preset={preset}"])


@pytest.mark.parametrize(
    ("old", "new"), [("kl=0", "kl_coef"), ("resample=true", "dynamic_sampling"), ("policy.optimiser.lr=1", "optimizer")]
)
def test_a_setting_by_its_old_name_is_refused_with_the_new_one(old: str, new: str) -> None:
    with pytest.raises(SettingError, match=f"did you mean 'rl.*{new}'"):
        load_recipe("quickstart", [f"rl.{old}"])


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
    ],
)
def test_names_of_other_libraries_and_of_older_versions_lead_to_the_setting(typed: str, meant: str) -> None:
    with pytest.raises(SettingError, match=f"did you mean '{meant}'"):
        load_recipe("search-r1-grpo", [typed])
