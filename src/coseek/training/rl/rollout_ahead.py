"""Rollout ahead: the rollouts of later steps, sampled by servers while the policy trains.

At the beginning of step t, whose weights the servers have, the runs of the steps up to t + k are asked for, in a thread
that samples one step after the other. So the tokens of step t are at most k steps old (k = `rollout.max_steps_behind`).
New weights reach a rollout under way: its later turns are of the later version, and every turn says which.

Nothing of it is saved. A run that is resumed asks again for the rollouts that it had not trained on, with the same
questions and seeds, from the weights of its checkpoint. A turn depends on its row's seed and ids and on the version of
the weights alone, but which version samples it depends on time.
"""

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.training.rl.backend import TrainingBackend
from coseek.training.rl.episodes import EpisodeBatch, RolloutFunction
from coseek.training.rl.rollout_servers import ServedBackend
from coseek.training.rl.sampling import rollout_seeds
from coseek.training.rl.settings import RlSettings
from coseek.training.trainer.data_order import QuestionStream


class RolloutAhead:
    """A `RolloutFunction` that returns what was asked for in advance. Without servers, or with k = 0, it samples when
    it is called."""

    def __init__(
        self, rollout: RolloutFunction, stream: QuestionStream, settings: RlSettings, backend: TrainingBackend
    ) -> None:
        """Raises `SettingError` if the settings need a step's rewards before the next one is sampled."""
        self._rollout, self._stream, self._settings, self._backend = rollout, stream, settings, backend
        self._steps = 0
        if isinstance(backend, ServedBackend):
            backend.settings.check(settings)
            self._steps = backend.settings.max_steps_behind
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="coseek-rollout") if self._steps else None
        self._asked: deque[tuple[list[int], Future[list[Trajectory]]]] = deque()
        """Seeds and runs of this worker's rows, for each step that was asked for."""
        self._next = 0
        """The next step to ask for."""
        self._step_of: dict[int, int] = {}
        """Version of the weights → the last step that began with it."""
        self._ready_s = time.perf_counter()
        self._waited = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Stop the rollout under way, if the training failed."""
        if self._thread is not None:
            if kind is not None and isinstance(self._backend, ServedBackend):
                self._backend.stop()
            self._thread.shutdown(cancel_futures=True)

    def ask(self, step: int, position: int) -> None:
        """Ask for the runs of all steps up to `step` + k; the servers have the weights of `step`, whose questions begin
        at `position`."""
        if self._thread is None:
            return
        self._step_of[self._backend.policy.updates_done] = step
        count, workers = self._settings.questions_per_step, self._backend.workers
        for later in range(max(step, self._next), min(step + self._steps + 1, self._settings.steps)):
            questions = self._stream.take(position + (later - step) * count, count)
            rows = workers.stretch([question for question in questions for _ in range(self._settings.group_size)])
            seeds = list(workers.stretch(rollout_seeds(later, 0, count, self._settings)))
            if rows:
                self._asked.append((seeds, self._thread.submit(self._rollout, rows, seeds)))
            self._next = later + 1

    def __call__(self, questions: Sequence[Question], seeds: Sequence[int]) -> list[Trajectory]:
        if self._thread is None:
            return self._rollout(questions, seeds)
        began = time.perf_counter()
        asked, runs = self._asked.popleft()
        if asked != list(seeds):
            raise ValueError("the runs that were asked for in advance are those of another step")
        found = runs.result()
        ready = time.perf_counter()
        self._waited, self._ready_s = (ready - began) / (ready - self._ready_s), ready
        return found

    def describe(self, step: int, episodes: EpisodeBatch) -> dict[str, float]:
        """Return the mean and the maximum of the steps by which the weights that sampled a token were behind those of
        `step`, and the share of time that the training waited for runs; empty if nothing is sampled ahead."""
        if self._thread is None:
            return {}
        behind = [
            (step - self._step_of[segment.version], len(segment.ids))
            for episode in episodes.scored
            for segment in episode.trajectory.segments
            if segment.version is not None and segment.ids
        ]
        described = {"waited": self._waited}
        if behind:
            tokens = sum(count for _, count in behind)
            described["steps_behind"] = sum(steps * count for steps, count in behind) / tokens
            described["steps_behind_max"] = max(steps for steps, _ in behind)
        return described
