"""Fears about a retriever that changes over a training: one that is never told, an answer of an earlier step."""

from pathlib import Path

import pytest

from coseek.core.errors import SettingError
from coseek.core.settings import make_settings
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.retriever import FixedRetriever, LayeredRetriever, Retriever, schedule_of, tell_step
from coseek.retrieval.retrievers.cached import CachedRetriever
from coseek.retrieval.retrievers.hybrid import Hybrid, HybridSettings
from coseek.retrieval.retrievers.noisy import NoisyRetriever, NoisySettings
from coseek.training.rl.rollout_servers import check_in_turn

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
    found = over(name, noisy, tmp_path)
    schedule = schedule_of(found)
    assert schedule is not None
    wrong, identities = [], set()
    for step in (0, 6, 10):
        schedule.progress(step, 10)
        identities.add(found.identity)
        wrong.append(sum([hit.passage.id for hit in hits] != ["0", "1"] for hits in found.search(QUERIES, 2)))
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
