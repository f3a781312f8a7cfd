"""Shared by the tests of labels: a tiny world, its BM25, runs of an imperfect agent, and the resources of makers."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.scripted import Failing

from coseek.agents.drivers import Agent, rollout
from coseek.agents.limits import Limits
from coseek.agents.protocol import Protocol, load_protocol
from coseek.agents.scripted_agent import ScriptedAgentModel
from coseek.agents.search_turns import SearchTurn, search_turns
from coseek.data.passage import Passage
from coseek.data.trajectory import Trajectory
from coseek.lab.agents.expert import ExpertAgent, ExpertSettings
from coseek.lab.world.world import World, WorldSettings, make_world
from coseek.labels.answer_correctness import Correctness, PositiveChoice, TurnCorrectness
from coseek.labels.label_folder import LabelFolder, Score
from coseek.labels.label_set import Candidate
from coseek.labels.labelling import LabelSummary, make_labels
from coseek.labels.maker import LabelMaker
from coseek.labels.makers import agentic_r
from coseek.labels.resources import AgentWithLimits, LabelResources
from coseek.models.model import Request, Turn, TurnEnd
from coseek.models.tokenizer import ByteTokenizer
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.retrievers.bm25 import Bm25

LIMITS = Limits(max_turn_tokens=4000, max_observation_tokens=8000, max_tokens=64000)


@cache
def world() -> World:
    return make_world(WorldSettings(size="tiny", seed=5, train=30, dev=1, test=1))


@cache
def bm25() -> Bm25:
    return Bm25.over(world().corpus)


@cache
def protocol() -> Protocol:
    return load_protocol("search-r1", "laptop")


def agent() -> Agent:
    expert = ExpertAgent(ExpertSettings(stop_early=0.3, bad_query=0.2, blind_guess=0))
    return Agent(protocol(), ScriptedAgentModel(expert, protocol(), ByteTokenizer(protocol().grammar.special_tokens)))


@cache
def runs() -> tuple[Trajectory, ...]:
    questions = world().questions["train"]
    return tuple(rollout(agent(), bm25(), questions, list(range(len(questions))), LIMITS))


def turns(count: int | None = None) -> list[SearchTurn]:
    return [turn for run in runs() for turn in search_turns(run, protocol())][:count]


class Faulty(ScriptedAgentModel):
    """An agent whose turns after a search fail while `broken`."""

    broken = True

    def step(self) -> list[Turn]:
        failed = [r for r in self._waiting if self.broken and r.state.searches]
        self._waiting = [request for request in self._waiting if request not in failed]
        return [*super().step(), *map(_fault, failed)]


def _fault(request: Request) -> Turn:
    return Turn(request.key, (), (), TurnEnd.FAULT, "the model is gone")


class Away(Failing):
    """BM25 without its corpus, which fails for queries with a word."""

    corpus = None

    def __init__(self, word: str) -> None:
        super().__init__(bm25(), lambda query: word in query.text)


def parts(
    folder: Path, scorer: str = "oracle", retriever: Retriever | None = None, who: Agent | None = None
) -> LabelResources:
    """Resources with the world's oracle as scorer and the agent of the runs."""
    if not (folder / "world").exists():
        world().save(folder / "world")
    speaker = AgentWithLimits(who or agent(), LIMITS, "the agent")
    return LabelResources(folder, retriever or bm25(), lambda: speaker, scorer, folder / "world")


def continued(made_of: LabelResources, turn: SearchTurn, passage: Passage) -> Score:
    """The score of one passage of a turn."""
    outcomes = iter([[TurnCorrectness(turn, [Candidate(passage, 1)], PositiveChoice([100.0]))]])
    (decided,) = Correctness.of(made_of).decide(lambda wait: next(outcomes, None))
    return decided.scores[passage.id]


def labelled(
    folder: Path, made_of: LabelResources, some: Sequence[SearchTurn] | None = None, **settings: object
) -> tuple[LabelFolder, LabelSummary]:
    """Make or resume Agentic-R's labels of these turns."""
    own = agentic_r.AgenticRSettings.model_validate(settings)
    return make(folder, agentic_r.open(own, made_of), made_of, some, {"agentic-r": own.model_dump(mode="json")})


def make(
    folder: Path,
    maker: LabelMaker,
    made_of: LabelResources,
    some: Sequence[SearchTurn] | None = None,
    settings: dict[str, object] | None = None,
) -> tuple[LabelFolder, LabelSummary]:
    labels = LabelFolder.begin(folder, settings or {}, maker.identity, resume=True)  # type: ignore[arg-type]
    return labels, make_labels(labels, maker, turns() if some is None else some, made_of.tally)
