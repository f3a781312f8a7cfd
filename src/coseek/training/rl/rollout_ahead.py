"""Rollout ahead: the rollouts of later steps, sampled by servers while the policy trains.

At the beginning of step t, whose weights the servers have, the rollouts of the steps up to t + k are started, in a
thread that samples one step after the other. So the tokens of step t are at most k steps old (k =
`rollout.max_steps_behind`). New weights also apply to rollouts in progress: their later turns carry the new version.

Prefetched rollouts are not saved. A resumed training samples them again, with the same questions and seeds, from the
weights of its checkpoint. A turn depends only on its row's seed and ids and on the version of the weights, but which
version samples it depends on time.
"""

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.training.learner.data_order import QuestionStream
from coseek.training.rl.backend import TrainingBackend
from coseek.training.rl.rollout import RolloutFunction, TrajectoryBatch, rollout_seeds
from coseek.training.rl.rollout_servers import ServedBackend
from coseek.training.rl.settings import RlSettings


class RolloutAhead:
    """A `RolloutFunction` that returns prefetched trajectories. Without servers, or with k = 0, it samples when it is
    called."""

    def __init__(
        self, rollout: RolloutFunction, stream: QuestionStream, settings: RlSettings, backend: TrainingBackend
    ) -> None:
        """Raises `SettingError` if the settings need a step's rewards before the next one is sampled."""
        self._rollout, self._stream, self._settings, self._backend = rollout, stream, settings, backend
        self._max_steps_behind = 0
        if isinstance(backend, ServedBackend):
            backend.settings.check(settings)
            self._max_steps_behind = backend.settings.max_steps_behind
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="coseek-rollout") if self._max_steps_behind else None
        self._pending: deque[Future[list[Trajectory]]] = deque()
        """Trajectories of this worker's share of each prefetched step."""
        self._next_step = 0
        """The next step to prefetch."""
        self._step_of_version: dict[int, int] = {}
        """Version of the weights → the last step that began with it."""
        self._ready_s = time.perf_counter()
        self._waited_share = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Stop the rollout in progress, if the training failed."""
        if self._thread is not None:
            if kind is not None and isinstance(self._backend, ServedBackend):
                self._backend.stop()
            self._thread.shutdown(cancel_futures=True)

    def prefetch(self, step: int, position: int) -> None:
        """Start the rollouts of all steps up to `step` + k; the servers have the weights of `step`, whose questions
        begin at `position`."""
        if self._thread is None:
            return
        settings, workers = self._settings, self._backend.workers
        self._step_of_version[self._backend.policy.updates_done] = step
        count = settings.questions_per_step
        for later_step in range(max(step, self._next_step), min(step + self._max_steps_behind + 1, settings.steps)):
            taken = self._stream.take(position + (later_step - step) * count, count)
            repeated = [question for question in taken for _ in range(settings.group_size)]
            questions = workers.contiguous_share(repeated, settings.rows_together)
            seeds = workers.contiguous_share(rollout_seeds(later_step, 0, count, settings), settings.rows_together)
            if questions:
                self._pending.append(self._thread.submit(self._rollout, questions, seeds))
            self._next_step = later_step + 1

    def __call__(self, questions: Sequence[Question], seeds: Sequence[int]) -> list[Trajectory]:
        if self._thread is None:
            return self._rollout(questions, seeds)
        called_s = time.perf_counter()
        trajectories = self._pending.popleft().result()
        ready_s = time.perf_counter()
        self._waited_share = (ready_s - called_s) / (ready_s - self._ready_s)
        self._ready_s = ready_s
        return trajectories

    def metrics(self, step: int, episodes: TrajectoryBatch) -> dict[str, float]:
        """Return the mean and the maximum of the steps by which the weights that sampled a token were behind those of
        `step`, and the share of time that the training waited for rollouts; empty if nothing is sampled ahead."""
        if self._thread is None:
            return {}
        lags = [
            (step - self._step_of_version[segment.version], len(segment.ids))
            for episode in episodes.scored
            for segment in episode.trajectory.segments
            if segment.version is not None and segment.ids
        ]
        metrics = {"waited": self._waited_share}
        if lags:
            tokens = sum(count for _, count in lags)
            metrics["steps_behind"] = sum(steps * count for steps, count in lags) / tokens
            metrics["steps_behind_max"] = max(steps for steps, _ in lags)
        return metrics
