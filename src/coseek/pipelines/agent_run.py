"""Agent run: the settings of `coseek run`, its questions, and the run folder that it writes."""

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pydantic import Field

from coseek.agents.drivers import Agent
from coseek.agents.factory import AgentSettings, former_protocol, limits_for, open_agent, settled_for, spent
from coseek.agents.limits import Limits
from coseek.agents.protocol import load_protocol
from coseek.agents.run_questions import row_keys_of, run_questions
from coseek.core.errors import DataError, ErrorList, SettingError
from coseek.core.files import JsonObject, check_output_folder, parse_rows
from coseek.core.lock import lock_folder
from coseek.core.settings import Settings, dump_settings, make_settings
from coseek.data.corpus_file import CorpusFile
from coseek.data.dataset import Dataset, QuestionFilter, check_gold_ids, check_same_passages, draw
from coseek.data.digests import Identities
from coseek.data.passage import Passage
from coseek.data.question import Question, load_questions
from coseek.data.run import RowKey, Run, RunRows, drop_partial_line
from coseek.models.model_folder import model_path
from coseek.models.remote import RemoteModel
from coseek.retrieval.factory import check_source, describe_retriever, open_retriever
from coseek.retrieval.retriever import Retriever, shortfalls_of

if TYPE_CHECKING:
    from coseek.core.cluster import Cluster
    from coseek.training.learner.workers import Workers


class RunSettings(Settings):
    """The settings of `coseek run`."""

    questions: str
    """The questions file, or the data-set folder."""
    split: str | None = None
    """The split of a data-set folder."""
    count: int | None = Field(default=None, ge=1)
    """Number of questions, drawn with the run's seed in proportion to the data sets; all by default."""
    per_set: int | None = Field(default=None, ge=1)
    """Questions of each data set, at most. null: all."""
    select: QuestionFilter = QuestionFilter()
    """Only questions of some data sets, hops or types."""
    retriever: str
    """An index folder, a URL, a YAML file, or settings in braces."""
    agent: AgentSettings
    """The agent."""
    limits: Limits
    """Limits of every episode."""
    samples: int = Field(default=1, ge=1)
    """Trajectories of each question."""
    seed: int = 0
    """Seed of the run; a trajectory's seed follows from it, the question's id and the sample's number."""


def check_run(
    questions: Path, split: str | None, retriever: str, agent: Callable[[], AgentSettings]
) -> tuple[AgentSettings, Limits]:
    """The agent's settings and the limits that suit it. Raises one error with all mistakes, before anything is
    opened."""
    mistakes = ErrorList()
    chosen = mistakes.collect(agent)
    mistakes.collect(check_source, retriever)
    mistakes.collect(split_at, questions, split)
    # Reads the protocol and its prompt template.
    limits = None if chosen is None else mistakes.collect(limits_for, chosen)
    mistakes.raise_all()
    assert chosen is not None and limits is not None
    return chosen, limits


def run_agent(
    settings: RunSettings,
    out: Path,
    resume: bool,
    tell: Callable[[int, int], None] = lambda *_: None,
    say: Callable[[str], None] = lambda _: None,
    cluster: "Cluster | None" = None,
) -> tuple[Run, list[Question]]:
    """Answer the questions that have no row in the run folder `out` yet, and with `resume` those with a fault. Returns
    the run and all its questions.

    Every part is opened and checked before the folder is written. With a `cluster`, its processes open the agent.
    `tell` is called with (ended, total), `say` with lines on the cost of server calls and on shortfalls of the
    retriever, except on a cluster.
    """
    check_output_folder(out, "run.yaml")
    with lock_folder(out):
        if not resume:
            Run.check_new(out)  # before a model is loaded
        settings = settled_for(settings, settings.agent, out / "run.yaml")
        retriever = open_retriever(settings.retriever)
        questions = load_run_questions(settings)
        check_gold(questions, retriever, settings.retriever, settings.questions)
        agent = open_agent(settings.agent) if cluster is None else None
        protocol = load_protocol(settings.agent.protocol) if agent is None else agent.protocol
        protocol.check_retriever(retriever.name)
        run_settings = {**dump_settings(settings), "index": describe_retriever(settings.retriever, retriever)}
        run = Run.begin(out, run_settings, resume, RunSettings)
        if agent is None:
            assert cluster is not None
            answer_on_cluster(cluster, run, settings, questions, tell)
            return run, questions
        if problem := protocol.template.unread_opening(agent.model.tokenizer):
            say(f"warning: {problem}")
        if former_name := former_protocol(model_path(settings.agent.name), protocol):
            say(f"warning: {settings.agent.name} was trained in the protocol {former_name}, and not in {protocol.name}")
        run_questions(
            run,
            agent,
            retriever,
            questions,
            settings.limits,
            seed=settings.seed,
            samples=settings.samples,
            repeat_faults=True,
            tell=tell,
        )
        if isinstance(agent.model, RemoteModel) and agent.model.inexact:
            say(f"these trajectories are not for training: {agent.model.inexact}")
        lines = (f"{settings.retriever}: {shortfall}" for shortfall in shortfalls_of(retriever))
        for line in filter(None, (spent(agent.model, settings.agent), *lines)):
            say(line)
    return run, questions


@dataclass(frozen=True)
class RunJob:
    """Answers rows of a run, in a process of a cluster."""

    settings: RunSettings
    questions: tuple[Question, ...]

    def open(self) -> Callable[[Sequence[RowKey]], RunRows]:
        settings = self.settings
        agent, retriever = open_agent(settings.agent), open_retriever(settings.retriever)

        def answer(rows: Sequence[RowKey]) -> RunRows:
            with TemporaryDirectory(prefix="coseek-rows-") as scratch:
                run = Run.create(Path(scratch) / "run", {})
                run_questions(
                    run, agent, retriever, self.questions, settings.limits, seed=settings.seed,
                    samples=settings.samples, only=frozenset(rows),
                )  # fmt: skip
                return run.sent()

        return answer


def answer_on_cluster(
    cluster: "Cluster", run: Run, settings: RunSettings, questions: Sequence[Question], tell: Callable[[int, int], None]
) -> None:
    """`run_questions` over a cluster, with `repeat_faults`; sorts the rows by question, then by seed."""
    from coseek.core.cluster import shares_of  # no run on one machine needs it

    drop_partial_line(run.trajectories_path)
    order, done_rows = row_keys_of(questions, settings.seed, settings.samples), run.finished_keys(with_faults=False)
    missing = [row for row in order if row not in done_rows]
    # Only workers open the agent, so one share is sent even if it is empty, to get the agent's identity.
    shares, ended = [*shares_of(missing, cluster)] or [()], len(order) - len(missing)
    tell(ended, len(order))
    results = cluster.map(RunJob(settings, tuple(questions)), shares)
    first = next(results)
    with run.open_for_append(first[1].identities, [ident for ident, _ in order], repeat_faults=True) as file:
        for number, rows in chain([first], results):
            run.append_rows(file, rows)
            tell(ended := ended + len(shares[number]), len(order))


def recorded_settings(settings: JsonObject) -> RunSettings:
    """The settings of `coseek run` in a `run.yaml`. Raises `DataError` or `SettingError` for those of other runs."""
    if "questions" not in settings:
        raise DataError("run.yaml names no questions file")
    return make_settings(RunSettings, {name: settings[name] for name in settings if name in RunSettings.model_fields})


def load_run_questions(settings: RunSettings) -> list[Question]:
    """A draw of `count` of the questions that pass the filter."""
    questions = settings.select.apply(questions_at(Path(settings.questions), settings.split))
    return draw(questions, settings.count, settings.seed, settings.per_set)


def questions_at(path: Path, split: str | None) -> list[Question]:
    """The questions of a file, or of a split of a data-set folder; `split` may be `None` if there is only one."""
    split = split_at(path, split)
    return load_questions(path) if split is None else Dataset(path).questions(split)


def split_at(path: Path, split: str | None) -> str | None:
    """The split to read, without reading it; `None` for a file. Refuses a missing file or split."""
    if not path.is_dir():
        if not path.exists():
            raise DataError(f"there is no file {path}; check the path")
        if split is not None:
            raise SettingError(f"{path} is a file, which has no splits; leave --split out, or name the data-set folder")
        return None
    dataset = Dataset(path)
    if not dataset.splits or split not in (None, *dataset.splits):
        raise SettingError(dataset.lacks(split or ""))
    if split is None and len(dataset.splits) > 1:
        raise SettingError(f"{path} has the splits {', '.join(dataset.splits)}; choose one with --split")
    return split or dataset.splits[0]


def check_gold(
    questions: Iterable[Question], retriever: Retriever, index: str, source: Path | str | None = None
) -> None:
    """Refuse questions whose gold passages are not in the retriever's corpus, if it is known. Compare the passages with
    those of the data set at `source`, a folder or one of its files."""
    corpus = retriever.corpus
    if corpus is None:
        return
    questions = list(questions)
    check_gold_ids(
        questions, corpus, f"the corpus that {index} searches", "use the index of these questions' own corpus"
    )
    gold = {ident for question in questions for ident in question.gold_ids}
    if source is None or not gold:
        return
    own_path = (Path(source) if Path(source).is_dir() else Path(source).parent) / "corpus.jsonl"
    if own_path.is_file() and not (isinstance(corpus, CorpusFile) and corpus.path == own_path.resolve()):
        passages = (passage for passage in parse_rows(own_path, Passage.from_json) if passage.id in gold)
        check_same_passages(passages, corpus, f"gold passages of {source}", index)


def unfinished_run(
    folder: Path, settings: JsonObject, identities: Identities, questions: Sequence[Question]
) -> Run | None:
    """A run in a training's folder, without its faults; `None` if it has a row for every question. A run with other
    identities is replaced by a new one: see `Run.made_with`."""
    run = Run.made_with(folder, settings, identities)
    run.drop_faults()
    return None if run.is_closed and len(run.finished_keys()) == len(questions) else run


# Shared run: each worker answers its share of a run's questions, and the first worker merges the rows.
#
# A row depends on its seed alone, so the stored rows depend neither on the number of workers nor on a kill.

PARTS = "parts"
"""Folder of the other workers' rows in a run or label folder."""


def share_run(
    workers: "Workers",
    folder: Path,
    settings: JsonObject,
    agent: Agent,
    retriever: Retriever,
    questions: Sequence[Question],
    limits: Limits,
    *,
    seed: int,
    samples: int,
    concurrency: int = 256,
    overlap: bool = False,
    repeat_faults: bool = False,
    tell: Callable[[int, int], None],
) -> Run:
    """Answer the questions that have no row in the run in `folder` yet. Returns it with rows by question, then seed.

    The first worker writes into the run, the others into `parts` in it, which the first one merges at the end, or at
    the next start with any number of workers. `repeat_faults` retries runs with a fault. `tell` is called with (ended,
    total) of this worker's share. All workers call this.
    """
    order = row_keys_of(questions, seed, samples)

    def missing_rows() -> list[RowKey]:
        run = Run.begin(folder, settings, resume=True)
        take_over_runs(run, folder / PARTS)
        if repeat_faults:
            run.drop_faults()
        done = run.finished_keys()
        return [row for row in order if row not in done]

    own_rows = frozenset(workers.strided_share(workers.broadcast(missing_rows)))
    resumed_rows = -(-len(order) // workers.world_size) - len(own_rows)  # roughly this worker's rows of earlier starts
    own_run = Run(folder) if workers.is_main else Run.begin(folder / PARTS / str(workers.rank), settings, resume=True)
    run_questions(
        own_run,
        agent,
        retriever,
        questions,
        limits,
        seed=seed,
        samples=samples,
        concurrency=concurrency,
        overlap=overlap,
        only=own_rows,
        tell=lambda ended, total: tell(resumed_rows + ended, resumed_rows + total),
    )
    workers.barrier()
    if workers.is_main:
        take_over_runs(own_run, folder / PARTS)
        own_run.arrange(ident for ident, _ in order)
    workers.barrier()
    return Run(folder)


def take_over_runs(run: Run, parts: Path) -> None:
    """Append the rows of the runs below `parts` to a run, and remove them."""
    for path in sorted(parts.rglob("run.yaml")):
        run.absorb(Run(path.parent))
    shutil.rmtree(parts, ignore_errors=True)
