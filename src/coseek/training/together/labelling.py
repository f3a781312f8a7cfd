"""Labelling: the runs of a round become the labels that its retriever learns from (paper 000, algorithm 1).

The candidates are those of the retriever of the round before, over which the agent was trained and is run; the agent
that goes on from them is the round's own.
"""

import random
from pathlib import Path
from typing import cast

from coseek.agents.answering import answer_all
from coseek.agents.judge import is_world
from coseek.data.errors import DataError
from coseek.data.files import JsonObject, read_json, write_json
from coseek.data.fingerprint import fingerprint
from coseek.data.question import Question, save_questions
from coseek.data.registry import find
from coseek.data.settings import make_settings, save_settings
from coseek.labels.folder import Labels
from coseek.labels.maker import PACKAGE, MakerModule, RollsOut
from coseek.labels.making import make_labels
from coseek.labels.parts import ORACLE, Parts, Speaker
from coseek.labels.turn import SearchTurn, turns_of
from coseek.retrieval.retriever import digest_of
from coseek.training.order import derive_seed
from coseek.training.together.course import SHORT, Course

CACHE = "frozen.sqlite"
"""What scoring models wrote, in the run's folder: rounds share it."""


def maker_module(method: str) -> MakerModule:
    """A method of `coseek label`."""
    return cast(MakerModule, find("method", PACKAGE, method))


def label_round(course: Course, number: int) -> None:
    """Let agent `number` answer its questions and label its searches. What they came to is written when it is over."""
    place, settings = course.round(number), course.recipe.labels
    if place.labelled.exists():
        return
    questions = drawn(course, number)
    module = maker_module(settings.method)
    own = make_settings(module.SETTINGS, settings.settings)
    parts = parts_of(course, number)
    maker = module.open(own, parts)
    if isinstance(maker, RollsOut):
        course.progress.stage(f"runs of agent {number}", len(questions) * settings.samples)
        turns = maker.roll_out(questions, lambda ended, _: course.progress.advance(ended))
    else:
        turns = rolled_out(course, number, questions)
    if not turns:
        raise DataError(
            f"agent {number} searched in none of its {len(questions)} runs ({place.run}), so there is nothing to "
            "label; see to its training first"
        )
    recorded: JsonObject = {**save_settings(settings), settings.method: save_settings(own)}
    labels = Labels.begin(place.labels, recorded, maker.identity, resume=True)
    course.progress.stage(f"labels of round {number}", len(turns))
    done = make_labels(labels, maker, turns, parts.tally, lambda over, _: course.progress.advance(over))
    # Calls and seconds are those of this start alone, and another one may have done the most of it.
    kept = {name: value for name, value in done.to_json().items() if name not in ("counts", "seconds")}
    write_json(place.labelled, kept)
    course.progress.say(f"round {number}: {done.sets} label sets from {done.turns} search turns")
    if done.left:
        course.progress.say(f"round {number}: faults left {done.left} turns without a label")


def labelled(course: Course, number: int) -> JsonObject:
    """What `label_round` wrote."""
    return cast(JsonObject, read_json(course.round(number).labelled))


def drawn(course: Course, number: int) -> list[Question]:
    """The training questions of a round."""
    questions = course.agent(0).questions(course.recipe.agent.data.train)
    seed = derive_seed(course.recipe.seed, "questions", number)
    return random.Random(seed).sample(questions, min(course.recipe.labels.questions, len(questions)))


def rolled_out(course: Course, number: int, questions: list[Question]) -> list[SearchTurn]:
    """The searches of agent `number` over the retriever of the round before, in the order of the questions."""
    place, settings = course.round(number), course.recipe.labels
    if not place.questions.exists():
        save_questions(place.questions, questions)
    asked: JsonObject = {"questions": str(place.questions), "samples": settings.samples}
    run = course.open_run(place.run, number, number - 1, asked, settings.temperature)
    agent = course.speaker(number, settings.temperature)
    course.progress.stage(f"runs of agent {number}", len(questions) * settings.samples)
    answer_all(
        run,
        agent,
        course.search(number - 1),
        questions,
        course.recipe.agent.limits,
        seed=derive_seed(course.recipe.seed, "runs", number) % SHORT,
        samples=settings.samples,
        tell=lambda ended, _: course.progress.advance(ended),
    )
    order = {question.id: at for at, question in enumerate(questions)}
    ended = sorted(run.trajectories(), key=lambda one: (order[one.question.id], one.seed))
    return [turn for trajectory in ended for turn in turns_of(trajectory, agent.protocol)]


def parts_of(course: Course, number: int) -> Parts:
    """What the labels of a round stand on."""
    settings, limits = course.recipe.labels, course.recipe.agent.limits
    scorer, world = settings.scorer, course.data_folder
    if scorer is not None and is_world(scorer):
        scorer, world = ORACLE, Path(scorer).expanduser()

    def speaker() -> Speaker:
        temperature = settings.branch_temperature
        agent, weights = course.speaker(number, temperature), fingerprint(course.policy(number))
        recipe = course.recipe.agent
        identity = digest_of("agent", weights, agent.protocol.name, recipe.wording, str(temperature), recipe.precision)
        return Speaker(agent, limits, identity)

    return Parts(
        folder=course.round(number).labels,
        found_by=course.search(number - 1),
        open_agent=speaker,
        scorer_name=scorer,
        world=world if is_world(str(world)) else None,
        likelihood_name=settings.likelihood,
        cache=course.folder / CACHE,
    )
