"""Loop: supervised fine-tuning on demonstrations, the warm start of reinforcement learning.

Demonstrations are ordinary trajectories: training uses their token ids, whoever wrote them.
"""

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from coseek.core.progress import Evaluate, NoProgress, Progress, waiting_stops
from coseek.training.learner.batch import Batch, make_batch, micro_batches
from coseek.training.learner.checkpoint import TrainingState
from coseek.training.learner.data_order import derive_seed
from coseek.training.learner.learner import Loss
from coseek.training.learner.policy import Policy
from coseek.training.sft.settings import Draw, SftSettings

# Copy task: random sequences written twice. To predict the second copy, a model must copy the first.
#
# A small model learns to copy in a few hundred short steps of this task; from demonstrations alone it may need
# thousands. At first every sequence repeats at one distance, which a network learns within seconds, by position. Then
# lengths and distances vary, gradually and in every other step, until only the content shows where to copy from. With
# variation from the start, or without the gradual increase, the task is not learnt in that time
# (bench/results/log.md).

LENGTH_RANGE = (6, 40)
"""Shortest and longest sequence at full variation, in tokens."""
MAX_GAP = 100
"""Longest gap between a sequence and its copy at full variation, in tokens."""


def repeat_batch(vocabulary: int, rows: int, length: int, generator: torch.Generator, gap: int = 0) -> Batch:
    """Make `rows` rows "x g x": x has `length` tokens and g has `gap`, drawn uniformly from the vocabulary.

    The second x is marked as the agent's. After a gap its first token is not, because the end of a gap is not
    predictable.
    """
    sequence_BN = torch.randint(vocabulary, (rows, length), generator=generator)
    gap_BN = torch.randint(vocabulary, (rows, gap), generator=generator)
    ids_BT = torch.cat([sequence_BN, gap_BN, sequence_BN], dim=1)
    agent_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    agent_BT[:, length + gap + (gap > 0) :] = True
    return Batch(ids_BT, agent_BT, torch.zeros(ids_BT.shape), torch.full((rows,), 2 * length + gap))


def varied_batch(vocabulary: int, tokens: int, length: int, spread: float, generator: torch.Generator) -> Batch:
    """Make about `tokens` tokens of rows with one random length and gap, from ranges that widen as `spread` goes 0 → 1.

    At 0 the length is `length` and the gap 0. At 1 they are drawn from `LENGTH_RANGE` and from 0 to `MAX_GAP`.
    """

    def draw(low: float, high: float) -> int:
        return int(torch.randint(round(low), round(high) + 1, (), generator=generator))

    shortest, longest = LENGTH_RANGE
    size = draw(length + spread * (shortest - length), length + spread * (longest - length))
    gap = draw(0, spread**2 * MAX_GAP)  # squared: wide gaps too early make the model unlearn copying by position
    return repeat_batch(vocabulary, max(1, tokens // (2 * size + gap)), size, generator, gap)


CHUNK_STEPS = 16
"""Number of steps for which demonstrations are drawn at once, so that rows of similar length can share a step."""


@dataclass(frozen=True, slots=True)
class SftOutcome:
    """Result of supervised fine-tuning."""

    rounds: int
    passed: bool
    """Whether the gate was reached; true without a gate."""


def train_sft(
    policy: Policy,
    draw: Draw,
    settings: SftSettings,
    folder: Path,
    *,
    resume: bool = False,
    evaluate: Evaluate | None = None,
    progress: Progress | None = None,
) -> SftOutcome:
    """Train the policy, in rounds until the gate is reached. Each round has a folder `round-N`.

    The policy was opened with the settings' learner; each round gives it a new schedule. All of its workers call this
    with the same `draw`. All evaluate, with samplers of the policy, and get the same metrics.
    """
    progress = progress or NoProgress()
    for number in range(1, settings.rounds + 1):
        evaluation = _run_round(number, policy, draw, settings, folder / f"round-{number}", resume, evaluate, progress)
        value = evaluation.get(settings.gate_metric)
        if settings.gate is None or (value is not None and value >= settings.gate):
            return SftOutcome(number, True)
        progress.warn(f"round {number}: {settings.gate_metric} {value} is below the gate of {settings.gate}")
    return SftOutcome(settings.rounds, False)


def _run_round(
    number: int,
    policy: Policy,
    draw: Draw,
    settings: SftSettings,
    folder: Path,
    resume: bool,
    evaluate: Evaluate | None,
    progress: Progress,
) -> Mapping[str, float]:
    """Run one round, a whole schedule. Returns the evaluation at its end."""
    if number > 1 and settings.later_steps is not None:
        settings = settings.model_copy(update={"steps": settings.later_steps})
    repeats = settings.repeat_steps + settings.varied_steps if number == 1 else 0
    total = repeats + settings.steps
    optimizer = settings.learner.optimizer
    optimizer = optimizer.model_copy(update={"lr": optimizer.lr * settings.later_lr ** (number - 1)})
    policy.restart(settings.learner.model_copy(update={"optimizer": optimizer}), total)
    state = TrainingState(folder, settings, {"policy": policy}, {}, resume=resume, workers=policy.workers)
    policy.release()  # what samplers hold is not needed until the first evaluation
    batches = BatchFeed(draw, settings, number, repeats, policy.model.config.get_text_config().vocab_size, state)
    progress.stage("SFT" if number == 1 else f"SFT, round {number}", total)
    started_s, tokens = time.perf_counter(), cast(int, state.notes.get("tokens", 0))
    first_step, first_tokens = state.step, tokens
    with waiting_stops() as stop:
        for step in range(first_step, total):
            batch = batches.batch(step)
            weights_BT = token_weights(batch, settings.environment_weight if step >= repeats else 0.0)
            loss = policy.forward_backward(batch, weights_BT != 0.0, weighted_loss(weights_BT))
            if step == first_step and not bool((weights_BT != 0.0).any()):
                progress.warn(f"step {step + 1}: no token is trained on, so the loss is 0; see environment_weight")
            row = {"step": step + 1, "loss": loss, "lr": policy.optimizer.rate, "grad_norm": policy.optim_step()}
            tokens += int(batch.lengths_B.sum())
            done, state.notes["tokens"] = step + 1, tokens
            state.advance(done, 0)
            if evaluate is not None and (
                done == total or (settings.evaluate_every and done % settings.evaluate_every == 0)
            ):
                policy.refresh()
                evaluation = evaluate(done)
                policy.release()
                state.notes["evaluation"] = {**evaluation}
                progress.say(f"step {done}: {', '.join(f'{name} {value:.3f}' for name, value in evaluation.items())}")
                row |= {f"eval/{name}": value for name, value in evaluation.items()}
            tokens_per_s = (tokens - first_tokens) / (time.perf_counter() - started_s)
            if done % settings.log_every == 0 or done == total or len(row) > 4:
                state.log_metrics(row | {"tokens": tokens, "tokens_per_s": tokens_per_s})
            if done % settings.checkpoint_every == 0 or done == total:
                state.save()
            progress.advance(done, f"loss {loss:.2f}, {tokens_per_s:,.0f} tokens/s")
            state.end_step(stop)
    state.release()
    return cast(Mapping[str, float], state.notes.get("evaluation", {}))


class BatchFeed:
    """The batch of each step, a pure function of the seed, the round and the chunk that the notes of the state name."""

    def __init__(
        self, draw: Draw, settings: SftSettings, number: int, repeats: int, vocabulary: int, state: TrainingState
    ) -> None:
        self._draw, self._settings, self._round = draw, settings, number
        self._repeats, self._vocabulary, self._notes = repeats, vocabulary, state.notes
        self._chunk: list[Batch] = []
        self._notes.setdefault("chunk", 0)
        self._notes.setdefault("chunk_began", repeats)

    def batch(self, step: int) -> Batch:
        """Return the batch of step `step`. Steps must be requested in order."""
        settings = self._settings
        if step < self._repeats:
            generator = torch.Generator().manual_seed(derive_seed(settings.seed, "repeats", step))
            varied_step = step - settings.repeat_steps
            if varied_step >= 0 and varied_step % 2 == 0:
                spread = varied_step / settings.varied_steps
                return varied_batch(self._vocabulary, settings.repeat_tokens, settings.repeat_length, spread, generator)
            rows = max(1, settings.repeat_tokens // (2 * settings.repeat_length))
            return repeat_batch(self._vocabulary, rows, settings.repeat_length, generator)
        number, first_step = (cast(int, self._notes[name]) for name in ("chunk", "chunk_began"))
        if not self._chunk:  # at the start, and after a resume
            self._open_chunk(number, first_step)
        if step - first_step >= len(self._chunk):
            number, first_step = number + 1, step
            self._notes |= {"chunk": number, "chunk_began": first_step}
            self._open_chunk(number, first_step)
        return self._chunk[step - first_step]

    def _open_chunk(self, number: int, first_step: int) -> None:
        """Draw the demonstrations of a chunk and split them into steps of similar lengths, in random order."""
        settings = self._settings
        rng = random.Random(f"{settings.seed}/{self._round}/chunk/{number}")
        # The curriculum ends with the first round: repeating its drills unlearns later skills.
        done = (first_step - self._repeats) / max(1, settings.steps) if self._round == 1 else 1.0
        demonstrations = []
        tokens = 0
        while tokens < CHUNK_STEPS * settings.tokens_per_step:
            demonstrations.append(self._draw(done, rng))
            tokens += len(demonstrations[-1].ids)
        batch = make_batch(demonstrations)
        self._chunk = [batch.select(rows_B) for rows_B in micro_batches(batch.lengths_B, settings.tokens_per_step)]
        rng.shuffle(self._chunk)


def token_weights(batch: Batch, environment_weight: float) -> Tensor:
    """Return the loss weights of tokens: 1 for the agent's, `environment_weight` for others, then scaled to sum 1."""
    agent_BT = batch.agent_BT & batch.predicted_BT
    weights_BT = torch.where(agent_BT, 1.0, torch.where(batch.predicted_BT, environment_weight, 0.0))
    return weights_BT / weights_BT.sum().clamp(min=1e-9)


def weighted_loss(weights_BT: Tensor) -> Loss:
    """Return the loss -Σ weight · log p over the tokens with a weight other than 0: the supervised loss if weights sum
    to 1."""

    def loss(logprobs_bt: Tensor, rows_b: Tensor) -> Tensor:
        weights_bt = weights_BT[rows_b, : logprobs_bt.shape[1]].to(logprobs_bt.device)
        return -(torch.where(weights_bt != 0.0, logprobs_bt, 0.0) * weights_bt).sum()

    return loss
