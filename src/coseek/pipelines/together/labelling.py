"""Labels of a co-training round, made from its agent's runs (paper 000, algorithm 1).

The candidates come from the retriever of the round before, over which the agent was trained and is run.
"""

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from coseek.agents.run_questions import run_questions
from coseek.agents.search_turns import SearchTurn, search_turns
from coseek.core.errors import DataError, RunError
from coseek.core.files import JsonObject, read_json, write_json
from coseek.core.fingerprint import digest_of, fingerprint
from coseek.core.lock import lock_folder
from coseek.core.settings import dump_settings
from coseek.data.question import Question, save_questions
from coseek.data.run import Run
from coseek.data.selection import draw
from coseek.graders.call_counts import FAULT, CallCounts
from coseek.graders.judge import is_world
from coseek.hardware.placement import Placement
from coseek.labels.label_folder import LabelFolder, absorb_lines
from coseek.labels.labelling import check_distinct, label_turns, summary, unlabelled
from coseek.labels.maker import RUN, LabelMaker, RolloutMaker
from coseek.labels.resources import ORACLE, AgentWithLimits, LabelResources, by_run
from coseek.pipelines.grader_settings import CACHE
from coseek.pipelines.together.checks import maker_module, own_settings, terms_of
from coseek.pipelines.together.paths import SHORT, CoTrainingPaths
from coseek.training.trainer.data_order import derive_seed

PARTS = "parts"
"""The folder of the other workers' parts, in a label folder."""


@dataclass(frozen=True)
class RoundLabels:
    """The labels of a round, on the first worker."""

    labels: LabelFolder
    maker: LabelMaker
    turns: list[SearchTurn]


def label_round(course: CoTrainingPaths, number: int) -> None:
    """Run agent `number` on its questions and label its searches; writes the label counts at the end.

    The first worker makes the runs, and each labels every W-th run: the first into the label folder, the others into
    `parts` in it, which the first takes over at the end, or at the next start. The labels do not depend on the number
    of workers. All workers call this.

    Raises `DataError` when no run searched, and `RunError` when faults left turns without a label.
    """
    place, workers = course.round(number), course.workers
    if workers.agree(place.labelled.exists):
        return
    own = place.labels if workers.first else place.labels / PARTS / str(workers.rank)
    if workers.first:
        take_over_parts(place.labels)
    parts = parts_of(course, number, own)
    begun = _begin(course, number, parts) if workers.first else None
    left, record = workers.agree(lambda: _left(begun))
    share = [turn for run in workers.mine(list(by_run(left, 1))) for turn in run]
    labels, maker = (
        (begun.labels, begun.maker) if begun is not None else _begin_part(course, place.labels, parts, record)
    )
    workers.wait()  # until the others have copied the scores, to which the first appends
    course.progress.stage(f"labels of round {number}", len(share))
    label_turns(labels, maker, share, lambda over, _: course.progress.advance(over))
    parts.close()
    if begun is None:
        labels.release()
    tally = CallCounts(sum(workers.gather(parts.tally.counts), Counter()))
    if begun is not None:
        _finish(course, number, begun, tally)
    workers.wait()


def _begin(course: CoTrainingPaths, number: int, parts: LabelResources) -> RoundLabels:
    """Make the runs and begin the label folder."""
    place, settings = course.round(number), course.recipe.labels
    questions, own = drawn(course, number), own_settings(settings)
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
    check_distinct(turns)
    recorded: JsonObject = {**dump_settings(settings), settings.method: dump_settings(own)}
    return RoundLabels(LabelFolder.begin(place.labels, recorded, maker.identity, resume=True), maker, turns)


def _left(begun: RoundLabels | None) -> tuple[list[SearchTurn], JsonObject]:
    """The turns without a label, and the record of the label folder."""
    assert begun is not None
    return unlabelled(begun.labels, begun.turns), begun.labels.record


def _begin_part(
    course: CoTrainingPaths, whole: Path, parts: LabelResources, record: JsonObject
) -> tuple[LabelFolder, LabelMaker]:
    """Begin the part of a worker other than the first, with the scores that are known so far."""
    absorb_lines(whole / "scores", parts.folder / "scores")
    settings, identity = cast(JsonObject, record["settings"]), cast(str, record["identity"])
    maker = maker_module(course.recipe.labels.method).open(own_settings(course.recipe.labels), parts)
    return LabelFolder.begin(parts.folder, settings, identity, resume=True), maker


def _finish(course: CoTrainingPaths, number: int, begun: RoundLabels, tally: CallCounts) -> None:
    """Take over the parts, and write the label counts where no fault left turns undone."""
    labels, order = begun.labels, [turn.id for turn in begun.turns]
    for part in label_parts(labels.folder):
        labels.absorb(part)
    shutil.rmtree(labels.folder / PARTS, ignore_errors=True)
    labels.arrange(order)
    done = summary(labels, order, tally)
    labels.release()
    refuse_faults(number, done.left, done.turns, tally)
    # Calls and seconds count this start only, so they are not stored.
    kept = {name: value for name, value in done.to_json().items() if name not in ("counts", "seconds")}
    write_json(course.round(number).labelled, kept)
    course.progress.say(f"round {number}: {done.sets} label sets from {done.turns} search turns")


def label_parts(folder: Path) -> list[LabelFolder]:
    """The parts of a label folder."""
    return [LabelFolder(path.parent) for path in sorted((folder / PARTS).glob("*/labels.yaml"))]


def take_over_parts(folder: Path) -> None:
    """Merge the parts that a killed start left in a label folder, and remove them."""
    if not (folder / PARTS).exists():
        return
    with lock_folder(folder):
        labels = LabelFolder(folder)
        labels.recover()
        for part in label_parts(folder):
            with lock_folder(part.folder):
                part.recover()
                labels.absorb(part)
        shutil.rmtree(folder / PARTS)


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


def parts_of(course: CoTrainingPaths, number: int, folder: Path) -> LabelResources:
    """The resources of a round's label maker, with its caches in a label folder."""
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
        folder=folder,
        found_by=course.search(number - 1),
        open_agent=speaker,
        scorer_name=scorer,
        world=world if is_world(str(world)) else None,
        likelihood_name=settings.likelihood,
        placement=Placement(device=course.recipe.agent.device, attention=course.recipe.agent.attention),
        cache=course.folder / CACHE,
    )
