"""Folder audit: every run, label folder and training below a folder, each audited as what it is."""

from collections.abc import Iterator
from pathlib import Path

from coseek.data.audit import Audit
from coseek.pipelines.label_audit import audit_labels
from coseek.pipelines.run_audit import audit_stored_run
from coseek.pipelines.training_audit import audit_training

LABELS, RUN = "labels.yaml", "run.yaml"
TRAINED = ("recipe.yaml", "metrics.jsonl", "checkpoints")
"""What only trainings have."""


def audits_of(folder: Path, retriever: str | None = None, model: str | None = None) -> Iterator[tuple[Path, Audit]]:
    """Each folder with its audit. `retriever` and `model` are those of the runs, to search and compute again with.

    Raises `UserError` for a folder in which there is nothing to audit.
    """
    runs = sorted(path.parent for path in folder.rglob(RUN))
    labels = sorted(path.parent for path in folder.rglob(LABELS))
    trained = any(next(folder.rglob(name), None) is not None for name in TRAINED)
    if (folder / RUN).exists() or not (runs or labels or trained):
        yield folder, audit_stored_run(folder, retriever, model)
        return
    if trained and not (folder / LABELS).exists():
        yield folder, audit_training(folder)
    for inner in runs:
        yield inner, audit_stored_run(inner, retriever, model)
    for inner in labels:
        yield inner, audit_labels(inner, retriever)
