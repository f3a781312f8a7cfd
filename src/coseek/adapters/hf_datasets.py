"""Hugging Face `datasets`: runs and labels as data sets in memory (`pip install 'coseek[datasets]'`)."""

from collections.abc import Sequence
from pathlib import Path

from coseek.agents.protocol import stored_protocol
from coseek.core.errors import missing_extras
from coseek.core.files import JsonObject, as_path
from coseek.data.run import Run
from coseek.data.trajectory import Search, Trajectory
from coseek.labels.label_folder import LabelFolder
from coseek.labels.label_set import tevatron_row
from coseek.measure.score import score_trajectory
from coseek.retrieval.views import find_view

with missing_extras("a view for `datasets`"):
    from datasets import Dataset, Features, List, Value

TEXT, INTEGER, NUMBER = Value("string"), Value("int64"), Value("float64")
PASSAGE = {"docid": TEXT, "title": TEXT, "text": TEXT}
SCORES = ("em", "f1", "recall")
RUN_ROWS = Features(
    {
        **dict.fromkeys(("run", "question_id", "question"), TEXT),
        **dict.fromkeys(("answers", "gold_ids"), List(TEXT)),
        "seed": INTEGER,
        **dict.fromkeys(("protocol", "text", "answer", "stop", "fault"), TEXT),
        "valid": Value("bool"),
        **dict.fromkeys(SCORES, NUMBER),
        "searches": List({"query": TEXT, "turn": INTEGER, "hits": List({**PASSAGE, "score": NUMBER})}),
    }
)
"""Columns of `runs_dataset`. `text` is all that the agent wrote and read. Undefined scores are null, as after a
fault."""
LABEL_ROWS = Features(
    {"query_id": TEXT, "query": TEXT, "positive_passages": List(PASSAGE), "negative_passages": List(PASSAGE)}
)
"""Columns of `labels_dataset`: Tevatron's."""


def runs_dataset(*runs: str | Path) -> Dataset:
    """Make a data set of one row per trajectory of run folders. Raises `DataError` for a folder that is not a run."""
    rows: list[JsonObject] = []
    for run in [Run(as_path(folder, "a run folder")) for folder in runs]:
        stored_protocol(run)
        rows += [_run_row(run.folder, trajectory) for trajectory in run.trajectories()]
    return _dataset(rows, RUN_ROWS)


def labels_dataset(*folders: str | Path, view: str | None = None) -> Dataset:
    """Make a data set of one row per label set of label folders. Queries are rendered through `view`, by default that
    of the method. Raises `DataError`."""
    sources = [LabelFolder(as_path(folder, "a label folder")) for folder in folders]
    views = [view or labels.view for labels in sources]
    for name in views:
        find_view(name)
    rows = [tevatron_row(item, name) for labels, name in zip(sources, views, strict=True) for item in labels.sets()]
    return _dataset(rows, LABEL_ROWS)


def _dataset(rows: Sequence[JsonObject], columns: Features) -> Dataset:
    """A data set of rows; `Dataset.from_list` takes no empty list."""
    return Dataset.from_dict({name: [row[name] for row in rows] for name in columns}, features=columns)


def _run_row(folder: Path, trajectory: Trajectory) -> JsonObject:
    question, fault = trajectory.question, trajectory.fault
    scores = {} if fault else score_trajectory(trajectory)
    return {
        "run": folder.name,
        "question_id": question.id,
        "question": question.question,
        "answers": [*question.answers],
        "gold_ids": [*question.gold_ids],
        "seed": trajectory.seed,
        "protocol": trajectory.agent_protocol,
        "text": "".join(segment.text for segment in trajectory.segments),
        "answer": trajectory.answer,
        "stop": str(trajectory.stop),
        "fault": fault[1] if fault else None,
        "valid": trajectory.valid,
        **{name: scores.get(name) for name in SCORES},
        "searches": [_search_row(search) for search in trajectory.searches],
    }


def _search_row(search: Search) -> JsonObject:
    return {
        "query": search.query,
        "turn": search.turn,
        "hits": [
            {"docid": hit.passage.id, "title": hit.passage.title, "text": hit.passage.text, "score": hit.score}
            for hit in search.hits
        ],
    }
