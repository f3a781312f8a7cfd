"""Hugging Face `datasets`: runs and labels as data sets in memory (`pip install 'coseek[datasets]'`)."""

from pathlib import Path

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

TEXT = Value("string")
PASSAGE = {"docid": TEXT, "title": TEXT, "text": TEXT}
RUN_ROWS = Features(
    {
        "run": TEXT,
        "question_id": TEXT,
        "question": TEXT,
        "answers": List(TEXT),
        "gold_ids": List(TEXT),
        "seed": Value("int64"),
        "protocol": TEXT,
        "text": TEXT,
        "answer": TEXT,
        "stop": TEXT,
        "fault": TEXT,
        "valid": Value("bool"),
        "em": Value("float64"),
        "f1": Value("float64"),
        "recall": Value("float64"),
        "searches": List(
            {
                "query": TEXT,
                "turn": Value("int64"),
                "hits": List({**PASSAGE, "score": Value("float64")}),
            }
        ),
    }
)
"""Columns of `runs_dataset`. `text` is all that the agent wrote and read; `em`, `f1` and `recall` are null where they
are not defined, as after a fault."""
LABEL_ROWS = Features(
    {"query_id": TEXT, "query": TEXT, "positive_passages": List(PASSAGE), "negative_passages": List(PASSAGE)}
)
"""Columns of `labels_dataset`: Tevatron's."""


def runs_dataset(*runs: str | Path) -> Dataset:
    """A row for each trajectory of run folders. Raises `DataError` for a folder that is no run."""
    folders = [as_path(run, "a run folder") for run in runs]
    return Dataset.from_list(
        [_run_row(folder, one) for folder in folders for one in Run(folder).trajectories()], features=RUN_ROWS
    )


def labels_dataset(*folders: str | Path, view: str | None = None) -> Dataset:
    """A row for each label set of label folders; the query is rendered through `view`, by default that of the method.
    Raises `DataError`."""
    opened = [LabelFolder(as_path(folder, "a label folder")) for folder in folders]
    views = [view or labels.view for labels in opened]
    for one in views:
        find_view(one)
    rows = [tevatron_row(one, each) for labels, each in zip(opened, views, strict=True) for one in labels.sets()]
    return Dataset.from_list(rows, features=LABEL_ROWS)


def _run_row(folder: Path, one: Trajectory) -> JsonObject:
    scores = {} if one.fault else score_trajectory(one)
    return {
        "run": folder.name,
        "question_id": one.question.id,
        "question": one.question.question,
        "answers": [*one.question.answers],
        "gold_ids": [*one.question.gold_ids],
        "seed": one.seed,
        "protocol": one.agent_protocol,
        "text": "".join(segment.text for segment in one.segments),
        "answer": one.answer,
        "stop": str(one.stop),
        "fault": one.fault[1] if one.fault else None,
        "valid": one.valid,
        **{name: scores.get(name) for name in ("em", "f1", "recall")},
        "searches": [_search_row(search) for search in one.searches],
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
