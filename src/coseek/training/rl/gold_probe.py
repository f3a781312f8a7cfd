"""Gold probe: the policy's log-probability of the gold answer, written as its next turn after a context."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from coseek.agents.protocol import Protocol
from coseek.agents.scripted_agent import Move, move_ids
from coseek.agents.tag import Action
from coseek.core.errors import SettingError
from coseek.data.trajectory import Author, Segment, Trajectory
from coseek.models.model import EpisodeState, Tokenizer
from coseek.training.learner.batch import Batch, padded
from coseek.training.learner.learner import ForwardModel
from coseek.training.rl.algorithm import GoldContext


@dataclass(frozen=True, slots=True)
class AnswerWriter:
    """Writes gold answers as turns of a protocol."""

    protocol: Protocol
    tokenizer: Tokenizer

    def ids(self, trajectory: Trajectory, context: Sequence[Segment]) -> tuple[tuple[int, ...], range]:
        """Return a turn that answers with the first gold answer without reasoning, and the positions of the answer in
        it. Raises `SettingError` for a question without an answer, or where the agent writes no answer."""
        question = trajectory.question
        if not question.answers:
            raise SettingError(
                f"question {question.id!r} has no gold answer, and the algorithm asks for its likelihood"
            )
        tag = self.protocol.grammar.agent_tags.get(Action.ANSWER)
        if tag is None:
            raise SettingError(
                f"an agent of the protocol {self.protocol.name} writes no answer; choose another algorithm"
            )
        answer, grammar = question.answers[0], self.protocol.grammar
        has_observations = any(segment.author is Author.ENVIRONMENT for segment in context[1:])
        state = EpisodeState(question, tuple(trajectory.searches) if has_observations else ())
        turn = move_ids(self.protocol, Move("", answer=answer), self.tokenizer, state)
        end = len(turn) - grammar.native_calls - len(self.tokenizer.encode(tag.closing))  # a native turn ends with eos
        return turn, range(end - len(self.tokenizer.encode_data(grammar.escape(answer))), end)


@dataclass(frozen=True, slots=True)
class PolicyProbe:
    """Implements `GoldProbe` with a policy's forward pass, at its sampling temperature."""

    policy: ForwardModel
    writer: AnswerWriter

    def __call__(self, contexts: Sequence[GoldContext]) -> list[float]:
        rows: list[list[int]] = []
        targets: list[list[bool]] = []
        for trajectory, context in contexts:
            turn, answer = self.writer.ids(trajectory, context)
            prompt = [token for segment in context for token in segment.ids]
            rows.append([*prompt, *turn])
            targets.append([position - len(prompt) in answer for position in range(len(rows[-1]))])
        ids_BT, target_mask_BT = padded(rows), padded(targets)
        batch = Batch(ids_BT, target_mask_BT, torch.zeros(ids_BT.shape), torch.tensor([*map(len, rows)]))
        logprobs_BT = torch.where(target_mask_BT, self.policy.forward(batch, target_mask_BT), 0.0)
        return (logprobs_BT.double().sum(dim=1) / target_mask_BT.sum(dim=1)).tolist()
