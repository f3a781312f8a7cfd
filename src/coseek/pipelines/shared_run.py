"""Shared run: all workers answer their share of a run's questions, and the first merges: the rows of one worker.

A run depends on its own seed alone, so the stored rows depend neither on the number of workers nor on a kill.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from coseek.agents.drivers import Agent
from coseek.agents.limits import Limits
from coseek.agents.run_questions import rows_of, run_questions
from coseek.core.files import JsonObject
from coseek.data.question import Question
from coseek.data.run import RowKey, Run
from coseek.retrieval.retriever import Retriever
from coseek.training.trainer.workers import Workers

PARTS = "parts"
"""The folder of the other workers' parts, in a run or label folder."""


def share_run(
    workers: Workers,
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
    """Answer the questions that the run in `folder` does not hold yet; returns it with its rows by question, then seed.

    The first worker writes into the run, the others into `parts` in it, which the first takes over at the end, or at
    the next start with any number of workers. `repeat_faults` repeats the runs with a fault. `tell` is called
    with (ended, total) of this worker's share. All workers call this.
    """
    order = rows_of(questions, seed, samples)

    def left() -> list[RowKey]:
        run = Run.begin(folder, settings, resume=True)
        take_over_runs(run, folder / PARTS)
        if repeat_faults:
            run.drop_faults()
        done = run.done()
        return [row for row in order if row not in done]

    share = frozenset(workers.mine(workers.agree(left)))
    over = -(-len(order) // workers.world) - len(share)  # about as many of this worker's rows were there
    own = Run(folder) if workers.first else Run.begin(folder / PARTS / str(workers.rank), settings, resume=True)
    run_questions(
        own,
        agent,
        retriever,
        questions,
        limits,
        seed=seed,
        samples=samples,
        concurrency=concurrency,
        overlap=overlap,
        only=share,
        tell=lambda ended, total: tell(over + ended, over + total),
    )
    workers.wait()
    if workers.first:
        take_over_runs(own, folder / PARTS)
        own.arrange(ident for ident, _ in order)
    workers.wait()
    return Run(folder)


def take_over_runs(run: Run, parts: Path) -> None:
    """Append the rows of the runs below `parts` to a run, and remove them."""
    for path in sorted(parts.rglob("run.yaml")):
        run.absorb(Run(path.parent))
    shutil.rmtree(parts, ignore_errors=True)
