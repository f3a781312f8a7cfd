"""Token record: the inputs and the first outputs of a step's losses at each token. It costs no pass of its own."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coseek.data.run import RowKey
from coseek.data.token_data import TokenData, agent_spans, finite
from coseek.training.rl.episodes import EpisodeBatch, ScoredEpisode
from coseek.training.rl.experience import Experience
from coseek.training.trainer.workers import Workers


class TokenRecord:
    """Outputs of the first pass of the updates over each row of a batch; 0 where there was none."""

    def __init__(self, experience: Experience) -> None:
        shape = experience.batch.ids_BT.shape
        self.logprobs_BT = torch.zeros(shape)
        self.entropy_BT = torch.zeros(shape)
        self.passes_B = torch.zeros(shape[0], dtype=torch.long)
        """0 without a pass, else one more than the updates before it."""
        self.has_entropy = False

    def add(self, rows_b: Tensor, logprobs_bt: Tensor, entropy_bt: Tensor | None, updates: int) -> None:
        """Take the outputs of a micro-batch of the first epoch, in which each row has one pass on one worker."""
        width = logprobs_bt.shape[1]
        self.logprobs_BT[rows_b, :width] = logprobs_bt.detach().cpu()
        self.passes_B[rows_b] = updates + 1
        if entropy_bt is not None:
            self.entropy_BT[rows_b, :width] = entropy_bt.detach().cpu()
            self.has_entropy = True

    def add_up(self, workers: Workers) -> None:
        """Merge the records of all workers, each of which ran its own micro-batches."""
        for tensor in (self.logprobs_BT, self.entropy_BT, self.passes_B):
            workers.add_up(tensor)
        self.has_entropy = any(workers.gather(self.has_entropy))


@dataclass(frozen=True, slots=True)
class StepTokens:
    """The experience of a step with the record of its updates."""

    episodes: EpisodeBatch
    """Those that the experience was made of."""
    experience: Experience
    record: TokenRecord
    trained_B: Tensor
    """True for rows that count in the loss."""
    recomputed: bool
    """Whether the old log-probabilities are the trainer's (`old_logprobs: recompute`)."""

    def places(self) -> dict[RowKey, int]:
        """Question and seed of each episode → its row."""
        runs = (episode.trajectory for episode in self.episodes.scored)
        return {(run.question.id, run.seed): place for place, run in enumerate(runs)}

    def data(self, place: int) -> TokenData:
        """The token data of the episode in a row."""
        episode = self.episodes.scored[place]
        written_T = self.experience.batch.agent_BT[place]
        passes = int(self.record.passes_B[place])
        logprobs_BT = self.experience.old_BT if self.recomputed else self.record.logprobs_BT
        updates = 0 if self.recomputed else passes - 1

        def values(whole_BT: Tensor, known: bool = True) -> list[float]:
            return whole_BT[place][written_T].tolist() if known else []

        return replace(
            reward_data(episode),
            trained=bool(self.trained_B[place]),
            spans=agent_spans(episode.trajectory),
            advantages=finite(values(self.experience.advantages_BT)),
            # The trainer's float32 says no more, and a gap is a small difference of two such numbers.
            trainer_logprobs=finite(values(logprobs_BT, updates >= 0), lambda value: round(value, 6)),
            updates=updates if updates >= 0 else None,
            entropies=finite(values(self.record.entropy_BT, self.record.has_entropy and passes > 0)),
        )


def reward_data(episode: ScoredEpisode) -> TokenData:
    """The token data of an episode that is not learnt from: its reward alone."""
    run, reward = episode.trajectory, episode.reward
    (value,) = finite([reward.value])
    parts = dict(zip(reward.parts, finite(reward.parts.values()), strict=True))
    return TokenData(run.question.id, run.seed, episode.group, value, parts)
