"""Import, collect, export and synthesize data sets, documents and agents' logs."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, cast

from rich import box
from rich.table import Table as RichTable
from typer import Argument, Option

from coseek.agents.factory import limits_for, open_agent, settings_for, settled_for
from coseek.cli.options import CacheFile, DeviceName, at_servers, split_names, takes_servers
from coseek.cli.terminal import (
    AsJson,
    assignments,
    new_app,
    next_index,
    output,
    progress_bar,
    resumable,
    say,
    shell_word,
)
from coseek.core.errors import SettingError, UnknownName, missing_extras
from coseek.core.files import JsonObject
from coseek.core.plugins import is_plugin_path
from coseek.core.settings import make_settings
from coseek.core.text import counted
from coseek.data.imports import ImportSummary, format_names, import_data, parse_shares
from coseek.data.imports._sources import SplitAssignment
from coseek.data.imports.recipe import recipe_names
from coseek.data.pool import make_pool, parse_source
from coseek.data.run import Run
from coseek.graders.factory import open_frozen_model, open_generator
from coseek.graders.generator import GeneratorSettings
from coseek.hardware.device import AUTO
from coseek.lab.parts.synthesis import SynthesisSettings
from coseek.lab.synthesis.gates import Solver, solved
from coseek.lab.synthesis.proposals import QuestionProposer
from coseek.lab.synthesis.synthesis import UNANSWERABLE, SynthesisSummary, synthesize as synthesize_questions
from coseek.labels.importing import LabelImport, import_labels
from coseek.measure.table import Table
from coseek.models.model_folder import model_path
from coseek.models.text_model import TextModelSettings
from coseek.pipelines.collection import RECORD, CollectionSettings, collect as collect_pages
from coseek.pipelines.data_folder import check_data_folder
from coseek.retrieval.factory import check_source, open_retriever
from coseek.retrieval.vectors.encoder import encoder_folder, is_shipped
from coseek.traces.exporting import FORMATS, export_run
from coseek.traces.importing import TraceReport, import_traces, trace_settings

GROUP = "Data and indexes"
app = new_app()
MOST_UNREAD = 20
"""Maximum number of unread documents or records to print."""
MOST_NAMED = 5
"""Maximum number of names to print per kind of skipped questions or judgements."""
TRACES, LABELS, RECIPE = "traces", "labels", "recipe"
"""Formats of agents' logs, which become a run, of tevatron's training rows, which become a label folder, and of data
recipes, which define their splits."""
SOURCES = (
    "The files to read, plain or .gz, or a folder of them; documents, questions and traces take settings. For recipe: "
    f"{', '.join(recipe_names())}, or a YAML file."
)


@app.callback()
def data() -> None:
    """Import public data, documents and agents' logs; collect pages; make questions; export runs."""


@app.command("import", epilog="Example: `coseek data import documents ~/notes --out data/notes`")
def import_(
    format_name: Annotated[
        str, Argument(metavar="FORMAT", help=f"One of {', '.join([*format_names(), TRACES, LABELS])}.")
    ],
    sources: Annotated[list[str], Argument(metavar="SRC", help=SOURCES)],
    out: Annotated[Path, Option(help="The folder to write: a data set, a run of traces, or labels.")],
    split: Annotated[str | None, Option(help="The split of all questions [default: test, or the format's].")] = None,
    shares: Annotated[str | None, Option(help="Split questions by hashes of their ids: train=.8,test=.2.")] = None,
    train: Annotated[str | None, Option(help="Published sets of training questions, such as nq,hotpotqa.")] = None,
    test: Annotated[str | None, Option(help="Published sets of test questions; dev if a set has no test.")] = None,
    dev_share: Annotated[float | None, Option(help="Share of --train that becomes dev [default: 0.01].")] = None,
    as_json: AsJson = False,
) -> None:
    """Import public files or documents as `corpus.jsonl` and `questions.SPLIT.jsonl`.

    A folder with the same corpus keeps its other splits. Writes nothing after an error; unreadable documents are
    skipped and reported. `traces` imports logs of any agent (chat messages with tool calls, ATIF, or JSON by paths such
    as question=input.q) as a run that can be scored, viewed and labelled. `labels` imports training rows in tevatron's
    format as a label folder, with the text of each query unchanged.
    """
    paths = [Path(source) for source in sources if not _is_setting(source)]
    settings = assignments(source for source in sources if _is_setting(source))
    if format_name in (TRACES, LABELS, RECIPE) and any(option is not None for option in (split, shares, train, test)):
        raise SettingError(f"{format_name} takes no --split, --shares, --train and --test; leave them out")
    if dev_share is not None and train is None:
        raise SettingError("--dev-share is a share of the questions of --train; name their data sets, or leave it out")
    if format_name == LABELS:
        labels = import_labels([Path(source) for source in sources], out)
        output(as_json, {"labels": str(out), **labels.to_json()}, label_lines(out, labels))
        return
    if format_name == TRACES:
        traces = import_traces(paths, out, trace_settings(settings))
        output(as_json, {"run": str(out), **traces.to_json()}, trace_lines(out, traces))
        for name, count in () if as_json else traces.unread.items():
            say(f"warning: {count:,} {name}")
        return
    if not is_plugin_path(format_name) and format_name not in (names := [*format_names(), TRACES, LABELS]):
        raise UnknownName("data format", format_name, names)
    assignment = None
    if train is not None or test is not None:
        sets = (tuple(split_names(train or "")), tuple(split_names(test or "")))
        assignment = SplitAssignment(*sets) if dev_share is None else SplitAssignment(*sets, dev_share)
    if format_name == "documents" and isinstance(tokenizer := settings.get("tokenizer"), str):
        settings["tokenizer"] = str(encoder_folder(tokenizer) if is_shipped(tokenizer) else model_path(tokenizer))
    by_hash = parse_shares(shares) if shares else None
    summary = import_data(format_name, paths, out, split=split, shares=by_hash, deal=assignment, settings=settings)
    tree: JsonObject = {"folder": str(out), **summary.counts, **summary.report}
    output(as_json, tree, chain(document_lines(summary.report), import_lines(out, summary)))


@app.command(epilog="Example: `coseek data pool nq=dpr:nq.jsonl.gz 2wiki:wiki/ --out data/pool`")
def pool(
    sources: Annotated[
        list[str],
        Argument(
            metavar="[NAME=]FORMAT:SRC[,SRC]…",
            help="Data sets in the formats of `coseek data import`; NAME is the data set of their questions.",
        ),
    ],
    out: Annotated[Path, Option(help="The data-set folder to write.")],
    shares: Annotated[str, Option(help="Average shares of every set in the splits.")] = "train=.7,dev=.1,test=.2",
    as_json: AsJson = False,
) -> None:
    """Merge data sets into one corpus with splits that share no questions or gold passages.

    Removes duplicate questions. Questions that share a gold passage are in the same split. Of published splits, `train`
    becomes train and dev, and any other becomes test. Reports files that are an evaluation set of their publisher: do
    not evaluate on them what was trained on the pool.
    """
    summary = make_pool([parse_source(source) for source in sources], out, parse_shares(shares))
    splits = [name for name in ("train", "dev", "test") if any(name in counts for counts in summary.questions.values())]
    sizes = [(name, *(f"{counts.get(split, 0):,}" for split in splits)) for name, counts in summary.questions.items()]
    lines = [f"{count:,} {reason}" for reason, count in summary.notes.items()]
    lines += [
        f"{file}: an evaluation set of its publisher ({count:,} questions), of which a part is training here."
        for file, count in summary.evaluation_sets.items()
    ]
    lines += [f"{out}: {counted(summary.passages, 'passage')}.", next_index(out)]
    table = Table(("questions of", *splits), tuple(sizes))
    output(as_json, {"folder": str(out), **summary.to_json()}, [table, *lines])


@app.command(epilog="Example: `coseek data collect data/webshaper --search serper.yaml --out data/webshaper-pages`")
@takes_servers
def collect(
    out: Annotated[Path, Option(help="The data-set folder to write.")],
    words: Annotated[
        list[str],
        Argument(
            metavar="SRC… [NAME=VALUE…]",
            help="Data-set folders (their gold pages, or their corpus), URLs, .txt files with a URL per line, and "
            ".jsonl, .csv or .parquet files of documents (text, url) or of URLs. Settings: results, sub_queries, "
            "at_once, retry, limits.timeout_s …",
        ),
    ],
    search: Annotated[str | None, Option(help="A web retriever's YAML file: also fetch its results.")] = None,
    generator: Annotated[str | None, Option(help="A model (folder, URL, YAML file) that adds searches.")] = None,
    cache: CacheFile = None,
    as_json: AsJson = False,
) -> None:
    """Fetch web pages as a corpus, with the questions of SRC and the gold pages that could be fetched.

    A page is a passage; its id is its address after redirects. Failed pages are counted and listed in
    OUT/collection.json. Pages, search results and replies of the generator are stored in --cache (OUT.cache.sqlite by
    default): the same command resumes; retry=true also retries failed pages.
    """
    settings = make_settings(CollectionSettings, assignments(filter(_is_setting, words)))
    if search is not None:
        check_source(search)
    elif generator is not None:
        raise SettingError("--generator makes searches; name what they search with --search")
    (generator,) = at_servers(generator)
    store = cache or out.with_name(f"{out.name}.cache.sqlite")
    model = None if generator is None else open_frozen_model(generator, store)
    retriever = None if search is None else open_retriever(search)
    sources = [word for word in words if not _is_setting(word)]
    with resumable("the same command"), progress_bar() as bars:
        summary = collect_pages(sources, out, settings, store, retriever, model, bars.report)
    counts = "".join(f", {counted(count, f'{name} question')}" for name, count in summary.questions.items())
    gold = f", {summary.lacking_gold:,} of them without some gold page (meta.uncollected)"
    line = f"{out}: {counted(summary.passages, 'passage')}{counts}{gold if summary.lacking_gold else ''}."
    output(as_json, {"folder": str(out), **summary.to_json()}, [line, next_index(out)])
    if not as_json:
        warn_of_failures("page", summary.failed_pages, "the same command with retry=true fetches these again")
        warn_of_failures("search", summary.failed_searches, "the same command makes these again")


def warn_of_failures(what: str, failed: Mapping[str, str], way_out: str) -> None:
    """Print how many pages or searches failed, the reasons, and the first of them."""
    if failed:
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in Counter(failed.values()).most_common())
        first = ", ".join(list(failed)[:MOST_NAMED]) + (" …" if len(failed) > MOST_NAMED else "")
        say(f"warning: {counted(len(failed), what)} failed ({reasons}): {first}; {RECORD} lists all; {way_out}")


@app.command(epilog="Example: `coseek data synthesize data/notes count=500 --out data/questions`")
@takes_servers
def synthesize(
    words: Annotated[
        list[str],
        Argument(
            metavar="DIR [NAME=VALUE…]",
            help="A data-set folder, and settings: seed, count, hop_mix=[1,2], dev, test, reuse, "
            "depth, edge=[.2,.8], tries, proposals, reply_tokens, negatives, unanswerable.",
        ),
    ],
    out: Annotated[Path, Option(help="The data-set folder to write.")],
    generator: Annotated[str | None, Option(help="A model (folder, URL, YAML file) that proposes questions.")] = None,
    prompt: Annotated[str, Option(help="The prompts of --generator: a YAML file of your own.")] = "proposal",
    limit: Annotated[int | None, Option(min=1, help="Maximum number of passages, and of pairs, to ask about.")] = None,
    reader: Annotated[str | None, Option(help="A model that answers every question; default: --generator.")] = None,
    solver: Annotated[str | None, Option(help="Keep questions that this agent answers only sometimes.")] = None,
    retriever: Annotated[str | None, Option(help="Retriever of --solver: an index, a URL, a YAML file.")] = None,
    device: DeviceName = None,
    cache: CacheFile = None,
    as_json: AsJson = False,
) -> None:
    """Make questions of one and two hops from the passages of DIR, with their gold passages.

    Keeps a question if its answer follows from its gold passages, needs all of them, and follows neither without search
    nor, from two hops on, from one search. Gold passages of DIR's own held-out questions are not trained on.
    OUT/unanswerable is the data set without some of the passages. Without
    --generator, questions consist of phrases of the passages, which must be English text like an encyclopedia's.
    Writes nothing after an error. Replies of models are stored in --cache (OUT.cache.sqlite by default): the same
    command resumes.
    """
    folder = Path(words[0])
    check_data_folder(words[0])
    typed = assignments([*words[1:], *([f"limit={limit}"] if limit else [])])
    settings = make_settings(SynthesisSettings, typed)
    generator, reader, solver = at_servers(generator, reader, solver)
    placement = TextModelSettings(device=device or AUTO)
    reader = reader or generator
    if reader is not None and cache is None:
        cache = out.with_name(f"{out.name}.cache.sqlite")
    model = None if generator is None else open_frozen_model(generator, cache, placement)
    proposer = None if model is None else QuestionProposer.over(model, prompt)
    checker = None if reader is None else open_generator(GeneratorSettings(model=reader), cache, placement)
    agent = None if solver is None else open_solver(solver, retriever, device, settings)
    with progress_bar() as bars:
        summary = synthesize_questions(folder, out, settings, proposer, checker, bars.report, agent)
    output(as_json, {"folder": str(out), **summary.to_json()}, question_lines(out, summary))
    if summary.calls.get("failed"):
        say(f"warning: {summary.calls['failed']:,} requests to the generator failed; the same command sends them again")
    if summary.warning:
        say(f"warning: {summary.warning}")


def open_solver(name: str, retriever: str | None, device: str | None, settings: SynthesisSettings) -> Solver:
    """Open the agent that tries questions, and its retriever."""
    if retriever is None:
        raise SettingError("--solver needs an index to search; name it with --retriever")
    check_source(retriever)
    sampling = settings_for(name, device=device).model_copy(update={"temperature": 1.0})
    agent = open_agent(settled_for(sampling, sampling))
    limits, index = limits_for(sampling), open_retriever(retriever)
    return partial(solved, agent=agent, retriever=index, limits=limits, tries=settings.tries, seed=settings.seed)


@app.command(epilog="Example: `coseek data export runs/mine --format messages --out messages.jsonl`")
def export(
    run: Annotated[Path, Argument(metavar="RUN", help="A folder of `coseek run`, or of imported traces.")],
    format_name: Annotated[str, Option("--format", help=f"One of {', '.join(FORMATS)}.")],
    out: Annotated[Path, Option(help="A .jsonl file for messages, a folder for atif, an .eval file for inspect.")],
    as_json: AsJson = False,
) -> None:
    """Write the trajectories of a run for other systems.

    `messages`: one conversation per line, with tool calls. `atif`: one ATIF document per file, with token ids and
    log-probabilities if the run has them. `inspect`: a log for Inspect's viewer.
    """
    with missing_extras("a log of Inspect"):
        count = export_run(Run(run), format_name, out)
    line = f"{out}: {counted(count, 'trajectory', 'trajectories')} as {format_name}."
    output(as_json, {"out": str(out), "format": format_name, "trajectories": count}, [line])


def import_lines(out: Path, summary: ImportSummary) -> Iterator[str]:
    """Summarise an import, and suggest the next step."""
    counts = ", ".join(counted(count, f"{name} question") for name, count in summary.questions.items())
    notes = "".join(f"; {name.replace('_', ' ')}: {count:,}" for name, count in summary.notes.items())
    corpus = counted(summary.passages, "passage") if summary.passages else "no corpus"
    yield f"{out}: {corpus}{counts and ', '}{counts}{notes}."
    for name, names in summary.named.items():
        more = f" and {len(names) - MOST_NAMED:,} more, listed in source.json" if len(names) > MOST_NAMED else ""
        yield f"{name}: {', '.join(names[:MOST_NAMED])}{more}"
    if summary.passages:
        yield next_index(out)


def first_of(lines: Sequence[str]) -> Iterator[str]:
    """Yield the first lines about what was not read, and the number of further ones."""
    yield from lines[:MOST_UNREAD]
    if len(lines) > MOST_UNREAD:
        yield f"… and {len(lines) - MOST_UNREAD:,} more; source.json lists all"


def trace_lines(out: Path, report: TraceReport) -> Iterator[str]:
    """Summarise an import of logs, and suggest the next step."""
    yield from first_of([f"left out: {record.where}: {record.reason}" for record in report.left_out])
    searches, without_result = report.counts["searches"], report.counts["calls_without_result"]
    kinds = (("failed", "failed_searches"), ("found nothing", "searches_without_hits"))
    of_them = ", ".join(f"{report.counts[key]:,} {kind}" for kind, key in kinds if report.counts.get(key))
    yield (
        f"{out}: {counted(report.imported, 'conversation')} ({report.with_answers:,} with gold answers), "
        f"{counted(searches, 'search')}{of_them and f' ({of_them})'}; {counted(len(report.left_out), 'record')} left "
        f"out, {counted(without_result, 'call')} without a result."
    )
    if unanswered := report.counts.get("without_answer"):
        yield f"Without an answer: {counted(unanswered, 'conversation')} (answer=PATH names its place)"
    if report.search_tools:
        yield f"Taken as searches: {', '.join(map(repr, report.search_tools))} (search_tools=[NAME] names others)"
    if not searches and report.tools:
        tools = ", ".join(map(repr, report.tools))
        yield f"No call is a search. Name the tools that search: search_tools=[NAME], of {tools}"
    run = shell_word(out)
    label = f", or coseek label {run} --retriever INDEX --method opened-next --out LABELS" if searches else ""
    yield f"Next: coseek score {run}, coseek view {run}{label}"


def label_lines(out: Path, summary: LabelImport) -> Iterator[str]:
    """Summarise an import of labels, and suggest the next step."""
    yield (
        f"{out}: {counted(summary.sets, 'label set')} of {counted(len(summary.turns), 'search', 'searches')}; "
        f"{counted(summary.without_positive, 'row')} without a positive, "
        f"{counted(summary.repeated, 'repeated passage')}."
    )
    yield f"Next: coseek train retriever agentir --labels {shell_word(out)} --out runs/retriever view=THEIRS"


def question_lines(out: Path, summary: SynthesisSummary) -> Iterator[str]:
    """Summarise the questions, and what each gate dropped."""
    for split, counts in summary.questions.items():
        by_hops = ", ".join(f"{count:,} of {hops} hop{'s' if hops != '1' else ''}" for hops, count in counts.items())
        yield f"{split}: {sum(counts.values()):,} questions ({by_hops})"
    if summary.calls:
        yield f"generator: {', '.join(f'{count:,} {name}' for name, count in summary.calls.items())}"
    for reason, count in summary.dropped.items():
        yield f"dropped by {reason}: {count:,}"
    if summary.unanswerable:
        yield f"{out / UNANSWERABLE}: {summary.unanswerable:,} of them cannot be answered"
    yield next_index(out)


def document_lines(report: JsonObject) -> Iterator[RichTable | str]:
    """Summarise each kind of document, and why some were not read. Empty if no documents were imported."""
    if not report:
        return
    kinds = cast(dict[str, dict[str, int]], report["kinds"])
    table = RichTable("kind", *next(iter(kinds.values())), box=box.MARKDOWN)
    for kind, counts in kinds.items():
        table.add_row(kind, *(f"{count:,}" if count else "" for count in counts.values()))
    yield table
    guesses = cast(dict[str, str], report.get("guessed_files", {}))
    for encoding, count in cast(dict[str, int], report.get("guessed_encodings", {})).items():
        number = f"{counted(count, 'file')} {'does' if count == 1 else 'do'} not say the encoding"
        names = [path for path, guess in guesses.items() if guess == encoding][:MOST_UNREAD]
        yield f"{number}; read as {encoding}: {', '.join(names)}{', …' * (count > len(names))}"
    unread_rows = cast(list[dict[str, str | list[str]]], report["unread"])
    yield from first_of([f"{row['outcome']}: {row['path']}: {'; '.join(row['reasons'])}" for row in unread_rows])


def _is_setting(source: str) -> bool:
    name, equals, _ = source.partition("=")
    return bool(equals) and all(map(str.isidentifier, name.split("."))) and not Path(source).exists()
