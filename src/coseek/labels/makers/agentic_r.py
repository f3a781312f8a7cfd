"""Agentic-R: a passage is good for a search if it answers the query and leads the agent to the right answer.

For every search turn (Agentic-R, section 4.1):

1. The current retriever returns the candidates.
2. LR, 0 to 100: how well each answers the query, scored in windows (`coseek.graders.relevance`).
3. GAC, 0 or 1: whether the agent reaches the right answer when it continues from that passage alone
   (`coseek.labels.answer_correctness`).
4. The candidates are ranked by (GAC, LR), ties in the retriever's order. The first is the positive if its GAC is 1 and
   its LR at least `min_lr`; otherwise the turn is dropped (`no-positive`).
5. The negatives are drawn from all other candidates except copies of the positive.

GAC is computed only where it can change the positive, which is the first candidate by descending LR with a GAC of 1
(`coseek.labels.answer_correctness` proves that the labels are the same). No negative depends on a GAC.

`ties: code` is the rule of the published program, where the paper takes the single best: the first three candidates
that equal the best in both scores are positives, each in its own label set. `gac: false` ranks by LR alone, `lr: false`
by GAC alone (the paper's two ablations).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from pydantic import Field, model_validator

from coseek.agents.search_turns import SearchTurn
from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.data.passage import Passage
from coseek.labels.answer_correctness import GAC, Correctness, PositiveChoice, Ties, TurnCorrectness
from coseek.labels.label_set import Candidate, DroppedTurn, find_candidates, label_sets, not_equal_to
from coseek.labels.local_relevance import LR, LocalRelevance, NoScores, RelevanceOptions
from coseek.labels.maker import Labelled, MakerRequirements
from coseek.labels.resources import LabelResources


class AgenticRSettings(Settings):
    """Defaults are the paper's."""

    candidates: int = Field(default=20, ge=2)
    """Number of passages of the retriever per turn."""
    lr: bool = True
    """Use local relevance; without it, passages are ranked by GAC alone."""
    gac: bool = True
    """Use global answer correctness; without it, passages are ranked by LR alone."""
    min_lr: int = Field(default=60, ge=0, le=100)
    """Lower bound of a positive's LR."""
    ties: Ties = "paper"
    """`paper`: the first of tied candidates is the positive; `code`: the first three, each in its own label set."""
    negatives: int = Field(default=15, ge=1)
    """Number of negatives per label set; with the positive, the paper's 16."""
    window: int = Field(default=20, ge=1)
    """Passages per call of the scorer: 20, or 10 for models that are unreliable on long lists."""
    sub_answer: bool = True
    """Show a scoring model the answer that the search should find, where it can be inferred from the whole run."""
    scorer_prompt: str = "relevance"
    """Prompt of a scoring model: a built-in one by name, or a YAML file."""
    sub_answer_prompt: str = "sub-answer"
    """Prompt that infers sub-answers: a built-in one by name, or a YAML file."""
    max_tokens: int = Field(default=512, ge=1)
    """Tokens that the scorer may generate."""
    max_words: int = Field(default=200, ge=1)
    """Words of one passage in the scorer's prompt."""
    exhaustive: bool = False
    """Compute GAC for every candidate, also where it cannot change the labels."""
    seed: int = 0
    """Seed of the negatives."""

    @model_validator(mode="after")
    def _ranks_by_something(self) -> "AgenticRSettings":
        if not (self.lr or self.gac):
            raise ValueError("without lr and gac passages have no score; leave one of them on")
        return self

    @property
    def scoring(self) -> RelevanceOptions:
        prompt = self.sub_answer_prompt if self.sub_answer else None
        return RelevanceOptions(self.window, self.scorer_prompt, prompt, self.max_tokens, self.max_words)


SETTINGS = AgenticRSettings
VIEW = "question+query"


@dataclass(frozen=True, slots=True)
class _TurnScores:
    """A turn with its candidates and their scores by passage id."""

    turn: SearchTurn
    candidates: tuple[Candidate, ...]
    relevance: Mapping[str, float]
    correct: dict[str, float] = field(default_factory=dict)

    @property
    def passages(self) -> list[Passage]:
        return [candidate.passage for candidate in self.candidates]

    def ranked(self) -> tuple[Candidate, ...]:
        """The candidates by (GAC, LR); one without GAC ranks between 1 and 0."""
        return tuple(sorted(map(self._scored, self.candidates), key=_place))

    def _scored(self, candidate: Candidate) -> Candidate:
        ident = candidate.passage.id
        known = {name: of[ident] for name, of in ((LR, self.relevance), (GAC, self.correct)) if ident in of}
        return replace(candidate, scores={**candidate.scores, **known})


def _place(candidate: Candidate) -> tuple[float, float, int]:
    return -candidate.scores.get(GAC, 0.5), -candidate.scores.get(LR, 0.0), candidate.rank


_Feed: TypeAlias = Callable[[bool], "list[_TurnScores] | None"]
"""Called with (wait): see `Correctness.decide`."""


@dataclass(frozen=True)
class AgenticR:
    """Implements `LabelMaker`."""

    settings: AgenticRSettings
    parts: LabelResources
    local: LocalRelevance | None
    agent: Correctness | None

    @cached_property
    def identity(self) -> str:
        local = self.local.identity if self.local is not None else ""
        agent = self.agent.identity if self.agent is not None else ""
        settings = self.settings.model_dump_json(exclude={"exhaustive"})
        return digest_of("agentic-r", settings, self.parts.retriever.identity, local, agent)

    def label(self, turns: Iterable[SearchTurn]) -> Iterator[Labelled]:
        turns = [*turns]
        # GAC is undefined without an accepted answer.
        answered = [turn for turn in turns if turn.question.answers or self.agent is None]
        yield from (
            DroppedTurn(turn.id, "no-answer") for turn in turns if self.agent is not None and not turn.question.answers
        )
        dropped: list[DroppedTurn] = []
        slowest = self.parts.writer if self.local is not None and self.local.is_model else self.parts.retriever
        with self.parts.ahead(self._scored, answered, slowest, self.agent is not None) as ahead:

            def feed(wait: bool) -> list[_TurnScores] | None:
                batches = ahead.take(wait)
                if batches is None:
                    return None
                results = [result for batch in batches for result in batch]
                dropped.extend(result for result in results if isinstance(result, DroppedTurn))
                return [result for result in results if isinstance(result, _TurnScores)]

            for scored, positives in self._decided(feed):
                if positives is not None:
                    yield from self._labels(scored, positives)
                yield from dropped
                dropped.clear()
        yield from dropped

    def _scored(self, turns: Sequence[SearchTurn]) -> list[_TurnScores | DroppedTurn]:
        """Candidates with their relevance. Turns with a fault of the search or the scorer are left out."""
        pairs: list[tuple[SearchTurn, tuple[Candidate, ...]]] = []
        results: list[_TurnScores | DroppedTurn] = []
        searched = find_candidates(self.parts.retriever, turns, self.settings.candidates, self.parts.tally)
        for turn, candidates in zip(turns, searched, strict=True):
            if candidates is None:
                continue
            if len(candidates) < 2:
                results.append(DroppedTurn(turn.id, "too-few", f"the search found {len(candidates)}"))
            else:
                pairs.append((turn, candidates))
        shown = [[candidate.passage for candidate in candidates] for _, candidates in pairs]
        scores = self._relevance([turn for turn, _ in pairs], shown)
        for (turn, candidates), known in zip(pairs, scores, strict=True):
            if not isinstance(known, NoScores):
                results.append(_TurnScores(turn, candidates, known))
            elif not known.fault:
                results.append(DroppedTurn(turn.id, "unreadable", known.why))
        return results

    def _relevance(
        self, turns: Sequence[SearchTurn], shown: Sequence[Sequence[Passage]]
    ) -> Sequence[Mapping[str, float] | NoScores]:
        return [{} for _ in turns] if self.local is None else self.local.score(turns, shown)

    def _decided(self, feed: "_Feed") -> Iterator[tuple[_TurnScores, tuple[int, ...] | None]]:
        """Each turn with its positives as indices of its candidates; `None` for a fault."""
        if self.agent is None:
            while (batch := feed(True)) is not None:
                for scored in batch:
                    choice = self._choice(scored)
                    while indices := choice.wanted():
                        choice.learn(indices[0], True)
                    yield scored, choice.positives
            return
        scores: dict[TurnCorrectness, _TurnScores] = {}

        def undecided(wait: bool) -> list[TurnCorrectness] | None:
            batch = feed(wait)
            if batch is None:
                return None
            turns = [TurnCorrectness(scored.turn, scored.passages, self._choice(scored)) for scored in batch]
            scores.update(zip(turns, batch, strict=True))
            return turns

        for decided in self.agent.decide(undecided):
            scored = scores.pop(decided)
            scored.correct.update(
                {ident: score.value for ident, score in decided.scores.items() if score.value is not None}
            )
            yield scored, decided.choice.positives

    def _choice(self, scored: _TurnScores) -> PositiveChoice:
        # Without LR all candidates are tied, and the retriever's order decides.
        least = float(self.settings.min_lr)
        relevance_C = [scored.relevance.get(passage.id, least) for passage in scored.passages]
        return PositiveChoice(
            relevance_C, self.settings.ties, least, self.settings.exhaustive and self.agent is not None
        )

    def _labels(self, scored: _TurnScores, positives: Sequence[int]) -> Iterator[Labelled]:
        turn, settings = scored.turn, self.settings
        chosen = [scored.passages[index] for index in positives]
        pool = [candidate.passage.id for candidate in not_equal_to(scored.candidates, chosen)]
        if not chosen or not pool:
            yield DroppedTurn(turn.id, "no-negatives" if chosen else "no-positive", _best(scored.ranked()[0]))
            return
        yield from label_sets(turn, scored.ranked(), chosen, pool, settings.negatives, settings.seed)


def _best(candidate: Candidate) -> str:
    """The first candidate and its scores, for people."""
    scores = ", ".join(f"{name} {candidate.scores[name]:g}" for name in (GAC, LR) if name in candidate.scores)
    return f"best: {candidate.passage.id} ({scores})"


def terms(settings: AgenticRSettings) -> MakerRequirements:
    return MakerRequirements(scorer=settings.lr, answers="gac=false" if settings.gac else "")


def open(settings: AgenticRSettings, parts: LabelResources) -> AgenticR:
    """Opens what the settings need, so that a missing resource is reported at once."""
    local = LocalRelevance(parts, settings.scoring) if settings.lr else None
    agent = Correctness.of(parts) if settings.gac else None
    return AgenticR(settings, parts, local, agent)
