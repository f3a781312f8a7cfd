"""Gold probe: the policy's log-probability of the gold answer, written as its next turn after a context."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from coseek.agents.grammar import Action
from coseek.agents.protocol import Protocol
from coseek.agents.scripted_agent import Move, move_ids
from coseek.core.errors import SettingError
from coseek.data.trajectory import Author, Segment, Trajectory
from coseek.models.model import EpisodeState, Tokenizer
from coseek.training.rl.algorithm import GoldContext
from coseek.training.trainer.batch import FILLER_ID, Batch
from coseek.training.trainer.learner import ForwardModel


@dataclass(frozen=True, slots=True)
class AnswerWriter:
    """Writes gold answers as turns of a protocol."""

    protocol: Protocol
    tokenizer: Tokenizer

    def ids(self, run: Trajectory, context: Sequence[Segment]) -> tuple[tuple[int, ...], range]:
        """A turn that answers with the first gold answer and thinks nothing, and where in it the answer stands. Raises
        `SettingError` for a question without one, or where the agent writes no answer."""
        if not run.question.answers:
            raise SettingError(
                f"question {run.question.id!r} has no gold answer, and the algorithm asks for its likelihood"
            )
        tag = self.protocol.tag_for(Author.AGENT, Action.ANSWER)
        if tag is None:
            raise SettingError(
                f"an agent of the protocol {self.protocol.name} writes no answer; choose another algorithm"
            )
        answer, grammar = run.question.answers[0], self.protocol.grammar
        searched = tuple(run.searches) if any(segment.author is Author.ENVIRONMENT for segment in context[1:]) else ()
        turn = move_ids(self.protocol, Move("", answer=answer), self.tokenizer, EpisodeState(run.question, searched))
        end = len(turn) - grammar.native_calls - len(self.tokenizer.encode(tag.closing))  # a native turn ends with eos
        return turn, range(end - len(self.tokenizer.encode_data(grammar.escape(answer))), end)


@dataclass(frozen=True, slots=True)
class PolicyProbe:
    """Implements `GoldProbe` with a policy's forward pass, at its sampling temperature."""

    policy: ForwardModel
    writer: AnswerWriter

    def __call__(self, contexts: Sequence[GoldContext]) -> list[float]:
        rows: list[tuple[list[int], range]] = []
        for run, context in contexts:
            turn, answer = self.writer.ids(run, context)
            before = [token for segment in context for token in segment.ids]
            rows.append(([*before, *turn], range(len(before) + answer.start, len(before) + answer.stop)))
        lengths_B = torch.tensor([len(ids) for ids, _ in rows])
        ids_BT = torch.full((len(rows), int(lengths_B.max())), FILLER_ID, dtype=torch.long)
        wanted_BT = torch.zeros(ids_BT.shape, dtype=torch.bool)
        for place, (ids, answer) in enumerate(rows):
            ids_BT[place, : len(ids)] = torch.tensor(ids)
            wanted_BT[place, answer.start : answer.stop] = True
        batch = Batch(ids_BT, wanted_BT, torch.zeros(ids_BT.shape), lengths_B)
        logprobs_BT = torch.where(wanted_BT, self.policy.forward(batch, wanted_BT), 0.0)
        return (logprobs_BT.double().sum(dim=1) / wanted_BT.sum(dim=1)).tolist()
