"""Labels of a co-training round, made from its agent's runs (paper 000, algorithm 1).

The candidates come from the retriever of the round before, over which the agent was trained and is run.
"""

from pathlib import Path
from typing import cast

from coseek.agents.run_questions import run_questions
from coseek.agents.search_turns import SearchTurn, search_turns
from coseek.core.errors import DataError, RunError
from coseek.core.files import JsonObject, read_json, write_json
from coseek.core.fingerprint import digest_of, fingerprint
from coseek.core.settings import dump_settings
from coseek.data.question import Question, save_questions
from coseek.data.run import Run
from coseek.data.selection import draw
from coseek.graders.call_counts import FAULT, CallCounts
from coseek.graders.judge import is_world
from coseek.hardware.placement import Placement
from coseek.labels.label_folder import LabelFolder
from coseek.labels.labelling import make_labels
from coseek.labels.maker import RUN, RolloutMaker
from coseek.labels.resources import ORACLE, AgentWithLimits, LabelResources
from coseek.pipelines.grader_settings import CACHE
from coseek.pipelines.together.checks import maker_module, own_settings, terms_of
from coseek.pipelines.together.paths import SHORT, CoTrainingPaths
from coseek.training.trainer.data_order import derive_seed


def label_round(course: CoTrainingPaths, number: int) -> None:
    """Run agent `number` on its questions and label its searches; writes the label counts at the end.

    Raises `DataError` when no run searched, and `RunError` when faults left turns without a label.
    """
    place, settings = course.round(number), course.recipe.labels
    if place.labelled.exists():
        return
    questions, own = drawn(course, number), own_settings(settings)
    parts = parts_of(course, number)
    maker = maker_module(settings.method).open(own, parts)
    if isinstance(maker, RolloutMaker):
        course.progress.stage(f"runs of agent {number}", len(questions) * settings.samples)
        turns = maker.roll_out(questions, lambda ended, _: course.progress.advance(ended))
    else:
        turns = rolled_out(course, number, questions, parts.tally)
    if not turns:
        refuse_faults(number, 0, 0, parts.tally)
        raise DataError(
            f"agent {number} searched in none of its {len(questions)} runs ({place.run}), so there is nothing to "
            "label; see to its training first"
        )
    recorded: JsonObject = {**dump_settings(settings), settings.method: dump_settings(own)}
    labels = LabelFolder.begin(place.labels, recorded, maker.identity, resume=True)
    course.progress.stage(f"labels of round {number}", len(turns))
    done = make_labels(labels, maker, turns, parts.tally, lambda over, _: course.progress.advance(over))
    parts.close()
    refuse_faults(number, done.left, done.turns, parts.tally)
    # Calls and seconds count this start only, so they are not stored.
    kept = {name: value for name, value in done.to_json().items() if name not in ("counts", "seconds")}
    write_json(place.labelled, kept)
    course.progress.say(f"round {number}: {done.sets} label sets from {done.turns} search turns")


def refuse_faults(number: int, left: int, turns: int, tally: CallCounts) -> None:
    """Raise `RunError` where faults left search turns without a label: the round would train on a biased rest."""
    if left or tally.faults.get(RUN):
        failed = ", ".join(f"{part} {count}" for part, count in sorted(tally.faults.items()) if count)
        raise RunError(
            f"round {number}: faults left {left} of {turns} search turns without a label (what failed, and how often: "
            f"{failed}); see that it answers, and go on with --resume, which tries them again"
        )


def labelled(course: CoTrainingPaths, number: int) -> JsonObject:
    """The label counts of a round."""
    return cast(JsonObject, read_json(course.round(number).labelled))


def drawn(course: CoTrainingPaths, number: int) -> list[Question]:
    """The training questions of a round."""
    questions = course.agent(0).questions(course.recipe.agent.data.train)
    seed = derive_seed(course.recipe.seed, "questions", number)
    return draw(questions, course.recipe.labels.questions, seed)


def rolled_out(course: CoTrainingPaths, number: int, questions: list[Question], tally: CallCounts) -> list[SearchTurn]:
    """The searches of agent `number` over the retriever of the round before, in the order of the questions.

    Runs that a fault ended are repeated.
    """
    place, settings = course.round(number), course.recipe.labels
    if not place.questions.exists():
        save_questions(place.questions, questions)
    asked: JsonObject = {"questions": str(place.questions), "samples": settings.samples}
    run = Run.begin(place.run, course.run_settings(number, number - 1, asked, settings.temperature), resume=True)
    run.drop_faults()
    agent = course.speaker(number, settings.temperature)
    course.progress.stage(f"runs of agent {number}", len(questions) * settings.samples)
    run_questions(
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
    tally.add(FAULT + RUN, sum(one.stop.is_fault for one in ended))
    return [turn for trajectory in ended for turn in search_turns(trajectory, agent.protocol)]


def parts_of(course: CoTrainingPaths, number: int) -> LabelResources:
    """The resources of a round's label maker."""
    settings, limits = course.recipe.labels, course.recipe.agent.limits
    scorer, world = settings.scorer, course.data_folder
    if scorer is not None and is_world(scorer):
        scorer, world = ORACLE, Path(scorer).expanduser()

    def speaker() -> AgentWithLimits:
        temperature = settings.temperature if terms_of(settings).rolls_out else settings.branch_temperature
        agent, weights = course.speaker(number, temperature), fingerprint(course.policy(number))
        recipe = course.recipe.agent
        prompt = (recipe.prompt_template, recipe.chat_template)
        identity = digest_of("agent", weights, agent.protocol.name, *prompt, str(temperature), recipe.precision)
        return AgentWithLimits(agent, limits, identity)

    return LabelResources(
        folder=course.round(number).labels,
        found_by=course.search(number - 1),
        open_agent=speaker,
        scorer_name=scorer,
        world=world if is_world(str(world)) else None,
        likelihood_name=settings.likelihood,
        placement=Placement(device=course.recipe.agent.device, attention=course.recipe.agent.attention),
        cache=course.folder / CACHE,
    )
