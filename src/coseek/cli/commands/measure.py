"""Measure what retrievers find for the questions of a set."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, cast

from typer import Argument, Option

from coseek.cli.options import Count, Select, Split, question_filter, split_names
from coseek.cli.terminal import AsJson, new_app, output, progress_bar, say
from coseek.core.errors import DataError, UserError
from coseek.core.files import Json, JsonObject, check_not_file, write_jsonl
from coseek.core.lock import lock_if_named
from coseek.core.text import counted
from coseek.data.dataset import Dataset, draw
from coseek.data.digests import check_output_file
from coseek.data.passage import Corpus
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.data.trec import Qrels, Ranked, read_qrels, read_run, trec_id, write_qrels, write_run
from coseek.measure.question_groups import GROUPS, check_groups
from coseek.measure.rankings import FAMILIES, Metric, metrics_within
from coseek.measure.score import ScoredRun, Scores
from coseek.measure.searched import (
    BY_ANSWER,
    BY_GOLD,
    FAULT,
    Answered,
    RetrievalMeasure,
    by_owner,
    default_metrics,
    of_run_file,
    search_questions,
)
from coseek.measure.table import Table, score_tables, scores_json
from coseek.pipelines.agent_run import check_gold, questions_at
from coseek.pipelines.labelling import LoggedSearches, check_same_corpus, logged_searches
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.retriever import Retriever, shortfalls_of

GROUP = "Results"
app = new_app()

METRICS = (
    f"Comma-separated, of: {', '.join(FAMILIES)}, each with or without @k. [default: {','.join(BY_GOLD)}; "
    f"{','.join(BY_ANSWER)} where no question has gold passages]"
)
QRELS = "qrels.txt"
_ENDING = re.compile(r"\.(ya?ml|run|trec|txt)$")
_ODD = re.compile(r"[^A-Za-z0-9.-]+")


Source: TypeAlias = Annotated[
    Path,
    Argument(
        metavar="QUESTIONS",
        help="A data-set folder or a questions file; a run or a label folder, whose searches are repeated.",
    ),
]
"""Type of the argument that names what is searched for."""
Retrievers: TypeAlias = Annotated[
    list[str],
    Argument(
        metavar="RETRIEVER", help="An index folder, a URL, a YAML file, or a TREC run file; several are compared."
    ),
]
"""Type of the argument that names the retrievers."""


@dataclass(frozen=True)
class Plan:
    """The command's arguments, checked."""

    questions: list[Question]
    measuring: RetrievalMeasure
    depth: int
    missing: Literal["zero", "leave-out"]
    corpus: Corpus | None
    """Passages for TREC run files, if a metric reads texts."""
    keep: bool
    """Whether to keep rankings, to write them as run files."""
    logged: LoggedSearches | None = None
    """The searches to repeat, one per element of `questions`; `None` if the questions themselves are searched."""


@dataclass(frozen=True)
class Measured:
    """The results of one retriever."""

    run: ScoredRun
    faults: dict[str, str]
    """Question id → why its search failed."""
    ranked: dict[str, Ranked]
    cost: JsonObject
    """`search_ms`, the mean time per search without the first batch, which opens the index, and `index_bytes`. Unknown
    values are missing."""


@app.command(epilog="Example: `coseek measure data/notes data/notes.index --split test`")
def measure(
    source: Source,
    retrievers: Retrievers,
    split: Split = None,
    count: Count = None,
    select: Select = None,
    depth: Annotated[int, Option(min=1, help="Passages per search; no metric may have a deeper cut-off.")] = 100,
    metrics: Annotated[str | None, Option(help=METRICS)] = None,
    by: Annotated[str, Option(help=f"How to group questions; comma-separated, of: {', '.join(GROUPS)}.")] = "hops",
    qrels: Annotated[Path | None, Option(help="TREC qrels or BEIR's .tsv, in place of the questions' own.")] = None,
    missing: Annotated[Literal["zero", "leave-out"], Option(help="Questions that a TREC run file lacks.")] = "zero",
    trec_out: Annotated[Path | None, Option(help="A folder for qrels.txt and a TREC run file per retriever.")] = None,
    per_question: Annotated[Path | None, Option(help="A .jsonl file for the metrics of each question.")] = None,
    seed: Annotated[int, Option(help="Seed of the bootstrap, and of --count.")] = 0,
    as_json: AsJson = False,
) -> int:
    """Measure what retrievers find for questions: means with 95 % intervals, compared in pairs.

    Each RETRIEVER is compared with the first. Relevant passages are a question's gold passages, with the grades of its
    data set or of --qrels, if any. Failed searches are counted and excluded from means. Exits with 1 if every search of
    a retriever failed.

    With a run or a label folder, the agent's searches are repeated, each through the retriever's query view. Relevant
    passages are the gold passages that no earlier turn had found, or the label's positives; a question's value is the
    mean over its searches.
    """
    if len(set(retrievers)) < len(retrievers):
        raise UserError("the same retriever is named twice; name each once")
    check_output_file(per_question, ".jsonl")
    groups = split_names(by)
    check_groups(groups)  # before searching, which may take an hour
    owners, logged = chosen_questions(source, split, select, count, seed)
    questions = owners if logged is None else [search.question for search in logged.searches]
    gold_grades = judgements(qrels, questions)
    chosen = metrics_within(depth, split_names(metrics) if metrics else default_metrics(questions, gold_grades))
    needs_texts = reads_texts(chosen) and any(map(is_run_file, retrievers)) and (source / "corpus.jsonl").is_file()
    corpus = Dataset(source).corpus if needs_texts else None
    plan = Plan(questions, RetrievalMeasure(chosen, gold_grades), depth, missing, corpus, trec_out is not None, logged)
    check_trec_folder(trec_out, plan, tags(retrievers))
    opened = {name: open_source(name, plan, source) for name in retrievers}
    with lock_if_named(trec_out):
        results = {name: measure_source(name, retriever, plan) for name, retriever in opened.items()}
        runs = [result.run for result in results.values()]
        if logged is not None:
            runs = [by_owner(run, {search.question.id: search.owner for search in logged.searches}) for run in runs]
        scores = plan.measuring.compare(runs, owners, groups, seed)
        if trec_out:
            write_trec(trec_out, results, plan)
    if per_question:
        write_jsonl(per_question, (row for result in results.values() for row in question_rows(result)))
    main, *others = score_tables(scores, [metric.name for metric in chosen])
    costs = filter(None, map(cost_line, results.values()))
    main = Table(("retriever", *main.columns[1:]), main.rows, (*notes(scores, plan), *costs))
    output(as_json, measured_json(scores, plan, results), [main, *others])
    return 1 if any(result.run.stops.keys() == {FAULT} for result in results.values()) else 0


def chosen_questions(
    source: Path, split: str | None, select: Sequence[str] | None, count: int | None, seed: int
) -> tuple[list[Question], LoggedSearches | None]:
    """The chosen questions, and their searches in a run or a label folder."""
    logged = logged_searches(source, split)
    owners = questions_at(source, split) if logged is None else logged.owners
    chosen = draw(question_filter(select).apply(owners), count, seed)
    return chosen, logged and logged.of(chosen)


def judgements(path: Path | None, questions: Sequence[Question]) -> Qrels | None:
    """Read qrels. Raises `DataError` if they judge none of these questions."""
    if path is None:
        return None
    rows = read_qrels(path).items()
    qrels = {trec_id(question): {trec_id(ident): grade for ident, grade in grades.items()} for question, grades in rows}
    if not any(trec_id(question.id) in qrels for question in questions):
        raise DataError(f"{path} judges none of these questions; give the qrels of the same data set and split")
    return qrels


def reads_texts(metrics: Sequence[Metric]) -> bool:
    return any(metric.name.startswith("answer_hit") for metric in metrics)


def is_run_file(name: str) -> bool:
    return Path(name).is_file() and Path(name).suffix not in (".yaml", ".yml")


def open_source(name: str, plan: Plan, source: Path) -> Retriever | dict[str, Ranked]:
    """Open a retriever and check it against the questions of `source`, or read the rankings of a TREC run file."""
    path = Path(name)
    if is_run_file(name):
        if plan.corpus is None and reads_texts(plan.measuring.metrics):
            raise UserError(f"answer_hit reads passages, and {name} holds ids alone; name the data-set folder")
        return read_run(path)
    if not path.exists() and "://" not in name and not name.lstrip().startswith("{"):
        raise DataError(f"there is no index, YAML file or TREC run file {name}; check the path")
    retriever = open_retriever(name)
    if plan.measuring.qrels is None:
        check_gold(plan.questions, retriever, name, source if plan.logged is None else None)
    if (source / "run.yaml").is_file():
        check_same_corpus([Run(source)], retriever, name)
    return retriever


def measure_source(name: str, source: Retriever | dict[str, Ranked], plan: Plan) -> Measured:
    """Search for every question, and measure the hits."""
    seconds: list[tuple[float, int]] = []
    if isinstance(source, dict):
        answers = of_run_file(source, plan.questions, plan.corpus, plan.missing == "zero", plan.depth)
    else:
        answers = searched(name, source, plan, seconds)
    faults: dict[str, str] = {}
    ranked: dict[str, Ranked] = {}

    def noted() -> Iterator[Answered]:
        for question, result in answers:
            if result.fault is not None:
                faults[question.id] = result.fault
            elif plan.keep:
                ranked[question.id] = result.ranked
            yield question, result

    run = plan.measuring.measure(name, noted())
    measured = Measured(run, faults, ranked, cost_of(Path(name), seconds))
    if faults:
        ident, fault = next(iter(faults.items()))
        say(f"{name}: {len(faults)} of {len(plan.questions)} searches failed, the first for {ident!r}: {fault}")
    for shortfall in [] if isinstance(source, dict) else shortfalls_of(source):
        say(f"{name}: {shortfall}")
    return measured


def cost_of(folder: Path, seconds: Sequence[tuple[float, int]]) -> JsonObject:
    """Compute `Measured.cost` from the time and the number of searches of every batch."""
    cost: JsonObject = {}
    if warm := seconds[1:]:
        cost["search_ms"] = 1000 * sum(time_s for time_s, _ in warm) / sum(searches for _, searches in warm)
    if folder.is_dir():
        cost["index_bytes"] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return cost


def searched(name: str, retriever: Retriever, plan: Plan, seconds: list[tuple[float, int]]) -> Iterator[Answered]:
    """Yield the answered questions. Appends the time and the number of searches of every batch to `seconds`."""
    done, total = 0, len(plan.questions)
    queries = {search.question.id: search.query for search in plan.logged.searches} if plan.logged else None
    with progress_bar() as bars:
        batches = search_questions(retriever, plan.questions, plan.depth, queries=queries)
        while True:
            started_s = time.perf_counter()
            if (batch := next(batches, None)) is None:
                return
            if all(result.fault is None for _, result in batch):
                seconds.append((time.perf_counter() - started_s, len(batch)))
            bars.report(name, done, total)
            yield from batch
            done += len(batch)
            bars.report(name, done, total)


def measured_json(scores: Scores, plan: Plan, measured: Mapping[str, Measured]) -> JsonObject:
    """The results, for programs."""
    costs: JsonObject = {name: result.cost for name, result in measured.items()}
    unjudged = plan.measuring.unjudged(plan.questions)
    return {**scores_json(scores), "unjudged": unjudged, "depth": plan.depth, "costs": costs}


def cost_line(result: Measured) -> str:
    """Describe what a search and the index of a retriever cost; empty if both are unknown."""
    ms, size = (cast(float | None, result.cost.get(name)) for name in ("search_ms", "index_bytes"))
    parts = ("" if ms is None else f"{ms:.3g} ms a search", "" if size is None else f"{size / 1e6:.3g} MB of index")
    return f"{result.run.name}: {', '.join(filter(None, parts))}." if any(parts) else ""


def notes(scores: Scores, plan: Plan) -> Iterator[str]:
    """Lines below the table: how many questions the means exclude, and why."""
    yield "Means with 95 % bootstrap intervals over questions."
    if plan.logged:
        searches = counted(len(plan.questions), "search")
        yield f"{searches} of {counted(len(plan.logged.owners), 'question')}. {plan.logged.rule}"
    unjudged = plan.measuring.unjudged(plan.questions)
    if unjudged:
        unit = "searches" if plan.logged else "questions"
        yield f"{unjudged} of {len(plan.questions)} {unit} have no relevant passage; only answer_hit counts them."
        yield from scores.unmatched
    from_corpus = sum(question.own_passage is not None for question in plan.questions)
    if from_corpus:
        yield f"{from_corpus} of {len(plan.questions)} questions are passages of their corpus; their own is no hit."
    for run, stops in scores.stops.items():
        if stops.get(FAULT):
            yield f"{run}: {stops[FAULT]} searches failed; all means leave them out."
        lacking = len(plan.questions) - sum(stops.values())
        if lacking:
            yield f"{run}: {lacking} questions are not in the run file; all means leave them out."


def check_trec_folder(folder: Path | None, plan: Plan, names: Sequence[str]) -> None:
    """Raise `DataError` for a folder with grades other than those of this measurement, or with a run file of the same
    name and no grades."""
    if folder is None:
        return
    check_not_file(folder)
    path, gold = folder / QRELS, {trec_id(ident): grades for ident, grades in gold_of(plan).items() if grades}
    if not path.exists():
        for name in names:
            if (folder / f"{name}.run").exists():
                raise DataError(f"{folder} holds {name}.run without {QRELS}; choose another folder for --trec-out")
    elif (read_qrels(path) if path.stat().st_size else {}) != gold:
        raise DataError(f"{path} holds other grades than are measured with; choose another folder for --trec-out")


def gold_of(plan: Plan) -> Qrels:
    return {question.id: plan.measuring.gold(question) for question in plan.questions}


def write_trec(folder: Path, measured: dict[str, Measured], plan: Plan) -> None:
    """Write `qrels.txt`, and a run file per retriever. Failed and empty searches have no line."""
    write_qrels(folder / QRELS, gold_of(plan))
    for tag, result in zip(tags(list(measured)), measured.values(), strict=True):
        write_run(folder / f"{tag}.run", result.ranked, tag)


def tags(names: Sequence[str]) -> list[str]:
    """A short, distinct tag per retriever, safe as a file name and in TREC run files."""
    distinct: list[str] = []
    for name in names:
        last_part = _ENDING.sub("", name.rstrip("/").rpartition("/")[2])
        base = _ODD.sub("-", last_part).strip(".-") or "retriever"
        tag, number = base, 2
        while tag in distinct:
            tag, number = f"{base}-{number}", number + 1
        distinct.append(tag)
    return distinct


def question_rows(measured: Measured) -> Iterator[JsonObject]:
    """One row per question: its metrics, or the fault."""
    for ident, scores in measured.run.questions.items():
        numbers: dict[str, Json] = {**scores.metrics}
        row: JsonObject = {"retriever": measured.run.name, "question": ident, "metrics": numbers}
        yield {**row, "fault": measured.faults[ident]} if ident in measured.faults else row
