"""MLflow: logs to the server of `MLFLOW_TRACKING_URI`, or to files in the training folder if it is not set.

Read the files with `mlflow ui --backend-store-uri OUT/trackers/mlflow`. `MLFLOW_EXPERIMENT_NAME` names the experiment.
"""

import os
import time
from collections.abc import Iterator, Mapping

from coseek.core.files import Json
from coseek.training.tracker import TrackedRun

NEEDS = "mlflow"
TAG = "coseek.run"
"""Tag that holds the run's id."""
PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "20", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
"""Shorter timeouts: MLflow's own wait 2 minutes for a server, 7 times, and blocks training. Set values are kept."""


class MlflowTracker:
    """One MLflow run."""

    def __init__(self, run: TrackedRun) -> None:
        for name, value in {**PATIENCE, "MLFLOW_ALLOW_FILE_STORE": "true"}.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI", run.store.resolve().as_uri())
        self._client = MlflowClient(tracking_uri=uri)
        self._id = self._found(run) or self._begun(run)

    @property
    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "coseek")
        known = self._client.get_experiment_by_name(name)
        return str(known.experiment_id if known is not None else self._client.create_experiment(name))

    def _found(self, run: TrackedRun) -> str | None:
        found = self._client.search_runs([self._experiment], f"tags.`{TAG}` = '{run.id}'", max_results=1)
        if not found:
            return None
        ident = str(found[0].info.run_id)
        self._client.update_run(ident, status="RUNNING")
        return ident

    def _begun(self, run: TrackedRun) -> str:
        from mlflow.entities import Param

        ident = str(self._client.create_run(self._experiment, tags={TAG: run.id}, run_name=run.name).info.run_id)
        params = [Param(name, value) for name, value in flat(run.config)]
        for start in range(0, len(params), 100):  # a server accepts 100 per request
            self._client.log_batch(ident, params=params[start : start + 100])
        return ident

    def send(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(allowed(name), value, now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._id)


def flat(value: Json, name: str = "") -> Iterator[tuple[str, str]]:
    """Flatten a tree to (dotted name, value as text), without empty or unset values."""
    if isinstance(value, dict):
        for key, inside in value.items():
            yield from flat(inside, f"{name}.{key}" if name else key)
    elif value not in (None, "", []):
        yield allowed(name), str(value)


def allowed(name: str) -> str:
    """Replace the characters that MLflow refuses: `held/recall@5` becomes `held/recall-5`."""
    return "".join(sign if sign.isalnum() or sign in "_-. :/" else "-" for sign in name)


def open_run(run: TrackedRun) -> MlflowTracker:
    return MlflowTracker(run)
