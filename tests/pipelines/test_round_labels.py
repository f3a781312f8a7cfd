"""The labels of a round: what a fault leaves undone, and whether all settings of the runs arrive.

The scripted expert stands in the place of every agent, and BM25 in the place of every retriever: nothing is trained."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest
from tests.labels.small import Faulty
from tests.pipelines.test_together import recipe

from coseek.agents.drivers import Agent
from coseek.agents.scripted_agent import ScriptedAgentModel
from coseek.core.errors import RunError, SettingError
from coseek.core.plugins import plugin_names
from coseek.core.settings import make_settings
from coseek.data.dataset import Dataset
from coseek.data.run import Run
from coseek.lab.agents.expert import ExpertAgent, ExpertSettings
from coseek.labels.maker import PACKAGE, RolloutMaker, maker_module
from coseek.labels.resources import LabelResources
from coseek.models.tokenizer import ByteTokenizer
from coseek.pipelines.together.labelling import label_counts, label_round
from coseek.pipelines.together.paths import CoTrainingPaths
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.retrievers.bm25 import Bm25

LIMITS = "agent.limits={max_turns: 4, max_turn_tokens: 4000, max_observation_tokens: 8000, max_tokens: 64000}"
BY_ANSWERS = ("agent.protocol=search-r1", "labels.settings={}")


@dataclass
class Played(CoTrainingPaths):
    """A co-training whose agents are the expert."""

    broken_at: float | None = None
    """An agent that is opened at this temperature fails at every turn behind a search."""
    asked_for: list[float] = field(default_factory=list)
    """Temperatures at which agents were opened."""

    def open_agent(self, number: int, temperature: float) -> Agent:
        self.asked_for.append(temperature)
        protocol = self.first.protocol
        expert, tokenizer = ExpertAgent(ExpertSettings(bad_query=0.2)), ByteTokenizer(protocol.grammar.special_tokens)
        made = Faulty if temperature == self.broken_at else ScriptedAgentModel
        return Agent(protocol, made(expert, protocol, tokenizer))

    def policy(self, number: int) -> Path:
        return self.data_folder

    def retriever(self, number: int | None) -> Retriever:
        return self._bm25

    @cached_property
    def _bm25(self) -> Bm25:
        return Bm25.over(Dataset(self.data_folder).corpus)


def co_training(folder: Path, *overrides: str, broken_at: float | None = None) -> Played:
    given = (LIMITS, *BY_ANSWERS, "labels.questions=8", *overrides)
    made = Played(recipe(folder, *given), folder / "run", broken_at=broken_at)
    made.first.prepare_data()
    return made


def test_labels_that_a_fault_left_incomplete_are_never_trained_on_and_are_gone_on_with(tmp_path: Path) -> None:
    broken = co_training(tmp_path, broken_at=0.0)  # the agent that continues from passages, not the one of the runs
    place = broken.round(1)
    with pytest.raises(RunError, match=r"left \d+ of \d+ search turns.*agent \d+.*--resume"):
        label_round(broken, 1)
    assert not place.label_counts.exists()
    label_round(co_training(tmp_path), 1)
    found = label_counts(broken, 1)
    assert (
        found["left"] == 0
        and found["sets"]
        and found["turns"] == sum(len(run.searches) for run in Run(place.run).trajectories())
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["agentic-r", "dr-synth"])
def test_a_run_that_a_fault_ended_is_made_anew(tmp_path: Path, method: str) -> None:
    method_of = f"labels=!replace {{method: {method}, scorer: oracle}}"
    broken = co_training(tmp_path, method_of, broken_at=1.0)
    with pytest.raises(RunError, match=r"run \d+.*--resume"):
        label_round(broken, 1)
    assert not broken.round(1).label_counts.exists()
    mended = co_training(tmp_path, method_of)
    label_round(mended, 1)
    whole = co_training(tmp_path / "whole", method_of)
    label_round(whole, 1)
    assert label_counts(mended, 1) == label_counts(whole, 1)
    rows = [(one.round(1).labels / "labels.jsonl").read_bytes() for one in (mended, whole)]
    assert rows[0] == rows[1] != b""


def test_a_method_that_makes_its_runs_itself_makes_as_many_and_as_hot_as_was_asked(tmp_path: Path) -> None:
    played = co_training(tmp_path, "labels=!replace {method: dr-synth, scorer: oracle, samples: 3, temperature: 0.7}")
    label_round(played, 1)
    assert set(played.asked_for) == {0.7}
    runs = list(Run(played.round(1).labels / "run").trajectories())
    assert list(Counter(run.question.id for run in runs).values()) == [3] * 8
    assert len({run.ids for run in runs}) > 8


def test_runs_of_a_question_that_could_only_be_equal_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"one run 4 times; raise labels\.temperature"):
        recipe(tmp_path, "labels.samples=4", "labels.temperature=0")


@pytest.mark.parametrize("method", plugin_names(PACKAGE))
def test_what_a_method_asks_for_when_it_is_opened_it_says_beforehand(tmp_path: Path, method: str) -> None:
    module = maker_module(method)
    settings = make_settings(module.SETTINGS, {})
    terms, asked = module.terms(settings), ""
    try:
        maker = module.open(settings, LabelResources(tmp_path, found_by=co_training(tmp_path).retriever(0)))
        assert isinstance(maker, RolloutMaker) == terms.rolls_out
        assert maker.identity
    except SettingError as error:
        asked = str(error)
    assert (terms.scorer, terms.likelihood) == ("--scorer" in asked, "--likelihood" in asked)
