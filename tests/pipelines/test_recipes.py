"""Recipes as files: what they extend, their stages, and what a dry run says of them."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tests.pipelines.test_agent import TINY
from tests.pipelines.trainings import same, trained, weights
from tests.training.tiny import agent, environment, trajectory
from transformers import AutoModelForCausalLM, Qwen2Config

from coseek.agents.branching import rollout_groups
from coseek.agents.drivers import Agent, rollout
from coseek.cli.main import main
from coseek.core.errors import DataError, SettingError, UnknownName
from coseek.data.question import Question
from coseek.data.trajectory import Search, Trajectory
from coseek.graders.factory import check_graders
from coseek.graders.scoring import TrajectoryScorer
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.models.model_folder import shape_of_config
from coseek.models.pretrained import save_model
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.tokenizer import HfTokenizer, train_tokenizer
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import AgentRecipe, SelectSettings, load_recipe, preset_names, recipe_names
from coseek.pipelines.dry_run import dry_run
from coseek.pipelines.estimate import FULL, SHAPES, shape_of, share_of
from coseek.pipelines.run_record import resolve_recipe
from coseek.pipelines.stages import accuracy_of, candidates, correct_trajectories, select, stages_of
from coseek.retrieval.index import build_index
from coseek.rewards.reward import make_reward
from coseek.training.sft.settings import RejectionSettings

PAPERS = (
    "search-r1-ppo", "search-r1-grpo", "qagent", "s3", "deepretrieval", "r1", "sft", "rejection-sampling", "zerosearch",
)  # fmt: skip


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


# --- files


def test_a_preset_lies_over_the_recipe_and_the_one_it_extends_lies_between(tmp_path: Path) -> None:
    file = write(
        tmp_path, "mine.yaml",
        "extends: search-r1-ppo\npresets:\n  small: {extends: quickstart, rl: {steps: 3}}\n"
        "  smaller: {extends: small, limits: {max_turns: 2}}",
    )  # fmt: skip
    usual, paper = load_recipe("quickstart"), load_recipe("search-r1-ppo")
    for preset, turns in (("small", usual.limits.max_turns), ("smaller", 2)):
        mine = load_recipe(file, [f"preset={preset}"])
        assert (mine.rl.steps, mine.rl.algorithm, mine.limits.max_turns) == (3, "ppo", turns)
        assert (mine.policy, mine.data, mine.reward) == (usual.policy, usual.data, paper.reward)
    over = load_recipe(write(tmp_path, "top.yaml", f"extends: {file}\npreset: small\nrl: {{steps: 9}}"))
    assert (over.rl.steps, over.policy) == (9, usual.policy)
    with pytest.raises(SettingError, match="no preset 'smal'; did you mean 'small'"):
        load_recipe(file, ["preset=smal"])


@pytest.mark.parametrize(
    ("name", "preset"), [(name, preset) for name in recipe_names() for preset in ("paper", *preset_names(name))]
)
def test_every_recipe_of_ours_can_be_read_and_paid_and_fits_the_machine_that_it_names(name: str, preset: str) -> None:
    words = [f"preset={preset}"]
    # In place of models that are trained first.
    made = {"laptop": "base", "smollm": "models/SmolLM2-135M-Instruct"}.get(preset)
    if made and name in ("s3", "qagent"):
        words.append(f"graders.generator.model={made}")
    if made and (preset == "smollm" or name == "s3"):
        words.append(f"policy.folder={made}")
    recipe = load_recipe(name, words)
    assert recipe.about
    for stage in [planned.recipe for planned in stages_of(recipe, Path())] or [recipe]:
        check_graders(recipe.graders, make_reward(stage.reward), recipe.data.world is not None)
        # Trap 16: public code pays for entropy, and no paper.
        assert stage.rl.entropy_coef == 0.0 or preset == "code"
        assert share_of(stage, shape_of(stage)[0]) <= FULL


def test_groups_are_merged_and_everything_else_is_replaced(tmp_path: Path) -> None:
    text = "data: {world: {seed: 3}}\nreward: {f1: 1.0}\nrl: {steps: 7, policy: {precision: bfloat16}}"
    write(tmp_path, "base.yaml", text)
    middle = write(tmp_path, "middle.yaml", "extends: base.yaml\nreward: {cover_match: 1.0}\nrl: {kl_coef: 0.5}")
    top = load_recipe(write(tmp_path, "top.yaml", "extends: middle.yaml\nabout: top"), ["rl.policy.optimizer.lr=0.5"])
    assert top.about == "top" and top.data.world is not None and top.data.world.seed == 3
    assert top.reward == {"cover_match": 1.0}  # not both: a reward that is said anew is the whole reward
    policy = top.rl.policy
    assert (top.rl.steps, top.rl.kl_coef, policy.precision, policy.optimizer.lr) == (7, 0.5, "bfloat16", 0.5)
    assert load_recipe(middle).rl.policy.optimizer.lr == 3e-4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: a.yaml", "extends itself"),
        ("extends: b.yaml", "extends itself"),
        ("extends: quickstrat", "did you mean 'quickstart'"),
        ("extends: nowhere.yaml", "there is no recipe file"),
        ("extends: [quickstart, s3]", "names one recipe"),
        ("extend: quickstart", "did you mean 'extends'"),
        ("extends: from-nothing\nrl: {stpes: 3}", "did you mean 'rl.steps'"),
        ("extends: from-nothing\nstages: {one: {rl: {stpes: 3}}}", "stage 'one': .*did you mean 'rl.steps'"),
        ("extends: from-nothing\nstages: {one: {rewards: {f1: 1}}}", "cannot set 'rewards'; did you mean 'reward'"),
        ("extends: from-nothing\nstages: {one: {policy: {folder: x}}}", "It may set: about"),
        ("extends: from-nothing\nstages: {trained: {}}", "cannot be named 'trained'"),
        ("extends: from-nothing\nstages: {'../x': {}}", "cannot be named"),
        ("extends: from-nothing\nstages: {one: {learn: demonstrations}}", "learns nothing"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(text: str, message: str, tmp_path: Path) -> None:
    write(tmp_path, "b.yaml", "extends: a.yaml")
    with pytest.raises((SettingError, UnknownName, DataError), match=message):
        load_recipe(write(tmp_path, "a.yaml", text))


@pytest.mark.medium
def test_the_shape_of_a_laptop_policy_is_not_typed_in_vain() -> None:
    typed = ["policy.laptop.hidden=64"]
    with pytest.raises(SettingError, match=r"has no effect.* policy.folder=base; add policy.folder=null"):
        load_recipe("quickstart", typed)
    assert load_recipe("quickstart", [*typed, "policy.folder=null"]).policy.laptop.hidden == 64
    assert load_recipe("from-nothing", typed).policy.laptop.hidden == 64


def test_what_a_run_wrote_down_is_a_recipe_again(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    recipe = load_recipe("qagent", ["preset=laptop", "seed=5", f"graders.generator.model={tmp_path}"])
    training = AgentTraining(recipe, tmp_path / "run")
    training.begin(resume=False)
    assert load_recipe(str(tmp_path / "run" / "recipe.yaml")) == training.recipe == resolve_recipe(recipe)


# --- stages


def test_a_stage_is_the_recipe_with_what_it_replaces() -> None:
    recipe = load_recipe("qagent", ["rl.kl_coef=0.5", "stages.submodule.rl.steps=3"])
    first, second = stages_of(recipe, Path("run"))
    assert (first.start_policy, first.trained_policy, first.recipe.rl.steps) == ("warm", "end-to-end", 1120)
    assert (second.start_policy, second.trained_policy, second.recipe.rl.steps) == ("end-to-end", "trained", 3)
    assert first.recipe.rl.kl_coef == second.recipe.rl.kl_coef == 0.5
    assert (first.recipe.reward, second.recipe.reward) == ({"preset": "qagent-1"}, {"preset": "qagent-2"})
    assert first.folder == Path("run/rl/end-to-end") and first.seed("rl") != second.seed("rl")


TWO = [
    "stages={one: {rl: {steps: 1}}, two: {reward: {format: 1.0}, rl: {steps: 1, policy: {optimizer: {lr: 0.0}}}}}",
    "reward={searches: 1.0, exact_match: 1.0}",
    "rl.evaluate_every=0",
    "warm_start.sft.steps=20",
]


@pytest.mark.slow
def test_a_stage_begins_with_the_weights_of_the_one_before_it_and_a_kill_between_them_changes_nothing(
    tmp_path: Path,
) -> None:
    recipe = load_recipe("from-nothing", [*TINY, *TWO])
    whole = trained(AgentTraining(recipe, tmp_path / "whole"))
    # The second stage has a learning rate of 0, so it ends with what it began with.
    assert same(weights(whole.folder, "trained"), weights(whole.folder, "one"))
    assert (whole.folder / "rl" / "one" / "metrics.jsonl").is_file()
    assert (whole.folder / "rl" / "two" / "metrics.jsonl").is_file()

    killed = AgentTraining(recipe, tmp_path / "killed")
    killed.begin(resume=False)
    killed.prepare_data()
    killed.make_policy()
    killed.warm_start()
    killed.train_stage(killed.stages[0])  # and here it is killed
    again = trained(AgentTraining(recipe, tmp_path / "killed"), resume=True)
    assert same(weights(again.folder, "trained"), weights(whole.folder, "trained"))


@pytest.mark.slow
def test_what_samples_is_what_its_stage_says_and_what_looks_takes_the_likeliest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traps 15 and 17: rollouts draw from the whole softmax at the trainer's temperature, measurements from none. And a
    run that a stage's budgets allow is no fault of the model."""
    settings_used: list[tuple[bool, SamplerSettings]] = []
    """Whether it was a look, and what was sampled with."""
    looked_before, looking = AgentTraining.evaluate, False

    def noting(plain: Callable[..., list[Trajectory]]) -> Callable[..., list[Trajectory]]:
        def noted(agent: Agent, *args: object, **options: object) -> list[Trajectory]:
            assert isinstance(agent.model, Sampler)
            settings_used.append((looking, agent.model.settings))
            return plain(agent, *args, **options)

        return noted

    def looked(self: AgentTraining, agent: Agent, recipe: AgentRecipe, scoring: TrajectoryScorer) -> dict[str, float]:
        nonlocal looking
        looking = True
        result = looked_before(self, agent, recipe, scoring)
        looking = False
        return result

    monkeypatch.setattr("coseek.pipelines.agent.rollout_groups", noting(rollout_groups))
    monkeypatch.setattr("coseek.pipelines.agent.rollout", noting(rollout))
    monkeypatch.setattr(AgentTraining, "evaluate", looked)
    nucleus = "rl: {steps: 1, num_minibatches: 1, temperature: 0.7, top_p: 0.5, old_logprobs: recompute}"
    wide = "stages={long: {limits: {max_tokens: 900}, rl: {steps: 1, temperature: 0.7}}, "
    (letters := tmp_path / "letters.py").write_text(LETTERS)
    wide += f"narrow: {{limits: {{max_tokens: 900}}, reward: {{{letters}: 1}}, {nucleus}}}}}"
    training = trained(
        AgentTraining(load_recipe("from-nothing", [*TINY, wide, "limits.max_tokens=600"]), tmp_path / "run")
    )
    drawn, looks = ([settings for look, settings in settings_used if look is which] for which in (False, True))
    assert all((settings.temperature, settings.max_tokens) == (0.7, 900) for settings in drawn)
    assert [settings.top_p for settings in drawn] == [1.0, 0.5] and drawn[0].on_policy
    (step,) = map(json.loads, (training.folder / "rl" / "narrow" / "metrics.jsonl").read_text().splitlines())
    assert step["logprob_gap"] > 0.05  # of the nucleus and of the whole softmax
    assert step["updates"] == 1 and step["ratio_max"] == pytest.approx(1, abs=1e-3)  # the old policy is the trainer's
    warm, *later = looks
    assert warm.temperature == 1.0
    assert later and all((settings.temperature, settings.max_tokens) == (0.0, 900) for settings in later)


# --- questions and right runs


def test_closed_questions_and_other_hops_can_be_left_out() -> None:
    rows = (("a", "Yes", 1), ("b", "x", 1), ("c", "x", 2))
    questions = [Question(name, "?", (gold,), hops=hops) for name, gold, hops in rows]
    assert [question.id for question in candidates(questions, SelectSettings())] == ["a", "b", "c"]
    assert [question.id for question in candidates(questions, SelectSettings(yes_no=False))] == ["b", "c"]
    (drawn,) = select(questions, SelectSettings(hops=(1,), most=1), "gen_acc", None, 0, print)
    assert drawn in questions[:2]
    with pytest.raises(DataError, match="none of the 3"):
        select(questions, SelectSettings(hops=(4,)), "gen_acc", None, 0, print)


def test_naive_rag_is_wrong_by_the_rewards_accuracy_or_else_by_the_judge_there_is() -> None:
    generator = "graders.generator={model: somewhere}"
    for settings, accuracy in (
        (["reward={preset: qagent-1}"], "cover_match"),
        (["reward={preset: qagent-1}", "graders.judge={model: oracle}"], "gen_acc"),
        (["reward={component: {accuracy: exact_match}}"], "exact_match"),
    ):
        assert accuracy_of(load_recipe("from-nothing", [generator, *settings])) == accuracy


def runs() -> list[Trajectory]:
    made = []
    for question in ("p", "q"):
        for seed in range(4):
            run = trajectory(environment(1), agent(2), answer="Ada" if seed % 2 else "Bob", seed=seed)
            made.append(replace(run, question=Question(question, "?", ("Ada",))))
    return made


def test_only_right_runs_are_learnt_from_and_the_order_of_ending_does_not_matter() -> None:
    scoring, settings = TrajectoryScorer(make_reward({"exact_match": 1.0})), RejectionSettings(keep=1)
    kept = correct_trajectories(runs(), scoring, settings, 0)
    assert [run.question.id for run in kept] == ["p", "q"] and all(run.answer == "Ada" for run in kept)
    assert correct_trajectories(reversed(runs()), scoring, settings, 0) == kept
    assert len(correct_trajectories(runs(), scoring, RejectionSettings(keep=9), 0)) == 4
    with pytest.raises(DataError, match="nothing to learn from"):
        correct_trajectories(runs(), scoring, RejectionSettings(at_least=2.0), 0)


def test_the_most_economical_right_run_has_the_fewest_searches_and_then_tokens() -> None:
    scoring, economical = TrajectoryScorer(make_reward({"exact_match": 1.0})), RejectionSettings(prefer="economical")
    q, r = (Search(text, ()) for text in ("q", "r"))
    made = [
        (agent(2), (), "Bob"), (agent(2, 3), (q,), "Ada"), (agent(2), (q, r), "Ada"), (agent(4), (q,), "Ada"),
    ]  # fmt: skip
    ask = Question("p", "?", ("Ada",))
    written = [
        replace(trajectory(environment(1), wrote, answer=answer, seed=seed), question=ask, searches=searches)
        for seed, (wrote, searches, answer) in enumerate(made)
    ]
    assert correct_trajectories(written, scoring, economical, 0) == [written[3]]


def test_questions_of_two_data_sets_with_one_id_do_not_share_the_runs_that_are_kept() -> None:
    first = replace(trajectory(environment(1), agent(2), answer="Ada"), question=Question("train_0", "Who?", ("Ada",)))
    other = replace(first, question=Question("train_0", "Who else?", ("Ada",)))
    scoring = TrajectoryScorer(make_reward({"exact_match": 1.0}))
    assert correct_trajectories([first, other], scoring, RejectionSettings(keep=1), 0) == [other, first]


# --- estimates


PUBLISHED = {
    "Qwen2.5-0.5B": 494_032_768, "Qwen2.5-1.5B": 1_543_714_304, "Qwen2.5-3B": 3_085_938_688,
    "Qwen2.5-7B": 7_615_616_512, "Qwen2.5-14B": 14_770_033_664, "Qwen2.5-32B": 32_763_876_352,
    "Qwen2.5-72B": 72_706_203_648, "R1-Distill-Qwen-1.5B": 1_777_088_000, "R1-Distill-Qwen-7B": 7_615_616_512,
    "R1-Distill-Qwen-14B": 14_770_033_664, "R1-Distill-Qwen-32B": 32_763_876_352, "SmolLM2-135M": 134_515_008,
}  # fmt: skip


ENCODERS = {
    "e5-base": 109_482_240, "bge-base": 109_482_240, "e5-large": 335_141_888, "Qwen3-Embedding-4B": 4_021_774_336,
    "Qwen3-Embedding-8B": 7_567_295_488,
}  # fmt: skip


def test_the_shapes_have_as_many_weights_as_were_published() -> None:
    exact = {name: shape.parameters for name, shape in SHAPES.items() if name not in ENCODERS}
    assert exact == PUBLISHED and ENCODERS.keys() <= SHAPES.keys()
    # Without BERT's positions and biases, and Qwen3's norms of queries and keys.
    assert all(SHAPES[name].parameters == pytest.approx(count, rel=0.01) for name, count in ENCODERS.items())


def test_a_shape_of_a_config_counts_what_the_library_counts() -> None:
    config = Qwen2Config(
        vocab_size=97, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    shape = shape_of_config(config.to_dict(), Path("config.json"))
    assert shape.parameters == sum(weight.numel() for weight in model.parameters())
    with pytest.raises(DataError, match="leave out what needs it"):
        shape_of_config({"hidden_size": 24}, Path("config.json"))


# --- dry runs


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which everything that our recipes name is there, in small."""
    there = tmp_path_factory.mktemp("there")
    for name in ("wiki-18", "qagent"):
        make_world(WorldSettings(size="tiny", train=4, dev=2, test=2)).save(there / "data" / name)
    for name in ("e5", "bm25"):
        build_index(there / "data" / "wiki-18", "bm25", there / "indexes" / f"wiki-18-{name}")
    tokenizer = HfTokenizer(train_tokenizer(["a b c"], (), 300))
    config = Qwen2Config(
        vocab_size=tokenizer.size, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    named = ("Qwen2.5-3B", "Qwen2.5-7B", "Qwen2.5-3B-Instruct", "Qwen2.5-7B-Instruct", "Qwen2.5-14B-Instruct")
    for folder in (*(there / "models" / name for name in named), there / "runs" / "generator" / "generator"):
        save_model(model, tokenizer, folder)
    return there


LETTERS = """from coseek.rewards.reward import PartSettings as SETTINGS

def reward(run, options):
    written = "".join(part.text for part in run.segments if part.author == "agent")
    return sum(written.count(letter) for letter in "aeiou") / (1 + len(written))
"""
"""A reward that a network which has learnt nothing earns too, and not the same for every run."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("preset", ["paper", "laptop"])
def test_every_recipe_moves_its_weights_in_its_dry_run(
    name: str, preset: str, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step with a reward of 0 has no gradient, and goes through whatever is broken."""
    monkeypatch.chdir(there)
    recipe = load_recipe(name, [f"preset={preset}", "threads=1"])
    report = dry_run(recipe, kept := tmp_path / "rehearsal")
    report.refuse()
    stages = cast(list[dict[str, dict[str, float]]], report.values["stages"])
    assert len(stages) == max(1, len(recipe.stages))
    for look in stages:
        step = look["step"]
        assert step.get("faults", 0.0) == 0.0 and step.get("logprob_gap", 0.0) < 0.05 and step["grad_norm"] > 0
        assert recipe.learn != "rl" or step["updates"] > 0
        assert sum(look["memory"].values()) > 0 and sum(look["work"].values()) > 0
    ends = ["warm", *(stage.trained_policy for stage in stages_of(recipe, kept / "run"))]
    policies = [kept / "model", *(kept / "run" / "policy" / end for end in ends)]
    weights = [load_file(path / "model.safetensors") for path in policies if path.exists()]
    assert len(weights) > len(stages)
    for before, after in itertools.pairwise(weights):
        assert any(not torch.equal(before[name], after[name]) for name in before)
    assert {path.name for path in there.iterdir()} == {"data", "indexes", "models", "runs"}  # nothing else is written


@pytest.mark.slow
def test_a_dry_run_says_what_is_missing_and_still_looks_at_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "Qwen2.5-7B").mkdir(parents=True)
    assert main(["train", "agent", "search-r1-grpo", "threads=1", "--dry-run", "--json"]) == 2
    printed = capsys.readouterr()
    tree = yaml.safe_load(printed.out)
    assert tree["parameters"] == PUBLISHED["Qwen2.5-7B"] and tree["stages"][0]["step"]["trajectories"] == 4
    assert [*tree["missing"].values()] == [
        "there is no data/wiki-18",
        "there is no indexes/wiki-18-e5",
        "models/Qwen2.5-7B holds no config.json and no *.safetensors",
    ]
    assert "there is no data/wiki-18 (data.folder)" in printed.err and len(printed.err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


OWN_DATA = ("data.world=null", "data.unseen=null", "data.folder=mine")


def test_a_dry_run_refuses_what_the_run_itself_would_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is rehearsed has a world of its own, which would hide it."""
    monkeypatch.chdir(tmp_path)
    make_world(WorldSettings(size="tiny", train=4, dev=2, test=2)).save(Path("mine"))
    with pytest.raises(SettingError, match="the expert's throw-away worlds are laptop worlds"):
        dry_run(load_recipe("from-nothing", OWN_DATA))


def test_a_split_that_is_not_there_is_missed_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_world(WorldSettings(size="tiny", train=4, dev=2, test=2)).save(Path("mine"))
    Path("mine/questions.train.jsonl").unlink()
    rules = load_recipe("from-nothing", [*OWN_DATA, "warm_start.demonstrator=rules", "warm_start.worlds=0"])
    with pytest.raises(DataError, match=r"there is no mine/questions\.train\.jsonl, .* names as data\.train"):
        AgentTraining(rules, tmp_path / "run").check()
    there = load_recipe(
        "from-nothing", [*OWN_DATA, "warm_start.demonstrator=rules", "warm_start.worlds=0", "data.train=test"]
    )
    AgentTraining(there, tmp_path / "run").check()
