"""coseek inside verl 0.9.1: `make test-verl`. Episodes run in verl's workers and return as neutral rows."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="make test-verl")

import numpy as np
import ray
import torch
import transfer_queue as tq
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from tests.adapters.verl_world import Scribe, ScribeClient, ScribeModel, broken_retriever
from tests.agents.playing import SCRIPTS
from tests.agents.test_tools import ECHO, tool, with_tool
from torch.nn.utils.rnn import pad_sequence
from verl.experimental.agent_loop.agent_loop import AgentLoopManager, AgentLoopOutput, AgentLoopWorker
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.checkpoint_callback import build_checkpoint_callback
from verl.trainer.ppo.utils import create_rl_dataset, need_critic, need_reference_policy
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, get_trainer_cls
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.utils.dataset.rl_dataset import collate_fn
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from coseek.agents.drivers import Agent, rollout
from coseek.core.files import read_jsonl, read_yaml
from coseek.core.settings import make_settings
from coseek.data.question import Question, load_questions
from coseek.data.run import Run
from coseek.data.trajectory import StopReason
from coseek.models.tokenizer import HfTokenizer
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.pipelines.verl.launch import EpisodeSettings, Place, VerlTraining
from coseek.retrieval.factory import open_retriever
from coseek.rewards.reward import make_reward
from coseek.training.rl.algorithm import open_algorithm
from coseek.training.rl.experience import make_experience
from coseek.training.rl.rollout import add_overlong_penalty, score
from coseek.training.rl.rows import TrainingRow, rows_of

QUESTIONS, GROUP = 42, 5
WORLD = {"size": "compact", "train": QUESTIONS, "dev": 6, "test": 6}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=8, include_dashboard=False, logging_level="error")
    yield
    ray.shutdown()


def recipe_of(folder: Path, protocol: str, rl: dict[str, object], **more: object) -> AgentRecipe:
    tree = {
        "data": {"world": WORLD, "training_retriever": broken_retriever(folder, folder / "run" / "data.index")},
        "policy": {"laptop": {"vocabulary": 600, "hidden": 32}},
        "protocol": protocol,
        "warm_start": None,
        "limits": {"max_turns": 3, "max_turn_tokens": 120, "max_observation_tokens": 60, "max_tokens": 1200},
        "rl": {"backend": "verl", "steps": 1, "questions_per_step": QUESTIONS, "group_size": GROUP, "seed": 3}
        | {"backend_settings": {"gpus": 1, "workers": 2}, **rl},
        **more,
    }
    return make_settings(AgentRecipe, tree)


def written(recipe: AgentRecipe, folder: Path) -> VerlTraining:
    """The files that a training writes before it starts verl."""
    training = AgentTraining(recipe, folder / "run")
    training.prepare_data()
    training.make_policy()
    start = training.policy_folder("start").resolve()
    world = training.data_folder.resolve()
    index, train, dev = str(folder / "run" / "data.index"), training.questions("train"), training.questions("dev")
    run = VerlTraining(recipe, (folder / "rl").resolve(), start, start, index, world, train, dev)
    run.write()
    return run


def config_of(run: VerlTraining) -> DictConfig:
    with initialize_config_dir(str(run.folder), version_base=None):
        return compose("verl")


def test_every_key_of_the_configuration_is_one_of_verls_and_its_own_checks_accept_it(tmp_path: Path) -> None:
    rl = {"kl_coef": 0.001, "old_logprobs": "recompute", "rollout_is": "mask"}
    run = written(recipe_of(tmp_path, "search-r1", rl), tmp_path)
    config = config_of(run)
    with initialize_config_dir(str(Path(core_algos.__file__).parents[1] / "config"), version_base=None):
        usual = compose("ppo_trainer")
    for path, value in leaves(read_yaml(run.folder / "verl.yaml", "configuration")):
        if path[0] not in ("hydra", "defaults"):
            assert OmegaConf.select(config, ".".join(path)) == value
            assert is_known(usual, path), path
    validate_config(config, need_reference_policy(config), need_critic(config))
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert actor.engine.mixed_precision["param_dtype"] == "fp32"
    for section in (config.actor_rollout_ref.rollout, config.actor_rollout_ref.model, config.algorithm):
        omega_conf_to_dataclass(section)


def test_ppo_has_a_critic_of_its_own_settings(tmp_path: Path) -> None:
    rl = {"algorithm": "ppo", "group_size": 1, "kl_coef": 0.001, "kl_location": "reward", "kl_estimator": "k1"}
    config = config_of(written(recipe_of(tmp_path, "search-r1", rl), tmp_path))
    assert need_critic(config) and need_reference_policy(config)
    validate_config(config, need_reference_policy(config), need_critic(config))
    assert omega_conf_to_dataclass(config.critic).optim.lr == 1e-3


def leaves(tree: Mapping[str, object], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*above, name))
        else:
            yield (*above, name), value


def is_known(usual: DictConfig, path: tuple[str, ...]) -> bool:
    """Whether verl's defaults, or a dataclass that they name, have a key or a free mapping for it."""
    node: object = usual
    for name in path:
        if not isinstance(node, DictConfig):
            return True  # a mapping that verl's dataclass takes as it is
        if name not in node:
            target = node.get("_target_")
            if target is None:
                return False
            module, _, kind = target.rpartition(".")
            fields = __import__(module, fromlist=[kind]).__dict__[kind].__dataclass_fields__
            return name in fields
        node = node[name]
    return True


CASES: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "search-r1": ({}, {}),
    "qagent": (
        {"algorithm": "rloo", "truncated": "penalise", "overlong": {"max_tokens": 500, "margin_tokens": 300}},
        {},
    ),
    "react": ({"algorithm": "reinforce-pp", "truncated": "mask"}, {"reward": {"exact_match": 1.0, "valid": 0.3}}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_rows_that_verl_trains_on_are_the_neutral_rows_of_the_same_seeds(name: str, tmp_path: Path) -> None:
    recipe, run, scribe = case(name, tmp_path)
    assert_neutral(asyncio.run(played_by_verl(config_of(run), scribe)), recipe, run, scribe)


def test_rows_come_the_same_way_through_verls_cluster(cluster: None, tmp_path: Path) -> None:
    recipe, run, scribe = case("search-r1", tmp_path)
    assert_neutral(trained_by_verl(config_of(run), scribe), recipe, run, scribe)


def case(name: str, folder: Path) -> tuple[AgentRecipe, VerlTraining, Scribe]:
    rl, more = CASES[name]
    protocol, texts = name, [*SCRIPTS[name]]
    if name == "react":
        source = ECHO.replace('request.arguments["text"]', '9 // len(request.arguments["text"])')
        protocol = with_tool(folder, source.replace("return result", "return str(result)"))
        texts += [tool("mine", text=text) for text in ("", "ab")]
    recipe = recipe_of(folder, protocol, rl, **more)
    run = written(recipe, folder)
    return recipe, run, scribe_of(recipe, run, texts)


def assert_neutral(by_episode: "dict[str, Trained]", recipe: AgentRecipe, run: VerlTraining, scribe: Scribe) -> None:
    """The rows equal those of our driver and algorithm; failed episodes are in none, and are reported and stored."""
    expected, faults, stops = neutral_rows(recipe, run, scribe)
    assert QUESTIONS * GROUP >= 200 and len(by_episode) == len(expected) == QUESTIONS * GROUP - faults
    largest = 0.0
    for row in expected:
        ids, mask, logprobs, advantages, prompt = by_episode[row.episode]
        end = len(ids)
        assert tuple(ids) == row.ids[:end] and not any(row.trained[end:])
        assert [*map(bool, mask)] == [*row.trained[prompt:end]] and not any(row.trained[:prompt])
        assert logprobs == [*row.sampled_logprob[prompt:end]]
        largest = max(largest, *(abs(x - y) for x, y in zip(advantages, row.advantage[prompt:end], strict=True)))
    trained = sum(sum(row.trained) for row in expected)
    print(
        f"{recipe.rl.algorithm}: {len(expected)} rows, {trained} trained tokens, {faults} faults, advantages {largest}"
    )
    assert largest <= 1e-6 and any(any(row.advantage) for row in expected)
    reported = [fault for _, fault in read_jsonl(run.folder / "faults.jsonl")]
    assert len(reported) == faults > 0
    wanted = {StopReason.MODEL_ERROR, StopReason.RETRIEVER_ERROR}
    wanted |= {StopReason.TOOL_ERROR} if StopReason.TOOL_ERROR in stops else set()
    assert {fault["part"] for fault in reported} == wanted
    kept = [played for path in (run.folder / "rollouts").glob("*/*") for played in Run(path).trajectories()]
    assert {f"{played.question.id}/{played.seed}" for played in kept if played.fault is None} == by_episode.keys()


class Worker(AgentLoopWorker):  # type: ignore[misc]
    """verl's worker in this process; keeps what the agent loops return."""

    async def _agent_loop_postprocess(
        self, output: list[AgentLoopOutput], validate: bool, **row: object
    ) -> list[AgentLoopOutput]:
        return output


async def played_by_verl(config: DictConfig, scribe: Scribe) -> "dict[str, Trained]":
    """Episode → its row, by verl's worker, its rows' tensors and its dispatch of advantages, in this process."""
    worker = Worker(config, ScribeClient(scribe))
    questions = create_rl_dataset(config.data.train_files, config.data, worker.tokenizer, None)
    samples = [(f"u{row}", sample, questions[row]) for row in range(len(questions)) for sample in range(GROUP)]
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
    where = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": False}
    outputs = await asyncio.gather(
        *(
            worker._run_agent_loop(
                dict(sampling), where, trace=False, uid=uid, session_id=sample, global_steps=1, **question
            )
            for uid, sample, question in samples
        )
    )
    rows = [(uid, sample, output) for (uid, sample, _), some in zip(samples, outputs, strict=True) for output in some]
    fields = [output.as_dict() for _, _, output in rows]
    padding = torch.zeros(1)  # as verl pads a batch: with a separate group and mask
    padded = {
        name: pad_sequence([*(field[name] for field in fields), padding.to(fields[0][name])], batch_first=True)
        for name in ("response_mask", "rm_scores")
    }
    uids = np.array([*(uid for uid, _, _ in rows), "pad"], dtype=object)
    data = DataProto.from_dict({"token_level_rewards": padded["rm_scores"], **padded}, non_tensors={"uid": uids})
    register_estimator(config)
    keys = [*(f"{uid}_{sample}_0" for uid, sample, _ in rows), "pad_0_0"]
    data = compute_advantage_for_multi_trajectories(data, keys, "coseek", config=config.algorithm)
    assert not data.batch["advantages"][-1].any()
    trained = {}
    for index, (_, _, row) in enumerate(rows):
        advantages = data.batch["advantages"][index, : len(row.response_ids)].tolist()
        logprobs = fields[index]["rollout_log_probs"].tolist()
        ids = [*row.prompt_ids, *row.response_ids]
        trained[row.extra_fields["episode"]] = (ids, row.response_mask, logprobs, advantages, len(row.prompt_ids))
    return trained


def register_estimator(config: DictConfig) -> None:
    """As verl's trainer does when it starts."""
    core_algos.ADV_ESTIMATOR_REGISTRY.pop("coseek", None)  # of another run in this process
    build_checkpoint_callback(config)


def scribe_of(recipe: AgentRecipe, run: VerlTraining, texts: list[str]) -> Scribe:
    """Writes turns of the protocol: failing queries, right answers, and nonsense."""
    questions = questions_of(run)
    texts = [*texts * 6, *(text.replace("Ada", "lost") for text in texts), "hm", "x" * 400]
    protocol = recipe.load_protocol()
    answers = {question.question: question.answers[0] for question in questions}
    return Scribe(HfTokenizer.load(run.tokenizer), texts, [*protocol.grammar.stops], answers)


def questions_of(run: VerlTraining) -> list[Question]:
    return load_questions(run.folder.parent / "run" / "data" / "questions.train.jsonl")


Trained = tuple[list[int], list[int], list[float], list[float], int]
"""Ids, then mask, log-probabilities and advantages of the response, and the length of the prompt."""


def trained_by_verl(config: DictConfig, scribe: Scribe) -> dict[str, Trained]:
    """Episode → its row, of one step through verl's data set, workers, queue, replay buffer and trainer."""
    config.transfer_queue.enable = True
    config.transfer_queue.backend.SimpleStorage.num_data_storage_units = 1
    tq.init(config.transfer_queue)
    try:
        servers = {f"server-{number}": ray.remote(ScribeClient).remote(scribe) for number in range(2)}
        client = LLMServerClient(config, ray.remote(GlobalRequestLoadBalancer).remote(servers))
        manager: AgentLoopManager = AgentLoopManagerTQ.create(config=config, llm_client=client)
        trainer = object.__new__(get_trainer_cls("sync"))
        trainer.config = config
        model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
        questions = create_rl_dataset(config.data.train_files, config.data, model.tokenizer, None)
        rows = collate_fn([questions[index] for index in range(len(questions))])
        rows["uid"] = collate_fn([{"uid": f"u{index}"} for index in range(len(questions))])["uid"]
        batch = tu.get_tensordict(rows)
        tu.assign_non_tensor_data(batch, "global_steps", 1)
        tags = [{"is_prompt": True, "status": "pending", "global_steps": 1} for _ in range(len(batch))]
        tq.kv_batch_put(keys=list(batch["uid"]), partition_id="train", tags=tags)
        manager.generate_sequences(batch)
        buffer = ReplayBuffer("sync", DictConfig({}), None, "drop", DictConfig({}), poll_interval=0.2)
        sampled, _ = buffer.sample(1, "train", len(questions))
        register_estimator(config)
        put = tq.kv_batch_get(keys=sampled.keys, partition_id="train", select_fields=["rollout_log_probs"])
        put["old_log_probs"] = put.pop("rollout_log_probs")
        tq.kv_batch_put(keys=sampled.keys, partition_id="train", fields=put)
        trainer._compute_advantage(sampled, {})
        names = ["prompts", "responses", "response_mask", "rollout_log_probs", "advantages", "extra_fields"]
        data = tq.kv_batch_get(keys=sampled.keys, partition_id="train", select_fields=names)
        trained = {}
        for index in range(len(sampled.keys)):
            prompt, response, *values = (data[name][index].tolist() for name in names[:-1])
            extra = data["extra_fields"][index]
            extra = extra.data if hasattr(extra, "data") else extra
            assert extra["min_global_steps"] == extra["max_global_steps"] == 7
            trained[extra["episode"]] = ([*prompt, *response], *values, len(prompt))
        return trained
    finally:
        tq.close()


def neutral_rows(
    recipe: AgentRecipe, run: VerlTraining, scribe: Scribe
) -> tuple[list[TrainingRow], int, set[StopReason]]:
    """The rows of the same step by our batch driver and our own algorithm; the faults; how episodes ended."""
    settings = make_settings(EpisodeSettings, read_yaml(run.folder / "episodes.yaml", "settings"))
    questions = questions_of(run)
    repeated = [question for question in questions for _ in range(GROUP)]
    places = [Place(1, row, sample) for row in range(len(questions)) for sample in range(GROUP)]
    seeds = [place.seed(question, settings) for place, question in zip(places, repeated, strict=True)]
    assert settings.training_retriever != settings.retriever
    agent = Agent(recipe.load_protocol(), ScribeModel(scribe))
    runs = rollout(agent, open_retriever(settings.training_retriever), repeated, seeds, recipe.limits)
    episodes = score([place.row for place in places], runs, make_reward(recipe.reward))
    episodes = add_overlong_penalty(episodes, recipe.rl.overlong)
    episodes = replace(episodes, scored=tuple(replace(scored, sampled_at=7) for scored in episodes.scored))
    algorithm = open_algorithm(recipe.rl)
    experience = make_experience(episodes, recipe.rl, algorithm, None)
    rows = rows_of(experience, episodes, recipe.rl, algorithm)
    return rows, sum(episodes.faults.values()), {run.stop for run in runs}
