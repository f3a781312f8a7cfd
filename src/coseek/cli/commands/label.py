"""Make training data for retrievers from runs."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

from typer import Argument, Option

from coseek.cli.options import CacheFile, ClusterName, Count, DeviceName, Resume, at_servers, cluster_of, takes_servers
from coseek.cli.terminal import AsJson, assignments, new_app, note, output, progress_bar, resumable, say, shell_word
from coseek.core.files import JsonObject
from coseek.core.plugins import plugin_names
from coseek.data.digests import check_output_file
from coseek.labels.label_folder import LabelFolder
from coseek.labels.label_set import write_tevatron
from coseek.labels.labelling import LabelSummary
from coseek.labels.maker import PACKAGE, view_of
from coseek.pipelines.labelling import label_runs, label_settings
from coseek.retrieval.views import find_view, load_view

GROUP = "Training"
app = new_app()


Scorer: TypeAlias = Annotated[
    str | None,
    Option(help="The scorer of passages: a model, `oracle` or a laptop world's folder, or `gold`, by gold passages."),
]


@app.command(epilog="Example: `coseek label runs/train --method gold --out labels/train`")
@takes_servers
def label(
    words: Annotated[
        list[str],
        Argument(
            metavar="RUN… [NAME=VALUE…]",
            help="Folders that `coseek run` made, and settings of the method, such as negatives=7; the agent's budgets "
            "are settings, too: limits.max_turns=6.",
        ),
    ],
    method: Annotated[str, Option(help=f"One of: {', '.join(plugin_names(PACKAGE))}.")],
    out: Annotated[Path, Option(help="The label folder to write.")],
    retriever: Annotated[str | None, Option(help="The retriever of the candidates; default: the run's.")] = None,
    agent: Annotated[str | None, Option(help="The agent that continues from a passage; default: the run's.")] = None,
    temperature: Annotated[float, Option(min=0.0, help="Sampling temperature of the agent; 0 is greedy.")] = 0.0,
    scorer: Scorer = None,
    likelihood: Annotated[str | None, Option(help="The model of answer likelihoods: folder, URL or YAML file.")] = None,
    device: DeviceName = None,
    count: Count = None,
    resume: Resume = False,
    cache: CacheFile = None,
    cluster: ClusterName = None,
    tevatron: Annotated[Path | None, Option(help="A .jsonl file for the labels as rows of tevatron.")] = None,
    view: Annotated[str | None, Option(help="The query view of --tevatron; default: the method's own.")] = None,
    as_json: AsJson = False,
) -> int:
    """Label every search of runs: a positive passage, negatives, and the scores that chose them.

    The label folder contains `labels.yaml` (all settings, identities, versions), `labels.jsonl`, `dropped.jsonl` (turns
    without a label, and why) and `scores/`, which grows during the work. Ctrl-C or a crash loses only unfinished work;
    `--resume` continues to the same labels. Exits with 1 if faults left every turn without a label.
    """
    check_output_file(tevatron, ".jsonl")
    find_view(view := load_view(view or view_of(method)))
    runs, typed = [word for word in words if is_run(word)], assignments(word for word in words if not is_run(word))
    scorer, likelihood, agent = at_servers(scorer, likelihood, agent)
    fields: JsonObject = {"method": method, "count": count, "scorer": scorer, "likelihood": likelihood}
    chosen, method_settings = label_settings(runs, typed, fields, retriever, agent, temperature, device)
    with resumable("the same command with --resume"), cluster_of(cluster) as nodes, progress_bar() as bars:
        summary = label_runs(chosen, method_settings, out, resume, cache, bars.report, nodes)
    if tevatron is not None:
        write_tevatron(tevatron, LabelFolder(out).sets(), view)
        note(f"{tevatron}: queries by the view {view}")
    output(as_json, {"labels": str(out), **summary.to_json()}, report(out, summary))
    if summary.left and not as_json:
        reason = f" ({summary.reason})" if summary.reason else ""
        say(f"faults left {summary.left:,} turns undone{reason}; the same command with --resume tries them again")
    if not summary.sets and not summary.left and not as_json:
        say(f"no search has a label. {way_out(summary.dropped)}")
    return 1 if summary.left and not (summary.labelled or summary.dropped) else 0


def is_run(word: str) -> bool:
    """Whether a word names a run. A word that is neither a folder nor a setting counts as a run, and is refused
    later."""
    return "=" not in word or Path(word).is_dir()


def report(out: Path, done: LabelSummary) -> Iterator[str]:
    """Summarise the labels, and suggest the next step."""
    yield f"{out}: {done.labelled:,} of {done.turns:,} search turns have a label, in {done.sets:,} label sets"
    if done.dropped:
        yield f"without a label: {listed(done.dropped)}"
    if done.counts:
        yield f"in this start: {listed(done.counts)}, {done.seconds:.0f} s"
    if done.sets:
        yield f"Next: coseek train retriever two-cores --labels {shell_word(out)} --out runs/retriever"


def way_out(dropped: Mapping[str, int]) -> str:
    """Say what to do about the most frequent reason."""
    reason = next(iter(dropped), "")
    return {
        "no-gold": "The questions have no gold passages: take --method answer-in-passage, which needs gold answers, or "
        "--method opened-next, which needs neither.",
        "no-answer": "The questions have no gold answers but yes, no or numbers: take --method opened-next.",
        "not-found": "The retriever finds none of the positives: choose another with --retriever, or more candidates=…",
    }.get(reason, "Nothing can be trained on this folder; docs/reference/labels.md explains the reasons.")


def listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items())
