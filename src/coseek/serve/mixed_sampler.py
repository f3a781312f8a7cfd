"""Mixed sampler: rows that are drawn each in a way of its own, in one batch and over one cache."""

from collections.abc import Callable, Hashable
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from coseek.models.model import Request, Tokenizer
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.stop_strings import StopStrings, token_texts
from coseek.models.token_sampling import drawn_tokens
from coseek.serve.generation import SamplingKind

MOST_STOPS = 128
"""Sets of stop strings that are kept after the rows that have them: finding their tokens takes a while."""
K = TypeVar("K", bound=Hashable)


class MixedSampler(Sampler):
    """A `Sampler` with a `SamplingKind` for each turn of a row."""

    def __init__(self, model: PreTrainedModel, tokenizer: Tokenizer, settings: SamplerSettings) -> None:
        super().__init__(model, tokenizer, (), settings)
        self._kinds: dict[int, SamplingKind] = {}
        self._known_stops: dict[tuple[str, ...], StopStrings] = {(): self._stops}
        self._texts: list[str] = []
        """Those of the tokens, once there is a stop string."""

    def start_kind(self, request: Request, kind: SamplingKind) -> None:
        """`start`, with how the row is drawn."""
        self._know(kind)
        self.start(request)
        self._kinds[request.key] = kind

    def extend_kind(self, request: Request, kind: SamplingKind) -> None:
        """`extend`, with how the row is drawn from then on."""
        self._know(kind)
        self._kinds[request.key] = kind
        self.extend(request)

    def close(self, key: int) -> None:
        super().close(key)
        self._kinds.pop(key, None)

    def _know(self, kind: SamplingKind) -> None:
        """Have the stop strings at hand; those that were not used for longest are forgotten."""
        stops = self._known_stops.pop(kind.stops, None)
        if stops is None:
            size = len(self._is_end)
            self._texts = self._texts or token_texts(self.tokenizer, size)
            stops = StopStrings(kind.stops, self.tokenizer, size, self._texts)
            used = {one.stops for one in self._kinds.values()}
            spare = [known for known in self._known_stops if known not in used]
            for known in spare[: max(0, len(self._known_stops) + 1 - MOST_STOPS)]:
                del self._known_stops[known]
        self._known_stops[kind.stops] = stops

    def _drawn(self, logits_BV: Tensor, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
        groups = self._groups(lambda kind: (kind.temperature, kind.top_p, kind.top_k))
        if len(groups) == 1:
            return drawn_tokens(logits_BV, uniform_B, *next(iter(groups)))
        drawn_B, logprobs_B = torch.empty(len(uniform_B), dtype=torch.long, device=uniform_B.device), None
        for how, lines in groups.items():
            places = torch.tensor(lines, device=uniform_B.device)
            drawn, logprobs = drawn_tokens(logits_BV[places], uniform_B[places], *how)
            drawn_B[places] = drawn
            logprobs_B = logprobs.new_empty(len(uniform_B)) if logprobs_B is None else logprobs_B
            logprobs_B[places] = logprobs
        assert logprobs_B is not None
        return drawn_B, logprobs_B

    def _may_stop(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        found = np.zeros(len(ids), np.bool_)
        for stops, lines in self._groups(lambda kind: kind.stops).items():
            if stops:
                found[lines] = self._known_stops[stops].maybe[ids[lines]]
        return found

    def _stops_of(self, key: int) -> StopStrings:
        return self._known_stops[self._kinds[key].stops]

    def _groups(self, of: Callable[[SamplingKind], K]) -> dict[K, list[int]]:
        """The places of the live rows that have the same of something."""
        groups: dict[K, list[int]] = {}
        for place, key in enumerate(self._table.key[: self._table.live].tolist()):
            groups.setdefault(of(self._kinds[key]), []).append(place)
        return groups
