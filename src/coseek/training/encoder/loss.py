"""Loss: the losses of a bi-encoder, exact over all workers.

Contrastive (Agentic-R, eq. 5; also AgentIR). With s(q, p) the inner product of the vectors (of token vectors: MaxSim,
divided by the query's tokens) and τ the temperature,

    L = −mean over rows b of  log  exp(s(q_b, p_b⁺)/τ) / Σ over slots of b  exp(s(q_b, p)/τ)

where the slots of b hold its positive, its negatives, and the passages of every other row of every worker: B·G·N − 1
negatives, less the false negatives (`batch.py`). A masked slot has −∞ in the exponent; scores are never multiplied by a
mask.

KL (REPLUG, Shi et al. 2024, eq. 6). With P(p | q_b) the softmax of s(q_b, p)/τ over b's candidates and T_b the labels'
targets,

    L = mean over rows b of  KL(P(· | q_b) ‖ T_b)

FLOPS (Paria et al. 2020, eq. 4), of encoders of word weights w alone. With a mean over the N queries, and another over
the passages, of a batch,

    L += λ · Σ over words v of  (mean over texts n of w_nv)²

Workers. Each encodes a share of the batch's texts, gathers the vectors of the others, and computes the whole loss.
Only its own vectors have a gradient, so the *sum* of all workers' gradients is the batch's. The trainer averages
gradients over W workers (DDP), so the loss is multiplied by W.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import TypeAlias, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sentence_transformers import MultiVectorEncoder, SparseEncoder
from sentence_transformers.base.losses import CachedLossMixin, RandContext
from sentence_transformers.base.losses.gradcache import _create_minibatch, _minibatch_ranges
from sentence_transformers.base.model import BaseModel
from sentence_transformers.util.similarity import mean_maxsim
from torch import Tensor, nn

from coseek.core.errors import RunError
from coseek.training.encoder.batch import TASKS
from coseek.training.encoder.recipe import RetrieverLoss
from coseek.training.learner.logprobs import bfloat16_autocast
from coseek.training.learner.workers import ALONE, Workers

Features: TypeAlias = dict[str, Tensor]
"""Inputs of the encoder, by argument name."""
Target: TypeAlias = dict[str, Tensor]
"""The tensors of an `EncoderBatch`, by name."""

TARGET_FLOOR = 1e-8
"""Lower bound of targets: a target of 0, which a float32 softmax can give, would make the divergence infinite."""


def contrastive(scores_BS: Tensor, allowed_BS: Tensor, positive_B: Tensor) -> Tensor:
    """Return the loss of each row, shape B; `scores_BS` are already divided by the temperature."""
    masked_BS = torch.where(allowed_BS, scores_BS, -torch.inf)
    positive_scores_B = scores_BS.gather(1, positive_B[:, None]).squeeze(1)
    return masked_BS.logsumexp(dim=1) - positive_scores_B


def divergence(scores_BS: Tensor, allowed_BS: Tensor, targets_BS: Tensor) -> Tensor:
    """Return KL(softmax of the row's own scores ‖ its targets), shape B."""
    log_p_BS = torch.where(allowed_BS, scores_BS, -torch.inf).log_softmax(dim=1)
    # 0 · (−∞) is NaN, and so is its gradient: replace other rows' slots before the multiplication.
    log_p_BS = torch.where(allowed_BS, log_p_BS, torch.zeros(()).to(log_p_BS))
    divergence_BS = log_p_BS.exp() * (log_p_BS - targets_BS.clamp(min=TARGET_FLOOR).log())
    return torch.where(allowed_BS, divergence_BS, torch.zeros(()).to(divergence_BS)).sum(dim=1)


def similarities(queries: Tensor, passages: Tensor) -> Tensor:
    """Return the score of every query and passage, shape V × U: the inner product of vectors (V × D, U × D), or the
    mean over a query's tokens of the largest inner product with a token of the passage (V × T × D, U × T × D)."""
    if queries.ndim == 2:
        return queries @ passages.T
    return mean_maxsim(queries, passages, queries.any(dim=2), passages.any(dim=2))


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate vectors of texts, and those of tokens with zeros up to the longest text."""
    longest = max(part.shape[1] for part in parts)
    return torch.cat([F.pad(part, (0, 0, 0, longest - part.shape[1])) if part.ndim == 3 else part for part in parts])


class RetrieverObjective(CachedLossMixin, nn.Module):
    """The loss as the trainer calls it: token ids in, scalar out."""

    def __init__(
        self,
        model: BaseModel,
        settings: RetrieverLoss,
        *,
        micro_batch_tokens: int,
        cached: bool,
        normalise: bool,
        bfloat16: bool = False,
        gradient_checkpointing: bool = False,
        workers: Workers = ALONE,
    ) -> None:
        super().__init__()
        self.model = model
        self._tokens, self._words = isinstance(model, MultiVectorEncoder), isinstance(model, SparseEncoder)
        self.mini_batch_size = 1  # unused: micro-batches are limited by tokens
        self.mini_batch_num_tokens = micro_batch_tokens
        self._settings, self._cached, self._workers = settings, cached, workers
        self._normalise, self._bfloat16, self._gradient_checkpointing = normalise, bfloat16, gradient_checkpointing
        self.sums: dict[str, float] = {}
        """Sums behind `pop_metrics`. Checkpoints store them, so a resumed training completes the current row."""

    def forward(self, sentence_features: Iterable[Features], labels: Target) -> Tensor:
        """Return the loss of a batch of queries and passages, which `labels` relates."""
        features = list(sentence_features)
        if self._tokens:
            features = [
                cast(Features, feature | {"task": task}) for feature, task in zip(features, TASKS.values(), strict=True)
            ]
        self._add_to_sums({"tokens": float(sum(int(feature["attention_mask"].sum()) for feature in features))})
        parts = [len(_minibatch_ranges(feature, 1, self.mini_batch_num_tokens)) for feature in features]
        if self._cached and max(parts) > 1:
            # The library passes the second argument to `calculate_loss`; its type there fits most losses, but not ours.
            cached: Tensor = self.forward_cached(features, cast(Tensor, labels))
            return cached
        reps = [
            [rep for rep, _ in self.embed_minibatch_iter(feature, with_grad=True, copy_random_state=False)]
            for feature in features
        ]
        return self.calculate_loss(reps, labels)

    def embed_minibatch(
        self,
        sentence_feature: Features,
        begin: int,
        end: int,
        with_grad: bool,
        copy_random_state: bool,
        random_state: RandContext | None = None,
    ) -> tuple[Tensor, RandContext | None]:
        """Encode some texts; normalise the vectors if the encoder's card says so."""
        device = sentence_feature["input_ids"].device
        with (
            bfloat16_autocast(device, gradient_checkpointing=self._gradient_checkpointing)
            if self._bfloat16
            else nullcontext()
        ):
            if self._tokens:
                minibatch = _create_minibatch(sentence_feature, begin, end)
                with random_state or nullcontext(), torch.set_grad_enabled(with_grad):
                    reps_ND, state = self._embed_tokens(minibatch, copy_random_state)
            else:
                reps_ND, state = super().embed_minibatch(
                    sentence_feature, begin, end, with_grad, copy_random_state, random_state
                )
        reps_ND = reps_ND.float()
        return (F.normalize(reps_ND, dim=-1) if self._normalise else reps_ND), state

    def _embed_tokens(self, features: Features, copy_random_state: bool) -> tuple[Tensor, RandContext | None]:
        """Encode texts to vectors of tokens, shape N × T × D. Tokens that are not scored are zeros, which
        `similarities` masks."""
        tensors = [value for value in features.values() if isinstance(value, Tensor)]
        state = RandContext(*tensors) if copy_random_state else None
        out = self.model(features, task=features["task"])
        return out["token_embeddings"] * out["attention_mask"].bool()[..., None], state

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | Target | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """Return the whole batch's loss times the number of workers (see the module's docstring)."""
        assert isinstance(labels, dict)
        allowed_BS = labels["allowed_BS"]
        vectors = [self._gather(stacked(parts)) for parts in reps]
        scores_BS = self._scores(vectors, labels) / self._settings.temperature
        if self._settings.kind == "kl":
            loss = divergence(scores_BS, allowed_BS, labels["targets_BS"]).mean()
        else:
            loss = contrastive(scores_BS, allowed_BS, labels["positive_B"]).mean()
        if self._words:
            counts = (int(labels[name].max()) + 1 for name in ("query_B", "passage_S"))
            for weight, vectors_NV, count in zip(self._settings.flops, vectors, counts, strict=True):
                loss = loss + weight * vectors_NV[:count].mean(dim=0).square().sum()
        self._add_metrics(loss, scores_BS.detach(), labels)
        loss = loss * self._workers.world_size
        if not with_backward:
            return loss
        loss.backward()
        return loss.detach()

    def _scores(self, vectors: Sequence[Tensor], labels: Target) -> Tensor:
        """Return the score of every row and slot, shape B × S."""
        queries, passages = vectors
        return similarities(queries, passages)[labels["query_B"]][:, labels["passage_S"]]

    def _gather(self, local_MD: Tensor) -> Tensor:
        """Gather the vectors of all workers in the batch's order. Only this worker's own have a gradient."""
        world, rank = self._workers.world_size, self._workers.rank
        if world == 1:
            return local_MD
        if local_MD.ndim == 3:
            max_tokens = max(self._workers.gather(local_MD.shape[1]))
            local_MD = F.pad(local_MD, (0, 0, 0, max_tokens - local_MD.shape[1]))
        counts = self._workers.gather(len(local_MD))
        longest, total = max(counts), sum(counts)
        padded_KD = F.pad(local_MD.detach(), (0, 0) * (local_MD.ndim - 1) + (0, longest - len(local_MD)))
        gathered = [torch.empty_like(padded_KD) for _ in range(world)]
        dist.all_gather(gathered, padded_KD)
        shards = [local_MD if worker == rank else gathered[worker][: counts[worker]] for worker in range(world)]
        starts = [sum(counts[:worker]) for worker in range(world)]
        order = [starts[number % world] + number // world for number in range(total)]
        return torch.cat(shards)[torch.tensor(order, device=local_MD.device)]

    def _add_metrics(self, loss: Tensor, scores_BS: Tensor, labels: Target) -> None:
        """Add a batch's metrics to `sums`."""
        allowed_BS = labels["allowed_BS"]
        best_B = torch.where(allowed_BS, scores_BS, -torch.inf).argmax(dim=1)
        wanted_B = labels["targets_BS"].argmax(dim=1) if self._settings.kind == "kl" else labels["positive_B"]
        metrics = {
            "loss": float(loss.detach()),
            "accuracy": float((best_B == wanted_B).float().mean()),
            "negatives": float(allowed_BS.sum(dim=1).float().mean()) - 1.0,
            "batches": 1.0,
        }
        if not math.isfinite(metrics["loss"]):
            raise RunError(f"the loss is {metrics['loss']}; start again with a lower learning rate")
        self._add_to_sums(metrics)

    def _add_to_sums(self, metrics: dict[str, float]) -> None:
        self.sums |= {name: self.sums.get(name, 0.0) + value for name, value in metrics.items()}

    def pop_metrics(self) -> dict[str, float]:
        """Return the metrics since the last call, and reset them.

        These are the mean loss, the accuracy (share of rows whose positive scores best), the mean number of negatives,
        and the number of tokens that this worker encoded, without padding.
        """
        sums, self.sums = self.sums, {}
        count, tokens = sums.pop("batches", 0.0), sums.pop("tokens", 0.0)
        return {name: value / count for name, value in sums.items()} | {"tokens": tokens}
