"""Token sampling: draws one token per row from logits and a uniform number per token."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BITS = 23
"""Bits of a uniform number. With the added half that excludes 0 and 1, float32 holds it exactly."""


def uniforms(seeds_B: NDArray[np.uint64], positions_B: NDArray[np.int64]) -> NDArray[np.float32]:
    """One number in (0, 1) per row, a function of seed and position: two rounds of the splitmix64 finaliser."""
    mixed = _mix(_mix(seeds_B + _GOLDEN) ^ ((positions_B.astype(np.uint64) + np.uint64(1)) * _GOLDEN))
    return ((mixed >> np.uint64(64 - _BITS)).astype(np.float64) + 0.5).astype(np.float32) * np.float32(2.0**-_BITS)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def sample_tokens(logits_BV: Tensor, uniform_B: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Token ids and natural log-probabilities per row, by inverting the cumulative distribution. Temperature 0 selects
    the most likely token, with its log-probability at temperature 1. Logits that are not finite give a log-probability
    that is not finite."""
    if temperature == 0.0:
        best_B = logits_BV.argmax(dim=-1)
        return best_B, logits_BV.gather(1, best_B[:, None])[:, 0] - logits_BV.logsumexp(dim=-1)
    shifted_BV = logits_BV - logits_BV.amax(dim=-1, keepdim=True)
    if temperature != 1.0:
        shifted_BV /= temperature
    below_BV = shifted_BV.exp().cumsum(dim=-1)
    total_B1 = below_BV[:, -1:]
    # Rounding must not lift the threshold to the total, beyond the last token with probability.
    aim_B1 = torch.minimum(uniform_B[:, None] * total_B1, torch.nextafter(total_B1, torch.zeros_like(total_B1)))
    drawn_B1 = torch.searchsorted(below_BV, aim_B1, right=True).clamp_(max=logits_BV.shape[1] - 1)
    return drawn_B1[:, 0], (shifted_BV.gather(1, drawn_B1) - total_B1.log())[:, 0]


def drawn_tokens(
    logits_BV: Tensor, uniform_B: Tensor, temperature: float, top_p: float, top_k: int
) -> tuple[Tensor, Tensor]:
    """`sample_tokens` of filtered logits."""
    if top_p < 1.0 or top_k:
        logits_BV = filter_logits(logits_BV, temperature, top_p, top_k)
    return sample_tokens(logits_BV, uniform_B, temperature)


def filter_logits(logits_BV: Tensor, temperature: float, top_p: float, top_k: int) -> Tensor:
    """Set logits to −∞ beyond the `top_k` most likely tokens (0: none) and the mass `top_p`, except the most likely."""
    sorted_BV, order_BV = logits_BV.sort(dim=-1, descending=True)
    gone_BV = torch.zeros_like(sorted_BV, dtype=torch.bool)
    if top_k:
        gone_BV[:, top_k:] = True
    if top_p < 1.0:
        mass_BV = (sorted_BV / (temperature or 1.0)).softmax(dim=-1)
        gone_BV |= mass_BV.cumsum(dim=-1) - mass_BV >= top_p
    gone_BV[:, 0] = False
    return logits_BV.masked_fill(torch.zeros_like(gone_BV).scatter(1, order_BV, gone_BV), -torch.inf)
