"""verl: coseek's episodes in verl's workers, and coseek's advantages in its trainer (`make engine-verl`).

verl finds the agent loop `SearchAgentLoop` in its file of agent loops (`agent_loop_config_path`). It returns one row
per episode, and none if a part failed, so that the episode is in no loss and no baseline. verl's trainer makes a
`TrainerHooks` when it starts, which registers the advantage estimator of the run's algorithm.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from coseek.agents.drivers import Sampled, Sampling
from coseek.core.errors import ModelError, missing_extras
from coseek.core.files import JsonObject, parse_line
from coseek.core.settings import load_settings
from coseek.data.question import Question
from coseek.data.trajectory import Author
from coseek.models.dialect import turn_seed
from coseek.models.model import Request, Tokenizer, TurnEnd
from coseek.models.tokenizer import stopped_after
from coseek.pipelines.verl.config import AGENT
from coseek.pipelines.verl.launch import EPISODES, EpisodeHost, EpisodeSettings, Place
from coseek.training.rl.algorithm import Algorithm, StepRewards, open_algorithm
from coseek.training.rl.losses import zero_std_rows
from coseek.training.rl.rollout import ScoredTrajectory, TrajectoryBatch, rollout_metrics, row_rewards
from coseek.training.rl.settings import RlSettings

with missing_extras("training in verl"):
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, DictConfigWrap
    from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
    from verl.trainer.ppo.core_algos import register_adv_est
    from verl.workers.rollout.llm_server import LLMServerClient

if TYPE_CHECKING:
    from omegaconf import DictConfig

Hosts = dict[str, "asyncio.Future[EpisodeHost]"]
_HOSTS: "WeakKeyDictionary[asyncio.AbstractEventLoop, Hosts]" = WeakKeyDictionary()
"""Event loop → settings file → host, since verl makes a `SearchAgentLoop` for every episode."""


class SearchAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Plays one episode."""

    def __init__(
        self, *, settings: str, trainer_config: DictConfigWrap, server_manager: LLMServerClient, **others: object
    ) -> None:
        """`settings` is the path of an `EpisodeSettings` file; the rest is what verl passes to every agent loop."""
        # Not `super().__init__`, which makes a builder of chat prompts for every episode and warns of unknown models.
        self._settings, self._client, self._config = settings, server_manager, trainer_config.config

    async def run(
        self,
        sampling_params: dict[str, object],
        *,
        question: str,
        extra_info: JsonObject,
        uid: str,
        session_id: int,
        global_steps: int,
        **others: object,
    ) -> list[AgentLoopOutput]:
        """Play the question of a row (`launch.write_questions`). Returns an empty list if a part failed."""
        host = await _host(self._settings)
        place = Place(
            int(global_steps), cast(int, extra_info["index"]), int(session_id), extra_info["split"] == "train"
        )
        sglang = self._config.actor_rollout_ref.rollout.name == "sglang"
        turns = ServerTurns(self._client, host.tokenizer, sampling_params, f"{uid}/{session_id}", sglang)
        batch = await host.play(Question.from_json(parse_line(question, "a row of verl")), place, turns)
        return [turns.output(episode, batch, host.settings.recipe.rl, place.step) for episode in batch.scored]


async def _host(path: str) -> EpisodeHost:
    """The host of a settings file in this event loop. Episodes that begin at the same time share it."""
    hosts = _HOSTS.setdefault(asyncio.get_running_loop(), {})
    if path not in hosts:
        hosts[path] = asyncio.ensure_future(EpisodeHost.open(Path(path)))
    return await hosts[path]


class ServerTurns:
    """Samples the turns of one episode at verl's servers, all at the same server."""

    def __init__(
        self, client: LLMServerClient, tokenizer: Tokenizer, sampling: Mapping[str, object], key: str, sglang: bool
    ) -> None:
        self._client, self._tokenizer, self._sampling, self._key = client, tokenizer, sampling, key
        self._sglang = sglang
        self.versions: list[int] = []
        """Training steps of the oldest and newest weights of every turn."""
        self.seconds = 0.0

    async def __call__(self, ids: Sequence[int], *, sampling: Sampling, request: Request) -> Sampled:
        seed = turn_seed(sampling.seed, len(ids))
        # vLLM and SGLang have different names for these.
        vllm, sglang = {"include_stop_str_in_output": True, "seed": seed}, {"no_stop_trim": True, "sampling_seed": seed}
        params = {
            **{**self._sampling, "max_tokens": sampling.max_tokens, "stop": [*sampling.stops]},
            **{"skip_special_tokens": False, "spaces_between_special_tokens": False},
            **(sglang if self._sglang else vllm),
        }
        started_s = asyncio.get_running_loop().time()
        reply = await self._client.generate(request_id=self._key, prompt_ids=[*ids], sampling_params=params)
        self.seconds += asyncio.get_running_loop().time() - started_s
        if reply.stop_reason == "aborted":
            raise ModelError("verl's server aborted the turn")
        if reply.log_probs is None:
            raise ModelError("verl's server returned no log-probabilities; set rollout.calculate_log_probs=true")
        steps = (reply.extra_fields.get(name) for name in ("min_global_steps", "max_global_steps"))
        versions = [version for version in steps if version is not None]
        self.versions += versions
        reply_ids = [*reply.token_ids]
        length = stopped_after(reply_ids, sampling.stops, self._tokenizer)
        natural_end = TurnEnd.EOS if reply_ids[-1:] == [self._tokenizer.eos_id] else TurnEnd.LENGTH
        end = natural_end if length is None else TurnEnd.STOP
        return Sampled(reply_ids[:length], reply.log_probs[:length], end, min(versions, default=None))

    def output(self, episode: ScoredTrajectory, batch: TrajectoryBatch, rl: RlSettings, step: int) -> AgentLoopOutput:
        """The row of a scored episode, up to its last policy token, where verl puts the reward.

        The prompt is everything before the agent's first token. An episode without agent tokens, and one that a setting
        excludes from the loss, counts in its group with a mask of zeros.
        """
        run = episode.trajectory
        ids = [ident for segment in run.segments for ident in segment.ids]
        agent = [segment.author is Author.AGENT for segment in run.segments for _ in segment.ids]
        logprobs = [
            value
            for segment in run.segments
            for value in (segment.logprobs if segment.author is Author.AGENT else (0.0,) * len(segment.ids))
        ]
        first = agent.index(True) if True in agent else len(ids) - 1
        end = len(ids) - agent[::-1].index(True) if True in agent else len(ids)
        is_trained = not (rl.truncated == "mask" and run.truncated)
        versions = self.versions or [step - 1]
        return AgentLoopOutput(
            prompt_ids=ids[:first],
            response_ids=ids[first:end],
            response_mask=[int(is_agent and is_trained) for is_agent in agent[first:end]],
            response_logprobs=logprobs[first:end],
            multi_modal_data={},
            reward_score=float(row_rewards(batch, rl)[0]),
            num_turns=sum(segment.author is Author.AGENT for segment in run.segments),
            metrics=AgentLoopMetrics(generate_sequences=self.seconds, tool_calls=run.timings["retriever_s"]),
            extra_fields={
                "reward_extra_info": {name: float(value) for name, value in rollout_metrics(batch).items()},
                "episode": f"{run.question.id}/{run.seed}",
                "min_global_steps": min(versions),
                "max_global_steps": max(versions),
            },
        )


class TrainerHooks(CheckpointCallback):  # type: ignore[misc]
    """Registers the advantage estimator of a run, from the settings of its agent loop."""

    def __init__(self, config: "DictConfig") -> None:
        super().__init__(config)
        loops = Path(config.actor_rollout_ref.rollout.agent.agent_loop_config_path)
        rl = load_settings(EpisodeSettings, loops.with_name(EPISODES)).recipe.rl
        register_adv_est(AGENT)(partial(estimate, open_algorithm(rl), rl))


def estimate(
    algorithm: Algorithm,
    rl: RlSettings,
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: np.ndarray,
    config: object = None,
) -> tuple[Tensor, Tensor]:
    """Return the algorithm's advantages twice, as advantages and returns, of shape BT (T: tokens of the response).

    `index` is the group of each row. A token's reward is the episode's at its last token, less the KL of every token if
    that is charged to the reward. Padding has its own group and a mask of zeros.
    """
    mask_BT = response_mask.bool()
    at_T = torch.arange(mask_BT.shape[1])
    last_B1 = torch.where(mask_BT, at_T, -1).max(dim=1, keepdim=True).values
    charged_BT = torch.where(mask_BT & (at_T < last_B1), token_level_rewards.double(), 0.0)
    rewards_B = token_level_rewards.double().sum(dim=1) - charged_BT.sum(dim=1)
    groups: dict[str, list[int]] = {}
    for row, uid in enumerate(index):
        groups.setdefault(str(uid), []).append(row)
    zero_std_B = zero_std_rows(rewards_B, groups.values(), rl.group_size)
    step = StepRewards(
        rewards_B, -charged_BT.float(), mask_BT, tuple(map(tuple, groups.values())), rl.group_size, zero_std_B
    )
    advantages_BT = algorithm.advantages(step).advantages_BT
    return advantages_BT, advantages_BT
