"""Cells of a table: what an outage spoilt is measured again, what is whole is not, and nothing is decided by faults."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.agents.playing import QUESTION, Shelf
from tests.agents.test_chat_templates import chatting
from tests.labels.small import Faulty
from tests.pipelines.small_together import small as recipe
from tests.pipelines.test_round_labels import LIMITS, Played

from coseek.agents.drivers import Agent
from coseek.agents.scripted.rules import RuleAgent
from coseek.agents.scripted_agent import ScriptedAgentModel
from coseek.core.errors import RetrieverError, RunError, SettingError
from coseek.core.settings import make_settings
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.run import Run
from coseek.lab.agents.expert import ExpertAgent, ExpertSettings
from coseek.models.model import Tokenizer
from coseek.models.model_folder import model_path
from coseek.models.tokenizer import ByteTokenizer
from coseek.pipelines import table_rows
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.data_folder import QuestionSet
from coseek.pipelines.table_rows import TableRow, answer_cell, cell_folder, identities_of_row
from coseek.pipelines.together.together import Pair, Pairs
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import FixedRetriever, LayeredRetriever, Retriever, schedule_of, tell_step
from coseek.retrieval.retrievers.cached import CachedRetriever
from coseek.retrieval.retrievers.hybrid import Hybrid, HybridSettings
from coseek.retrieval.retrievers.noisy import NoisyRetriever, NoisySettings
from coseek.training.rl.rollout_servers import check_in_turn

pytestmark = pytest.mark.medium

FIRST = Pair(0, 0)


@dataclass
class Measured(Played):
    """A co-training whose agents are all the expert, with a tokenizer."""

    tokenizer: Tokenizer | None = None

    def agent(self, number: int) -> AgentTraining:
        return self.first

    def open_agent(self, number: int, temperature: float) -> Agent:
        self.asked_for.append(temperature)
        protocol, made = self.first.protocol, Faulty if temperature == self.broken_at else ScriptedAgentModel
        return Agent(protocol, made(ExpertAgent(ExpertSettings()), protocol, self.first.tokenizer))

    def turn_identities(self, number: int, temperature: float) -> dict[str, str]:
        return {}


def measured(folder: Path, *overrides: str, tokenizer: Tokenizer | None = None, broken: bool = False) -> Measured:
    made = Measured(recipe(folder, LIMITS, *overrides), folder / "run", broken_at=0.0 if broken else None)
    given = tokenizer or ByteTokenizer(made.first.protocol.grammar.special_tokens)
    vars(made.first)["tokenizer"] = given
    made.first.prepare_data()
    return made


def test_pairs_of_an_instruct_model_are_measured_once(tmp_path: Path) -> None:
    training = measured(tmp_path, "agent.prompt_template=default", tokenizer=chatting())
    assert training.first.protocol.template.framed(training.first.tokenizer)
    pairs = Pairs(training)
    pairs.measure(0)
    opened = len(training.asked_for)
    pairs.measure(0)
    assert opened == len(training.asked_for) == len(pairs.in_table(0)) + 1


def test_a_pair_that_an_outage_spoilt_is_measured_again(tmp_path: Path) -> None:
    broken = Pairs(measured(tmp_path, broken=True))
    broken.measure(0)
    run = Run(broken.path(FIRST))
    assert all(trajectory.fault is not None for trajectory in run.trajectories()) and len(run.finished_keys()) == 6
    Pairs(measured(tmp_path)).measure(0)
    assert all(trajectory.fault is None for trajectory in run.trajectories()) and len(run.finished_keys()) == 6


def test_a_round_of_which_only_faults_are_known_is_not_judged(tmp_path: Path) -> None:
    whole, broken = Pairs(measured(tmp_path)), Pairs(measured(tmp_path, broken=True))
    whole.measure(0)
    broken.measure(1)
    with pytest.raises(RunError, match=r"agent-1.retriever-1.dev has a fault, so round 1 cannot be judged.*--resume"):
        whole.improved(1)
    whole.measure(1)
    assert whole.improved(1)


class Outage(Shelf):
    """A shelf that finds nothing while it is down."""

    down = True

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        if self.down:
            raise RetrieverError("the server is gone")
        return super().search(queries, k)


def agent_training(folder: Path, turn_tokens: int) -> AgentTraining:
    limits = f"limits={{max_turns: 2, max_turn_tokens: {turn_tokens}, max_observation_tokens: 400, max_tokens: 2000}}"
    policy = "policy={folder: base, add_tag_tokens: false, add_word_tokens: 0}"
    more = ("rejection.samples=1", "learn=rejection", "warm_start=null")
    return AgentTraining(load_recipe("quickstart", [policy, limits, *more]), folder)


@pytest.mark.parametrize("row", [TableRow("rules", "", "search-r1", 0.0), TableRow("RAG k=2", "", "rag", 0.0, 2)])
def test_a_cell_that_an_outage_spoilt_is_measured_again(row: TableRow, tmp_path: Path) -> None:
    training, shelf = agent_training(tmp_path, 400), Outage()
    column = QuestionSet("test", (QUESTION,), shelf)
    faults = []
    for shelf.down in (True, False):
        answer_cell(training, row, column, 0)
        run = Run(cell_folder(training, row, column))
        faults.append([trajectory.fault is not None for trajectory in run.trajectories()])
    assert faults == [[True], [False]]


class HalfDown(Outage):
    """An outage for one question."""

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        if self.down and any(self.seen(query) == QUESTION.question for query in queries):
            raise RetrieverError("the server is gone")
        return Shelf.search(self, queries, k)


def by_the_rules(training: AgentTraining, row: TableRow) -> Agent:
    """The rule-based agent in the place of a policy, which would have to be trained."""
    protocol = training.recipe.load_protocol(row.protocol)
    return Agent(
        protocol, ScriptedAgentModel(RuleAgent(), protocol, training.tokenizer), identities_of_row(training, row)
    )


@pytest.mark.parametrize("row", [TableRow("after", "trained", "search-r1", 0.0), TableRow("RAG", "", "rag", 0.0, 2)])
def test_a_cell_of_a_folder_that_was_moved_goes_on_and_is_sorted(
    row: TableRow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_rows, "agent_of", by_the_rules)
    shelf = HalfDown()
    column = QuestionSet("test", (QUESTION, replace(QUESTION, id="later", question="who else?")), shelf)
    shutil.copytree(model_path("base"), tmp_path / "here" / "policy" / "trained")
    answer_cell(agent_training(tmp_path / "here", 400), row, column, 0)
    (tmp_path / "here").rename(tmp_path / "there")
    moved, shelf.down = agent_training(tmp_path / "there", 400), False
    answer_cell(moved, row, column, 0)
    kept = list(Run(cell_folder(moved, row, column)).trajectories())
    assert [(trajectory.question.id, trajectory.fault) for trajectory in kept] == [(QUESTION.id, None), ("later", None)]


CORPUS = Corpus(Passage(str(row), "", f"text {row}") for row in range(200))
QUERIES = [f"query {number}" for number in range(30)]
RIGHT = FixedRetriever(CORPUS, {query: ["0", "1"] for query in QUERIES})


def over(name: str, noisy: NoisyRetriever, folder: Path) -> Retriever:
    """The noisy retriever under another one."""
    if name == "hybrid":
        return Hybrid([noisy, FixedRetriever(CORPUS, {})], make_settings(HybridSettings, {"parts": ["a", "b"]}))
    if name == "noisy":
        return NoisyRetriever(noisy, make_settings(NoisySettings, {"over": "-"}))
    return CachedRetriever(noisy, folder / "lists.sqlite")


@pytest.mark.parametrize("name", ["cached", "noisy", "hybrid"])
def test_noise_grows_in_a_retriever_that_lies_under_another_one(name: str, tmp_path: Path) -> None:
    noisy = NoisyRetriever(RIGHT, make_settings(NoisySettings, {"over": "-", "noise": {"start": 0, "end": 1}}))
    retriever = over(name, noisy, tmp_path)
    schedule = schedule_of(retriever)
    assert schedule is not None
    wrong, identities = [], set()
    for step in (0, 6, 10):
        schedule.progress(step, 10)
        identities.add(retriever.identity)
        wrong.append(sum([hit.passage.id for hit in hits] != ["0", "1"] for hits in retriever.search(QUERIES, 2)))
    assert wrong[0] == 0 < wrong[1] < wrong[2] == len(QUERIES)
    assert len(identities) == 3


def test_the_last_step_has_the_last_rate_also_of_a_training_of_one() -> None:
    def rate(step: int, steps: int) -> float:
        noisy = NoisyRetriever(RIGHT, make_settings(NoisySettings, {"over": "-", "noise": {"start": 0, "end": 1}}))
        tell_step(noisy, step, steps)
        return sum([hit.passage.id for hit in hits] != ["0", "1"] for hits in noisy.search(QUERIES, 2)) / len(QUERIES)

    assert (rate(1, 4), rate(4, 4), rate(1, 1)) == (0.0, 1.0, 0.0)
    assert 0 < rate(3, 4) < 1


def test_no_step_is_sampled_before_the_schedule_has_come_to_it() -> None:
    constant, growing = {"start": 0.2, "end": 0.2}, {"start": 0.0, "end": 0.2}
    made = [make_settings(NoisySettings, {"over": "-", "noise": noise}) for noise in (constant, growing)]
    steady, schedule = (schedule_of(NoisyRetriever(RIGHT, settings)) for settings in made)
    check_in_turn(steady, 2)
    with pytest.raises(SettingError, match=r"rollout\.max_steps_behind=2 samples steps before the schedule"):
        check_in_turn(schedule, 2)
    check_in_turn(schedule, 0)
    check_in_turn(None, 2)


def test_a_retriever_over_one_that_never_changes_is_told_nothing() -> None:
    assert schedule_of(LayeredRetriever(RIGHT)) is None  # type: ignore[arg-type]
