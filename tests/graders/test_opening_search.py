"""Fears about s3's opening search: more shown than naive RAG reads, and a gain over RAG for no search at all."""

from pathlib import Path

import pytest
from tests.agents.playing import QUESTION, WIDE, Shelf, play
from tests.scripted import Scripted

from coseek.agents.drivers import Limits
from coseek.agents.sources import served_context
from coseek.data.passage import Corpus, Passage
from coseek.data.trajectory import Trajectory
from coseek.data.trajectory_checks import check_trajectory
from coseek.graders.generator import Generator, GeneratorSettings, load_generator_prompt
from coseek.graders.judge import JudgeSettings, ModelJudge, load_judge_prompt
from coseek.graders.rag_baseline import make_baselines
from coseek.graders.scoring import EpisodeScorer
from coseek.pipelines.agent_recipe import load_recipe
from coseek.rewards.reward import Reward, make_reward

EARTH = [
    Passage(f"e{n}", title, f"{title} is about houses of earth.") for n, title in enumerate(("Clay", "Reno", "Turf"))
]
FILM = [Passage("f0", "Tyre Walls", "Tyre Walls is a film."), Passage("f1", "Tyre Walls", "It was shown in 1815.")]
REST = [Passage(f"r{n}", f"Rest {n}", f"nothing {n}") for n in range(10)]
EVERY = Corpus([*EARTH, *FILM, *REST])
QUERY = "film about the builder of houses of earth"
SHELF = Shelf(EVERY, {
    QUESTION.question: [one.id for one in (*EARTH, *REST)],
    QUERY: [one.id for one in (*FILM, EARTH[0], *REST[:5])],
})  # fmt: skip
TURNS = (
    f'<search_complete> False </search_complete>\n<query>{{"query": "{QUERY}"}}</query>',
    "<important_info>[1, 2]</important_info>\n<search_complete> True </search_complete>",
)
"""The shape of table 7: nothing is selected of the opening search, and two documents of the next."""


def limits(preset: str) -> Limits:
    """Those of the paper's recipe, with room for tokens that are bytes."""
    own = load_recipe("s3", [f"preset={preset}"]).limits
    return WIDE.model_copy(update={name: getattr(own, name) for name in ("opening_passages", "passages_per_search")})


def s3(*turns: str, preset: str = "paper", protocol: str = "s3") -> Trajectory:
    return play(protocol, *turns, limits=limits(preset), retriever=SHELF)


@pytest.mark.parametrize(("preset", "protocol"), [("paper", "s3"), ("code", "s3-code")])
def test_the_worked_example_of_the_paper_serves_its_five_passages(preset: str, protocol: str) -> None:
    run = s3(*TURNS, preset=preset, protocol=protocol)
    assert [len(search.hits) for search in run.searches] == [3, 8]
    assert [passage.id for passage in served_context(run)] == ["e0", "e1", "e2", "f0", "f1"]
    assert not list(check_trajectory(run))


def test_a_run_that_completes_at_once_gains_nothing_over_naive_rag(tmp_path: Path) -> None:
    # A generator that is right by the fourth passage alone: with eight shown, doing nothing would be paid 1.
    writer = Scripted(lambda prompt: "1815" if "Rest 0" in prompt else "a house")
    asked = GeneratorSettings(model="scripted")
    generator = Generator(writer, load_generator_prompt(asked), asked)
    judge = ModelJudge(Scripted(lambda _: "no"), load_judge_prompt(JudgeSettings(model="x")), JudgeSettings(model="x"))
    recipe = load_recipe("s3")
    made = make_baselines(tmp_path, [QUESTION], SHELF, generator, recipe.graders.baseline.passages, judge)
    scoring = EpisodeScorer(make_reward(recipe.reward), generator, judge, made)
    run = s3("<search_complete>True</search_complete>")
    assert tuple(passage.id for passage in served_context(run)) == made.of(QUESTION).passage_ids
    [paid] = scoring([run])
    assert isinstance(paid, Reward) and paid.value == 0
    assert len({prompt for batch in writer.calls for prompt in batch}) == 1  # the same context, to the letter
