"""Gold probe: the policy's log-probability of the gold answer, written as its next turn after a context."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from coseek.agents.protocol import Protocol
from coseek.agents.scripted_agent import Move, move_ids
from coseek.agents.tag import Action
from coseek.core.errors import SettingError
from coseek.data.trajectory import Author, Segment, Trajectory
from coseek.models.model import EpisodeState, Tokenizer
from coseek.training.learner.batch import FILLER_ID, Batch
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
        ids_B: list[Tensor] = []
        wanted_B: list[Tensor] = []
        for trajectory, context in contexts:
            turn, answer = self.writer.ids(trajectory, context)
            prompt = [token for segment in context for token in segment.ids]
            ids_B.append(torch.tensor([*prompt, *turn]))
            wanted_T = torch.zeros(len(ids_B[-1]), dtype=torch.bool)
            wanted_T[len(prompt) + answer.start : len(prompt) + answer.stop] = True
            wanted_B.append(wanted_T)
        ids_BT = pad_sequence(ids_B, batch_first=True, padding_value=FILLER_ID)
        wanted_BT = pad_sequence(wanted_B, batch_first=True)
        lengths_B = torch.tensor([len(ids_T) for ids_T in ids_B])
        batch = Batch(ids_BT, wanted_BT, torch.zeros(ids_BT.shape), lengths_B)
        logprobs_BT = torch.where(wanted_BT, self.policy.forward(batch, wanted_BT), 0.0)
        return (logprobs_BT.double().sum(dim=1) / wanted_BT.sum(dim=1)).tolist()
