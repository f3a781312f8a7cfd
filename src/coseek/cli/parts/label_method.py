"""My part: the first passage that holds a gold answer is the positive; passages without one are negatives."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from coseek.agents.search_turns import SearchTurn
from coseek.agents.sources import holds
from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.labels.label_set import Candidates, DroppedTurn, label_sets
from coseek.labels.maker import Labelled, MakerRequirements
from coseek.labels.resources import LabelResources


class SETTINGS(Settings):
    """What `coseek label RUN NAME=VALUE` may set."""

    candidates: int = 20
    """Passages per search that are looked at."""
    negatives: int = 5
    """Negatives per label set."""
    seed: int = 0
    """Seed of the negatives."""


@dataclass(frozen=True)
class Maker:
    """Implements `LabelMaker`."""

    settings: SETTINGS
    parts: LabelResources

    @property
    def identity(self) -> str:
        """A digest of everything that labels depend on besides the runs."""
        return digest_of("my-part", self.settings.model_dump_json(), self.parts.retriever.identity)

    def label(self, turns: Iterable[SearchTurn]) -> Iterator[Labelled]:
        """Yield a label set, or a dropped turn with its reason, for every search."""
        return self.parts.each_searched(self._labels, turns, self.settings.candidates)

    def _labels(self, turn: SearchTurn, candidates: Candidates) -> Iterator[Labelled]:
        right = [hit for hit in candidates if any(holds(hit.passage, gold) for gold in turn.question.answers)]
        pool = [hit.passage.id for hit in candidates if hit not in right]
        if not right or not pool:
            yield DroppedTurn(turn.id, "no-positive" if not right else "no-negatives")
            return
        chosen = [hit.passage for hit in right[:1]]
        yield from label_sets(turn, candidates, chosen, pool, self.settings.negatives, self.settings.seed)


def terms(settings: SETTINGS) -> MakerRequirements:
    """Return what the method needs besides runs and a retriever: nothing."""
    return MakerRequirements()


def open(settings: SETTINGS, parts: LabelResources) -> Maker:
    """Open the method; `parts` opens a scorer, a likelihood or an agent where it needs one."""
    return Maker(settings, parts)
