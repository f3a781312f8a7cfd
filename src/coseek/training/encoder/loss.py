"""Losses of a bi-encoder, exact over all workers.

Contrastive (paper 000, eq. 5; 003 alike). With s(q, p) the inner product of the vectors and τ the temperature,

    L = −mean over rows b of  log  exp(s(q_b, p_b⁺)/τ) / Σ over slots of b's sum  exp(s(q_b, p)/τ)

where the sum holds b's positive, its given negatives, and the passages of every other row of every worker: B·G·N − 1
negatives, less those that are false ones (`batch.py` says which). What is left out becomes −∞ in the exponent; scores
are never multiplied by a mask.

KL (REPLUG, Shi et al. 2024, eq. 6). With P(p | q_b) the softmax of s(q_b, p)/τ over b's candidates and T_b the labels'
targets,

    L = mean over rows b of  KL(P(· | q_b) ‖ T_b)

Workers. Each encodes a share of the batch's texts and gathers the vectors of the others, and every one computes the
whole loss; only its own vectors carry a gradient, so the gradients of all workers *add up* to the batch's. Where the
trainer averages them over W workers (DDP), the loss is taken times W.
"""

import math
from collections.abc import Iterable
from typing import TypeAlias, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses import CachedLossMixin, RandContext
from sentence_transformers.base.losses.gradcache import _minibatch_ranges
from torch import Tensor, nn

from coseek.core.errors import RunError
from coseek.training.encoder.recipe import RetrieverLoss
from coseek.training.trainer.workers import ALONE, Workers

Features: TypeAlias = dict[str, Tensor]
"""What the encoder is fed, by the name of its argument."""
Target: TypeAlias = dict[str, Tensor]
"""The tensors of a `Batch`, by name."""

TARGET_FLOOR = 1e-8
"""A target of 0 would make the divergence infinite; float32 softmaxes reach it."""


def contrastive(scores_BS: Tensor, allowed_BS: Tensor, positive_B: Tensor) -> Tensor:
    """The loss of each row; `scores_BS` are divided by the temperature already."""
    masked_BS = torch.where(allowed_BS, scores_BS, -torch.inf)
    right_B = scores_BS.gather(1, positive_B[:, None]).squeeze(1)
    return masked_BS.logsumexp(dim=1) - right_B


def divergence(scores_BS: Tensor, allowed_BS: Tensor, targets_BS: Tensor) -> Tensor:
    """KL(softmax of the row's own scores ‖ its targets), of each row."""
    log_p_BS = torch.where(allowed_BS, scores_BS, -torch.inf).log_softmax(dim=1)
    # 0 · (−∞) is no number, and its gradient neither: what is not the row's own is put away before it is multiplied.
    log_p_BS = torch.where(allowed_BS, log_p_BS, torch.zeros(()).to(log_p_BS))
    apart_BS = log_p_BS.exp() * (log_p_BS - targets_BS.clamp(min=TARGET_FLOOR).log())
    return torch.where(allowed_BS, apart_BS, torch.zeros(()).to(apart_BS)).sum(dim=1)


class RetrieverObjective(CachedLossMixin, nn.Module):
    """The loss as the trainer calls it: texts in, one number out."""

    def __init__(
        self,
        model: SentenceTransformer,
        settings: RetrieverLoss,
        *,
        micro_batch_tokens: int,
        cached: bool,
        normalise: bool,
        bfloat16: bool = False,
        workers: Workers = ALONE,
    ) -> None:
        super().__init__()
        self.model = model
        self.mini_batch_size = 1  # not looked at: micro-batches are filled by tokens
        self.mini_batch_num_tokens = micro_batch_tokens
        self._settings, self._cached, self._workers = settings, cached, workers
        self._normalise, self._bfloat16 = normalise, bfloat16
        self.sums: dict[str, float] = {}
        """What `readings` are made of. Checkpoints keep them: a run that goes on writes the line that was under way."""

    def forward(self, sentence_features: Iterable[Features], labels: Target) -> Tensor:
        """The loss of a batch: its queries, its passages, and how they belong together."""
        features = list(sentence_features)
        self._add({"tokens": float(sum(int(each["attention_mask"].sum()) for each in features))})
        parts = [len(_minibatch_ranges(each, 1, self.mini_batch_num_tokens)) for each in features]
        if self._cached and max(parts) > 1:
            # The library hands the second argument through to `calculate_loss`, and types it as most losses need it.
            cached: Tensor = self.forward_cached(features, cast(Tensor, labels))
            return cached
        reps = [
            [rep for rep, _ in self.embed_minibatch_iter(each, with_grad=True, copy_random_state=False)]
            for each in features
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
        """Vectors of some texts, of length 1 where the encoder's card says so."""
        device = sentence_feature["input_ids"].device.type
        with torch.autocast(device, torch.bfloat16, enabled=self._bfloat16):
            reps_ND, state = super().embed_minibatch(
                sentence_feature, begin, end, with_grad, copy_random_state, random_state
            )
        reps_ND = reps_ND.float()
        return (F.normalize(reps_ND, dim=1) if self._normalise else reps_ND), state

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | Target | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """The whole batch's loss, times the number of workers (see the top)."""
        assert isinstance(labels, dict)
        queries_VD, passages_UD = (self._of_all(torch.cat(parts)) for parts in reps)
        query_B, passage_S, allowed_BS = labels["query_B"], labels["passage_S"], labels["allowed_BS"]
        scores_BS = (queries_VD[query_B] @ passages_UD.T)[:, passage_S] / self._settings.temperature
        if self._settings.kind == "kl":
            loss = divergence(scores_BS, allowed_BS, labels["targets_BS"]).mean()
        else:
            loss = contrastive(scores_BS, allowed_BS, labels["positive_B"]).mean()
        self._note(loss, scores_BS.detach(), labels)
        loss = loss * self._workers.world
        if not with_backward:
            return loss
        loss.backward()
        return loss.detach()

    def _of_all(self, mine_MD: Tensor) -> Tensor:
        """The vectors of all workers in the batch's order, of which every W-th is this worker's and has a gradient."""
        world, rank = self._workers.world, self._workers.rank
        if world == 1:
            return mine_MD
        counts = self._workers.gather(len(mine_MD))
        most, total = max(counts), sum(counts)
        padded_KD = F.pad(mine_MD.detach(), (0, 0, 0, most - len(mine_MD)))
        gathered = [torch.empty_like(padded_KD) for _ in range(world)]
        dist.all_gather(gathered, padded_KD)
        parts = [mine_MD if other == rank else gathered[other][: counts[other]] for other in range(world)]
        starts = [sum(counts[:other]) for other in range(world)]
        places = [starts[number % world] + number // world for number in range(total)]
        return torch.cat(parts)[torch.tensor(places, device=mine_MD.device)]

    def _note(self, loss: Tensor, scores_BS: Tensor, labels: Target) -> None:
        """Add up what `readings` means."""
        allowed_BS = labels["allowed_BS"]
        best_B = torch.where(allowed_BS, scores_BS, -torch.inf).argmax(dim=1)
        wanted_B = labels["targets_BS"].argmax(dim=1) if self._settings.kind == "kl" else labels["positive_B"]
        now = {
            "loss": float(loss.detach()),
            "accuracy": float((best_B == wanted_B).float().mean()),
            "negatives": float(allowed_BS.sum(dim=1).float().mean()) - 1.0,
            "batches": 1.0,
        }
        if not math.isfinite(now["loss"]):
            raise RunError(f"the loss is {now['loss']}; start again with a learning rate below the one that led here")
        self._add(now)

    def _add(self, now: dict[str, float]) -> None:
        self.sums |= {name: self.sums.get(name, 0.0) + value for name, value in now.items()}

    def readings(self) -> dict[str, float]:
        """Since they were last asked for: the mean of the loss, how often the positive is the best of a row's sum, how
        many negatives that sum has; and how many tokens this worker encoded, padding left out."""
        found, self.sums = self.sums, {}
        count, tokens = found.pop("batches", 0.0), found.pop("tokens", 0.0)
        return {name: value / count for name, value in found.items()} | {"tokens": tokens}
