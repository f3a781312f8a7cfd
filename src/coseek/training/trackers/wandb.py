"""Weights & Biases: offline unless `WANDB_MODE=online`. `WANDB_PROJECT` and `WANDB_ENTITY` apply as usual.

Offline files are in the training folder; `wandb sync --append OUT/trackers/wandb/wandb/offline-run-*` uploads them.
"""

import os
from collections.abc import Mapping

from coseek.training.tracker import TrackedRun

NEEDS = "wandb"


class WandbTracker:
    """One W&B run, resumed by its id. `step` is a logged value and the x-axis of all others.

    W&B's own counter must increase with every row, and two rows may have the same step, so it counts rows.
    """

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        run.store.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "coseek"),
            name=run.name,
            id=run.id,
            resume="allow",
            dir=str(run.store),
            config=run.config,
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",
            # Send only the rows and the recipe: no console output, commit, code or system metrics.
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                save_code=False,
                x_disable_stats=True,
                x_disable_meta=True,
            ),
        )
        self._rows = run.rows_sent
        self._run.define_metric("*", step_metric="step")

    def send(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values}, step=self._rows, commit=True)
        self._rows += 1

    def close(self) -> None:
        self._run.finish()


def open_run(run: TrackedRun) -> WandbTracker:
    return WandbTracker(run)
