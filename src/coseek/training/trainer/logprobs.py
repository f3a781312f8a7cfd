"""Log-probabilities: those of selected tokens under a language model, and the entropies of their distributions.

Shapes: B rows · T tokens · N wanted tokens · D hidden size · V vocabulary.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from coseek.core.errors import DataError
from coseek.training.trainer.autocast import pad_positions

Head: TypeAlias = Callable[[Tensor], Tensor]


def target_logprobs(
    hidden_BTD: Tensor, head: Head, ids_BT: Tensor, wanted_BT: Tensor, temperature: float = 1.0
) -> Tensor:
    """Return log softmax(head(h[t-1]) / temperature)[ids[t]] where wanted, 0 elsewhere; shape BT."""
    logits_NV = _logits(hidden_BTD, head, wanted_BT, temperature)
    return _placed(-F.cross_entropy(logits_NV, _targets(ids_BT, wanted_BT), reduction="none"), wanted_BT)


def logprobs_and_entropy(
    hidden_BTD: Tensor,
    head: Head,
    ids_BT: Tensor,
    wanted_BT: Tensor,
    temperature: float = 1.0,
    *,
    gradient: bool = False,
) -> Tensor:
    """Return `target_logprobs` and the exact entropy of the distribution of each wanted token; shape 2BT.

    Without `gradient` the entropy has no gradient and keeps no activations.
    """
    logits_NV = _logits(hidden_BTD, head, wanted_BT, temperature)
    logprobs_N = -F.cross_entropy(logits_NV, _targets(ids_BT, wanted_BT), reduction="none")
    entropy_N = entropies(logits_NV if gradient else logits_NV.detach())
    return torch.stack([_placed(logprobs_N, wanted_BT), _placed(entropy_N, wanted_BT)])


def entropies(logits_NV: Tensor, rows: int = 512) -> Tensor:
    """Return -Σ p log p of each row of logits, in nats; shape N.

    Computes `rows` rows at a time and recomputes them in the backward pass: only the logits, which the
    log-probabilities need anyway, stay in memory.
    """
    parts: list[Tensor] = [checkpoint(_entropy, part, use_reentrant=False) for part in logits_NV.split(rows)]
    return torch.cat(parts)


def _entropy(logits_NV: Tensor) -> Tensor:
    logprobs_NV = logits_NV.log_softmax(dim=1)
    # A token of probability 0 has log-probability -inf, and 0 · -inf is NaN.
    return -(logprobs_NV.exp() * logprobs_NV.clamp(min=torch.finfo(logits_NV.dtype).min)).sum(dim=1)


def _logits(hidden_BTD: Tensor, head: Head, wanted_BT: Tensor, temperature: float) -> Tensor:
    """Return the logits that predict the wanted tokens, at least float32; shape NV.

    The head runs only at these positions: logits of retrieved tokens are not needed.
    """
    if bool(wanted_BT[:, 0].any()):
        raise DataError("the first token of a row has nothing before it, so it has no log-probability")
    hidden_ND = hidden_BTD[:, :-1][wanted_BT[:, 1:]]
    logits_NV = head(pad_positions(hidden_ND))[: len(hidden_ND)]
    if logits_NV.dtype is not torch.float64:
        logits_NV = logits_NV.float()
    return logits_NV if temperature == 1.0 else logits_NV / temperature


def _targets(ids_BT: Tensor, wanted_BT: Tensor) -> Tensor:
    return ids_BT[:, 1:][wanted_BT[:, 1:]]


def _placed(values_N: Tensor, wanted_BT: Tensor) -> Tensor:
    """Put the values at the wanted positions, row by row, 0 elsewhere; shape BT."""
    return torch.zeros(wanted_BT.shape, dtype=values_N.dtype, device=wanted_BT.device).masked_scatter(
        wanted_BT, values_N
    )
