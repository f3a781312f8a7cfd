"""Agentic-R: a passage is good for a search if it answers the query and leads the agent to the right answer.

For every search turn (paper 000, section 4.1):

1. The current retriever finds the candidates.
2. LR, 0 to 100: how well each answers the query, by one look at `window` of them (`coseek.graders.relevance`).
3. GAC, 0 or 1: whether the agent ends with the right answer when it goes on from that passage alone
   (`coseek.labels.answer_correctness`).
4. The candidates are ranked by (GAC, LR), equals as the retriever has them. The first is the positive if its GAC is 1
   and its LR at least `min_lr`; otherwise the turn gives no label (`no-positive`).
5. The negatives are drawn from all other candidates, which are ranked below it, but for copies of the positive.

GAC is only asked for while it can change the positive, and that is the first candidate by falling LR whose GAC is 1
(the rule and why it gives the same labels: `coseek.labels.positives`). No negative depends on a GAC.

`ties: code` is the published program's rule where the paper takes the single best: every candidate that equals the
best in both scores is a positive, the first three of them, each in a label set of its own. `gac: false` ranks by LR
alone, and `lr: false` by GAC alone (the paper's two ablations).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from pydantic import Field, model_validator

from coseek.agents.search_turns import SearchTurn
from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.data.passage import Passage
from coseek.labels.answer_correctness import GAC, Correctness
from coseek.labels.candidates import find_candidates
from coseek.labels.label_set import Candidate, DroppedTurn, LabelSet
from coseek.labels.local_relevance import LR, LocalRelevance, NoScores, RelevanceOptions
from coseek.labels.maker import Labelled, MakerRequirements
from coseek.labels.negatives import not_equal_to, pick_negatives
from coseek.labels.positives import Asked, Ties, decide_all_positives
from coseek.labels.resources import LabelResources


class AgenticRSettings(Settings):
    """The paper's numbers."""

    candidates: int = Field(default=20, ge=2)
    """Passages of the retriever that are weighed for a turn."""
    lr: bool = True
    """Local relevance counts; without it, passages are ranked by whether the agent ends right."""
    gac: bool = True
    """Global answer correctness counts; without it, passages are ranked by relevance alone."""
    min_lr: int = Field(default=60, ge=0, le=100)
    """The relevance that a positive has at least."""
    ties: Ties = "paper"
    """`paper`: the first of equals is the positive; `code`: the first three, each in a label set of its own."""
    negatives: int = Field(default=15, ge=1)
    """Negatives of a label set; with the positive, the paper's 16."""
    window: int = Field(default=20, ge=1)
    """Passages that the scorer sees together: 20, or 10 for a model that loses its way in long lists."""
    sub_answer: bool = True
    """A model that scores is told what the search was to find, where it can infer that from the whole run."""
    scorer_prompt: str = "relevance"
    """The prompt of a model that scores: ours by name, or a YAML file."""
    sub_answer_prompt: str = "sub-answer"
    """The prompt that infers sub-answers: ours by name, or a YAML file."""
    max_tokens: int = Field(default=512, ge=1)
    """Tokens that the scorer may write."""
    max_words: int = Field(default=200, ge=1)
    """Words of one passage that the scorer is shown."""
    exhaustive: bool = False
    """Continue the agent from every candidate, also where that cannot change the labels."""
    seed: int = 0
    """Of the draw of negatives."""

    @model_validator(mode="after")
    def _ranks_by_something(self) -> "AgenticRSettings":
        if not (self.lr or self.gac):
            raise ValueError("without lr and gac nothing tells passages apart; leave one of them on")
        return self

    @property
    def scoring(self) -> RelevanceOptions:
        prompt = self.sub_answer_prompt if self.sub_answer else None
        return RelevanceOptions(self.window, self.scorer_prompt, prompt, self.max_tokens, self.max_words)


SETTINGS = AgenticRSettings


@dataclass(frozen=True, slots=True)
class _Weighed:
    """A turn with its candidates, and what is known of them, by passage id."""

    turn: SearchTurn
    candidates: tuple[Candidate, ...]
    relevance: Mapping[str, float]
    correct: dict[str, float] = field(default_factory=dict)

    @property
    def passages(self) -> list[Passage]:
        return [candidate.passage for candidate in self.candidates]

    def ranked(self) -> tuple[Candidate, ...]:
        """With their scores, by (GAC, LR); a GAC that nobody asked for stands between 1 and 0."""
        return tuple(sorted(map(self._scored, self.candidates), key=_place))

    def _scored(self, candidate: Candidate) -> Candidate:
        ident = candidate.passage.id
        known = {name: of[ident] for name, of in ((LR, self.relevance), (GAC, self.correct)) if ident in of}
        return replace(candidate, scores={**candidate.scores, **known})


def _place(candidate: Candidate) -> tuple[float, float, int]:
    return -candidate.scores.get(GAC, 0.5), -candidate.scores.get(LR, 0.0), candidate.rank


@dataclass(frozen=True)
class AgenticR:
    """The maker."""

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

    def label(self, turns: Sequence[SearchTurn]) -> Iterator[Labelled]:
        weighed: list[_Weighed] = []
        # Without an accepted answer nobody can say whether the agent was right.
        told = [turn for turn in turns if turn.question.answers or self.agent is None]
        yield from (
            DroppedTurn(turn.id, "no-answer") for turn in turns if self.agent is not None and not turn.question.answers
        )
        for one in self._weighed(told):
            if isinstance(one, _Weighed):
                weighed.append(one)
            else:
                yield one
        for place, positives in self._decided(weighed):
            if positives is not None:
                yield from self._labels(weighed[place], positives)

    def _weighed(self, turns: Sequence[SearchTurn]) -> Iterator[_Weighed | DroppedTurn]:
        """Candidates with their relevance. A turn whose search or scorer was at fault is left out."""
        found: list[tuple[SearchTurn, tuple[Candidate, ...]]] = []
        searched = find_candidates(self.parts.retriever, turns, self.settings.candidates, self.parts.tally)
        for turn, candidates in zip(turns, searched, strict=True):
            if candidates is None:
                continue
            if len(candidates) < 2:
                yield DroppedTurn(turn.id, "too-few", f"the search found {len(candidates)}")
            else:
                found.append((turn, candidates))
        shown = [[candidate.passage for candidate in candidates] for _, candidates in found]
        scores = self._relevance([turn for turn, _ in found], shown)
        for (turn, candidates), known in zip(found, scores, strict=True):
            if not isinstance(known, NoScores):
                yield _Weighed(turn, candidates, known)
            elif not known.fault:
                yield DroppedTurn(turn.id, "unreadable", known.why)

    def _relevance(
        self, turns: Sequence[SearchTurn], shown: Sequence[Sequence[Passage]]
    ) -> Sequence[Mapping[str, float] | NoScores]:
        return [{} for _ in turns] if self.local is None else self.local.score(turns, shown)

    def _decided(self, weighed: Sequence[_Weighed]) -> Iterator[tuple[int, tuple[int, ...] | None]]:
        """Each turn with its positives, as places among its candidates; `None` for a fault."""

        def continued(asked: Sequence[Asked]) -> list[bool | None]:
            if self.agent is None:
                return [True] * len(asked)
            wanted = [(weighed[turn].turn, weighed[turn].passages[place]) for turn, place in asked]
            scores = self.agent.tell(wanted)
            for (turn, _), score in zip(asked, scores, strict=True):
                if score.value is not None:
                    weighed[turn].correct[score.passage_id] = score.value
            return [None if score.value is None else score.value == 1 for score in scores]

        # Without LR all are alike, and the retriever's order decides.
        least = float(self.settings.min_lr)
        relevance_TC = [[one.relevance.get(passage.id, least) for passage in one.passages] for one in weighed]
        return decide_all_positives(
            relevance_TC, continued, ties=self.settings.ties, least=least, exhaustive=self.settings.exhaustive
        )

    def _labels(self, one: _Weighed, positives: Sequence[int]) -> Iterator[Labelled]:
        turn, settings = one.turn, self.settings
        chosen = [one.passages[place] for place in positives]
        pool = [candidate.passage.id for candidate in not_equal_to(one.candidates, chosen)]
        if not chosen or not pool:
            yield DroppedTurn(turn.id, "no-negatives" if chosen else "no-positive", _best(one.ranked()[0]))
            return
        for copy, passage in enumerate(chosen):
            yield LabelSet(
                turn=turn.id,
                question=turn.question,
                query=turn.query,
                candidates=one.ranked(),
                positive=passage.id,
                negatives=pick_negatives(turn.id, pool, settings.negatives, settings.seed, copy),
                copy=copy,
            )


def _best(candidate: Candidate) -> str:
    """The first candidate and its scores, for people."""
    scores = ", ".join(f"{name} {candidate.scores[name]:g}" for name in (GAC, LR) if name in candidate.scores)
    return f"best: {candidate.passage.id} ({scores})"


def terms(settings: AgenticRSettings) -> MakerRequirements:
    return MakerRequirements(scorer=settings.lr, answers="gac=false" if settings.gac else "")


def open(settings: AgenticRSettings, parts: LabelResources) -> AgenticR:
    """What the settings need is asked for here, so that what is missing is said at once."""
    local = LocalRelevance(parts, settings.scoring) if settings.lr else None
    agent = Correctness.of(parts) if settings.gac else None
    return AgenticR(settings, parts, local, agent)
