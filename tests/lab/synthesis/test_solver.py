"""Solver: which questions it leaves."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coseek.agents.drivers import Agent
from coseek.agents.factory import limits_of
from coseek.agents.protocol import load_protocol
from coseek.agents.scripted.rules import RuleAgent
from coseek.agents.scripted_agent import ScriptedAgentModel
from coseek.core.errors import DataError
from coseek.data.dataset import Dataset
from coseek.data.passage import Corpus
from coseek.data.question import Question
from coseek.lab.parts.synthesis import SynthesisSettings
from coseek.lab.synthesis.gates import AgentSolver
from coseek.lab.synthesis.synthesis import SynthesisSummary, synthesize
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.models.tokenizer import ByteTokenizer
from coseek.retrieval.retrievers.bm25 import Bm25

SETTINGS = SynthesisSettings(count=40, hop_mix=(1.0, 1.0), unanswerable=0)


@dataclass
class SkilledSolver:
    """Answers a question of n hops in a known share of its tries."""

    skill: dict[int, float | None]
    asked: list[int] = field(default_factory=list)

    def solved(self, questions: Sequence[Question]) -> list[float | None]:
        self.asked += [question.hops or 0 for question in questions]
        return [self.skill[question.hops or 0] for question in questions]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return make_world(WorldSettings(size="tiny", train=0, dev=0, test=0)).corpus


def made(corpus: Corpus, folder: Path, solver: SkilledSolver) -> SynthesisSummary:
    corpus.save(folder / "in" / "corpus.jsonl")
    return synthesize(folder / "in", folder / "out", SETTINGS, solver=solver)


@pytest.mark.medium
def test_only_questions_at_the_edge_are_kept_and_the_rest_is_counted(corpus: Corpus, tmp_path: Path) -> None:
    for share, reason in ((1.0, "nearly always"), (0.0, "seldom")):
        summary = made(corpus, tmp_path / reason, SkilledSolver({1: share, 2: 0.4}))
        dataset = Dataset(tmp_path / reason / "out")
        questions = [question for split in dataset.splits for question in dataset.questions(split)]
        assert {question.hops for question in questions} == {2}
        assert "'solved in 40% of the tries'" in str(questions[0].meta["gates"])
        assert summary.dropped[f"edge: the solver {reason} answers it"] > 0


def test_a_solver_that_always_fails_is_a_sentence_and_nothing_is_written(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the solver failed in every try"):
        made(corpus, tmp_path, SkilledSolver({1: None, 2: None}))
    assert not (tmp_path / "out").exists()


def test_an_agent_tries_each_question_in_its_retriever(corpus: Corpus) -> None:
    world = make_world(WorldSettings(size="tiny", train=0, dev=30, test=0))
    protocol = load_protocol("search-r1")
    model = ScriptedAgentModel(RuleAgent(), protocol, ByteTokenizer(protocol.grammar.special_tokens))
    agent = Agent(protocol, model)
    solver = AgentSolver(agent, Bm25.over(world.corpus), limits_of(agent), tries=2, seed=0)
    rates = solver.solved(world.questions["dev"])
    assert len(rates) == len(world.questions["dev"])
    assert {*rates} == {0.0, 1.0}  # the rules draw nothing: all tries are alike
