"""Labels of a co-training round, made from its agent's runs (paper 000, algorithm 1).

The candidates come from the previous round's retriever, over which the agent was trained and runs.
"""

import gc
import shlex
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias, cast

import torch

from coseek.agents.search_turns import TurnId
from coseek.core.errors import DataError, RunError, SettingError
from coseek.core.files import JsonObject, read_json, write_json
from coseek.core.fingerprint import digest_of, fingerprint
from coseek.core.http import HttpClient, HttpFailure, HttpSettings
from coseek.core.lock import lock_folder
from coseek.core.settings import dump_settings
from coseek.data.dataset import draw
from coseek.data.question import Question, save_questions
from coseek.data.run import RowKey, Run
from coseek.graders.factory import CACHE
from coseek.graders.judge import is_world
from coseek.graders.structured_output import FAULT, CallCounts
from coseek.hardware.placement import Placement
from coseek.labels.label_folder import LabelFolder, absorb_lines
from coseek.labels.labelling import OWN_RUN, check_distinct, digests_of, label_turns, summary, unlabelled
from coseek.labels.maker import RUN, LabelMaker, RolloutMaker, StoredTurns, maker_module
from coseek.labels.resources import ORACLE, AgentWithLimits, LabelResources
from coseek.models.server import ServerPaths, split_settings
from coseek.pipelines.agent_run import PARTS, share_run
from coseek.pipelines.together.paths import SEED_BOUND, CoTrainingPaths
from coseek.pipelines.together_recipe import method_settings, requirements_of
from coseek.training.learner.data_order import derive_seed
from coseek.training.learner.workers import Workers

Shares: TypeAlias = Sequence[frozenset[RowKey]]
"""For a method that makes its own runs: the runs that each worker made in this start, by rank. The worker's folder
holds their rankings. Empty for other methods."""


def label_round(training: CoTrainingPaths, number: int) -> None:
    """Run agent `number` on its questions and label its searches, with the scorer that `labels.serve` serves. Write the
    label counts at the end.

    Every worker makes and labels its share of the runs: the first one in the label folder, the others in subfolders of
    its `parts`, which the first one merges at the end, or at the next start. The labels do not depend on the number of
    workers. All workers call this.

    Raises `DataError` if no run searched, and `RunError` if faults left turns without a label.
    """
    paths, workers = training.round(number), training.workers
    if workers.broadcast(paths.label_counts.exists):
        return
    settings = training.recipe.labels
    gc.collect()
    torch.cuda.empty_cache()  # leave the memory of the training to the server
    with serving(settings.serve if workers.is_main else None, str(settings.scorer), paths.labels.parent):
        workers.barrier()
        _label_round(training, number)


def _label_round(training: CoTrainingPaths, number: int) -> None:
    paths, workers = training.round(number), training.workers
    folder = paths.labels if workers.is_main else paths.labels / PARTS / str(workers.rank)
    if workers.is_main:
        take_over_workers(paths.labels)
    workers.barrier()
    if not workers.is_main:
        absorb_lines(paths.labels / "scores", folder / "scores")
    workers.barrier()  # the first worker must not append to the scores before the others have copied them
    resources = open_resources(training, number, folder)
    maker = maker_module(training.recipe.labels.method).open(method_settings(training.recipe.labels), resources)
    turns, shares = roll_out_round(training, number, maker, resources)
    labels, order, missing = _begin_labels(training, number, maker, turns, resources)
    own_ids = _own_share(workers, shares, missing)
    training.progress.stage(f"labels of round {number}", len(own_ids))
    own_turns = (turn for turn in turns if turn.id in own_ids)
    label_turns(labels, maker, own_turns, len(own_ids), lambda done, _: training.progress.advance(done))
    resources.close()
    if not workers.is_main:
        labels.release()
    tally = CallCounts(sum(workers.gather(resources.tally.counts), Counter()))
    if workers.is_main:
        _finish(training, number, labels, order, tally)
    workers.barrier()


def _begin_labels(
    training: CoTrainingPaths, number: int, maker: LabelMaker, turns: StoredTurns, resources: LabelResources
) -> tuple[LabelFolder, Sequence[TurnId], Sequence[TurnId]]:
    """Begin the label folder and the other workers' folders in it. Returns this worker's folder, all search turns, and
    those without a label."""
    settings = training.recipe.labels
    recorded = {**dump_settings(settings), "serve": None}  # it changes no label
    recorded[settings.method] = dump_settings(method_settings(settings))
    folders: list[LabelFolder] = []

    def begin() -> tuple[JsonObject, list[TurnId], list[TurnId]]:
        order = check_distinct(turns)
        if not order:
            refuse_faults(number, 0, 0, resources.tally)
            raise DataError(
                f"agent {number} searched in none of its {len(turns.question_ids)} runs ({turns.run.folder}), so there "
                "is nothing to label; see to its training first"
            )
        folders.append(LabelFolder.begin(training.round(number).labels, recorded, maker.identity, resume=True))
        return folders[0].record, [*order], [*unlabelled(folders[0], order, lambda: digests_of([turns.run]))]

    record, order, missing = training.workers.broadcast(begin)
    if not folders:
        recorded, identity = cast(JsonObject, record["settings"]), cast(str, record["identity"])
        folders.append(LabelFolder.begin(resources.folder, recorded, identity, resume=True))
    return folders[0], order, missing


def _own_share(workers: Workers, shares: Shares, missing: Sequence[TurnId]) -> frozenset[TurnId]:
    """The turns that this worker labels: those of the runs that it made in this start, and its share of the others."""
    runs = dict.fromkeys((turn.question_id, turn.seed) for turn in missing)
    made_now = frozenset[RowKey]().union(*shares)
    own_runs = {*workers.strided_share([key for key in runs if key not in made_now])}
    own_runs |= shares[workers.rank] if shares else frozenset()
    return frozenset(turn for turn in missing if (turn.question_id, turn.seed) in own_runs)


def _finish(
    training: CoTrainingPaths, number: int, labels: LabelFolder, order: Sequence[TurnId], tally: CallCounts
) -> None:
    """Merge the workers' labels, and write the label counts if every turn has a label."""
    for path in worker_folders(labels.folder):
        labels.absorb(LabelFolder(path))
    shutil.rmtree(labels.folder / PARTS, ignore_errors=True)
    labels.arrange(order)
    totals = summary(labels, order, tally)
    labels.release()
    refuse_faults(number, totals.left, totals.turns, tally)
    # Not stored: calls and seconds are those of this start only.
    counts = {name: value for name, value in totals.to_json().items() if name not in ("counts", "seconds")}
    write_json(training.round(number).label_counts, counts)
    training.progress.say(f"round {number}: {totals.sets} label sets from {totals.turns} search turns")


def worker_folders(folder: Path) -> list[Path]:
    """The other workers' folders in a label folder."""
    return sorted((folder / PARTS).glob("*"))


def take_over_workers(folder: Path) -> None:
    """Merge the workers' folders of a killed start into the label folder, with runs and scores, and remove them."""
    if not (folder / PARTS).exists():
        return
    with lock_folder(folder):
        labels = LabelFolder(folder) if (folder / "labels.yaml").exists() else None
        if labels is not None:
            labels.recover()
        for path in worker_folders(folder):
            take_over_run(folder, path)
            absorb_lines(path / "scores", folder / "scores")
            if labels is not None and (path / "labels.yaml").exists():
                with lock_folder(path):
                    worker_labels = LabelFolder(path)
                    worker_labels.recover()
                    labels.absorb(worker_labels)
        shutil.rmtree(folder / PARTS)


def take_over_run(folder: Path, worker_folder: Path) -> None:
    """Append the rows of a worker's run to the run of the label folder, and remove it."""
    if (worker_folder / OWN_RUN / "run.yaml").exists():
        Run(folder / OWN_RUN).absorb(Run(worker_folder / OWN_RUN))
        shutil.rmtree(worker_folder / OWN_RUN)


def refuse_faults(number: int, missing: int, turns: int, tally: CallCounts) -> None:
    """Raise `RunError` if faults left search turns without a label: the round would train on a biased subset."""
    if missing or tally.faults.get(RUN):
        failed = ", ".join(f"{failure} {count}" for failure, count in sorted(tally.faults.items()) if count)
        raise RunError(
            f"round {number}: faults left {missing} of {turns} search turns without a label (what failed, and how "
            f"often: {failed}); see that it answers, and go on with --resume, which tries them again"
        )


def label_counts(training: CoTrainingPaths, number: int) -> JsonObject:
    """The label counts of a round."""
    return cast(JsonObject, read_json(training.round(number).label_counts))


def round_questions(training: CoTrainingPaths, number: int) -> list[Question]:
    """The training questions of a round."""
    questions = training.agent(0).questions(training.recipe.agent.data.train)
    seed = derive_seed(training.recipe.seed, "questions", number)
    return draw(questions, training.recipe.labels.questions, seed)


def roll_out_round(
    training: CoTrainingPaths, number: int, maker: LabelMaker, resources: LabelResources
) -> tuple[StoredTurns, Shares]:
    """The searches of agent `number` over the previous round's retriever, in the order of the questions.

    Runs with a fault are retried. All workers call this.
    """
    paths, settings, workers = training.round(number), training.recipe.labels, training.workers
    questions, protocol = round_questions(training, number), training.first.protocol
    question_ids = frozenset(question.id for question in questions)
    training.progress.stage(f"runs of agent {number}", -(-len(questions) * settings.samples // workers.world_size))
    if isinstance(maker, RolloutMaker):
        missing = workers.broadcast(lambda: maker.left(questions))
        shares = tuple(frozenset(missing[rank :: workers.world_size]) for rank in range(workers.world_size))
        maker.roll_out(questions, lambda ended, _: training.progress.advance(ended), shares[workers.rank])
        workers.barrier()
        run = Run(paths.labels / OWN_RUN)
        if workers.is_main:
            for path in worker_folders(paths.labels):
                take_over_run(paths.labels, path)
            run.arrange(question.id for question in questions)
        workers.barrier()
        return StoredTurns(run, protocol, question_ids), shares
    if workers.is_main and not paths.questions.exists():
        save_questions(paths.questions, questions)
    seed = derive_seed(training.recipe.seed, "runs", number) % SEED_BOUND

    def settings_of_run() -> JsonObject:
        # The paths differ in a folder that was moved; `share_run` compares digests instead.
        if (paths.run / "run.yaml").exists():
            return Run(paths.run).settings
        details: JsonObject = {"questions": str(paths.questions), "samples": settings.samples, "seed": seed}
        return training.run_settings(number, number - 1, details, settings.temperature)

    run = share_run(
        workers,
        paths.run,
        workers.broadcast(settings_of_run),
        training.open_agent(number, settings.temperature),
        training.retriever(number - 1),
        questions,
        training.recipe.agent.limits,
        seed=seed,
        samples=settings.samples,
        repeat_faults=True,
        tell=lambda ended, _: training.progress.advance(ended),
    )
    if workers.is_main:
        resources.tally.add(FAULT + RUN, sum(trajectory.fault is not None for trajectory in run.trajectories()))
    return StoredTurns(run, protocol, question_ids), ()


def open_resources(training: CoTrainingPaths, number: int, folder: Path) -> LabelResources:
    """The resources of a round's label maker, with its caches in a label folder."""
    settings, limits = training.recipe.labels, training.recipe.agent.limits
    scorer, world = settings.scorer, training.data_folder
    if scorer is not None and is_world(scorer):
        scorer, world = ORACLE, Path(scorer)

    def open_labeller() -> AgentWithLimits:
        temperature = settings.temperature if requirements_of(settings).rolls_out else settings.branch_temperature
        agent, weights = training.open_agent(number, temperature), fingerprint(training.policy(number))
        recipe = training.recipe.agent
        prompt = (recipe.prompt_template, recipe.chat_template)
        identity = digest_of("agent", weights, agent.protocol.name, *prompt, str(temperature), recipe.precision)
        return AgentWithLimits(agent, limits, identity)

    return LabelResources(
        folder=folder,
        found_by=training.retriever(number - 1),
        open_agent=open_labeller,
        scorer_name=scorer,
        world=world if is_world(world) else None,
        likelihood_name=settings.likelihood,
        placement=Placement(device=training.recipe.agent.device, attention=training.recipe.agent.attention),
        cache=training.folder / CACHE,
    )


# Scorer server: a command that serves the labels' scorer to all workers. It starts before the labels of a round and
# stops after them, so that no worker loads the scorer and training can use the whole device.

START_TIMEOUT_S = 3600.0
"""145 GB of weights from a network disk take half an hour to load."""
STOP_TIMEOUT_S = 30.0
"""The server is killed if it takes longer to end."""


@contextmanager
def serving(command: str | None, url: str, folder: Path) -> Iterator[None]:
    """Run `labels.serve` inside the block, with its output in `serve.log` in `folder`. No-op without a command.

    Raises `SettingError` if a server answers at the URL already, and `RunError` if the server ends early.
    """
    if command is None:
        yield
        return
    if _is_answering(url):
        raise SettingError(f"a server answers at {url} already; set labels.serve=null to ask it, or stop it first")
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "serve.log"
    with log.open("ab") as file:
        # In the group of this process, which `torchrun` and Ctrl-C end as a whole.
        process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _is_answering(url):
            if process.poll() is not None:
                raise RunError(_exit_message(process, command, log))
            if time.monotonic() > deadline:
                raise RunError(
                    f"labels.serve did not answer at {url} for {START_TIMEOUT_S:g} s; its output is in {log}"
                )
            time.sleep(0.5)
        try:
            yield
        except RunError as error:  # faults left turns without a label
            if process.poll() is None:
                raise
            raise RunError(f"{_exit_message(process, command, log)}; {error}") from None
    finally:
        process.terminate()  # the server ends the processes that it started
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_answering(url: str) -> bool:
    """Whether the server lists its models."""
    paths = ServerPaths.of(split_settings(url)[0])
    client = HttpClient(paths.base, HttpSettings(attempts=1, connect_s=2.0, timeout_s=5.0))
    try:
        client.fetch("GET", paths.path("/v1/models"))
    except HttpFailure as error:
        return error.status not in (None, 502, 503)  # it is loading
    finally:
        client.close()
    return True


def _exit_message(process: "subprocess.Popen[bytes]", command: str, log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    last_line = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
    return f"labels.serve ({command}) ended with exit status {process.returncode}: {last_line[:200]} (more in {log})"
