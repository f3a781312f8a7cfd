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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pydantic import Field, model_validator

from coseek.agents.search_turns import SearchTurn
from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.data.passage import Passage
from coseek.graders.factory import oracle
from coseek.graders.grading import BATCH
from coseek.graders.relevance import (
    CandidateList,
    GoldRelevance,
    ModelRelevance,
    Rating,
    RelevanceScorer,
    SubAnswerModel,
    SubAnswers,
    load_relevance_prompt,
    load_sub_answer_prompt,
)
from coseek.labels.answer_correctness import GAC, Correctness, Feed, PositiveChoice, Ties, TurnCorrectness
from coseek.labels.label_folder import ScoreCache
from coseek.labels.label_set import Candidate, Candidates, DroppedTurn, find_candidates, label_sets, not_equal_to
from coseek.labels.maker import Labelled, MakerRequirements
from coseek.labels.resources import GOLD, ORACLE, LabelResources


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
    def _check_scores(self) -> "AgenticRSettings":
        if not (self.lr or self.gac):
            raise ValueError("without lr and gac passages have no score; leave one of them on")
        return self


SETTINGS = AgenticRSettings
VIEW = "question+query"


LR = "lr"
UNREADABLE, UNSURE = "sub_answers_unreadable", "sub_answers_unsure"
"""Names in the counts: runs with unreadable sub-answers, and turns without a certain sub-answer."""


@dataclass(frozen=True)
class AgenticR:
    """Implements `LabelMaker`."""

    settings: AgenticRSettings
    parts: LabelResources
    local: "LocalRelevance | None"
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
        answerable_turns = [turn for turn in turns if turn.question.answers or self.agent is None]
        yield from (
            DroppedTurn(turn.id, "no-answer") for turn in turns if self.agent is not None and not turn.question.answers
        )
        dropped: list[DroppedTurn] = []
        slowest = self.parts.writer if self.local is not None and self.local.is_model else self.parts.retriever
        with self.parts.ahead(self._score_turns, answerable_turns, slowest, self.agent is not None) as ahead:

            def feed(wait: bool) -> list[TurnCorrectness] | None:
                batches = ahead.take(wait)
                if batches is None:
                    return None
                results = [result for batch in batches for result in batch]
                dropped.extend(result for result in results if isinstance(result, DroppedTurn))
                return [result for result in results if isinstance(result, TurnCorrectness)]

            for decided in self._decide(feed):
                yield from self._labels(decided)
                yield from dropped
                dropped.clear()
        yield from dropped

    def _score_turns(self, turns: Sequence[SearchTurn]) -> list[TurnCorrectness | DroppedTurn]:
        """The turns, with the LR of their candidates. Turns with a fault of the search or the scorer are left out."""
        pairs: list[tuple[SearchTurn, Candidates]] = []
        results: list[TurnCorrectness | DroppedTurn] = []
        candidate_lists = find_candidates(self.parts.retriever, turns, self.settings.candidates, self.parts.tally)
        for turn, candidates in zip(turns, candidate_lists, strict=True):
            if candidates is None:
                continue
            if len(candidates) < 2:
                results.append(DroppedTurn(turn.id, "too-few", f"the search found {len(candidates)}"))
            else:
                pairs.append((turn, candidates))
        passages = [[candidate.passage for candidate in candidates] for _, candidates in pairs]
        scores: Sequence[Mapping[str, float] | NoScores] = [{} for _ in pairs]
        if self.local is not None:
            scores = self.local.score([turn for turn, _ in pairs], passages)
        for (turn, candidates), relevance in zip(pairs, scores, strict=True):
            if not isinstance(relevance, NoScores):
                scored_candidates = [_with_score(candidate, LR, relevance) for candidate in candidates]
                results.append(TurnCorrectness(turn, scored_candidates, self._choice(scored_candidates)))
            elif not relevance.fault:
                results.append(DroppedTurn(turn.id, "unreadable", relevance.why))
        return results

    def _choice(self, candidates: Sequence[Candidate]) -> PositiveChoice:
        # Without LR all candidates are tied, and the retriever's order decides.
        min_lr = float(self.settings.min_lr)
        relevance_C = [candidate.scores.get(LR, min_lr) for candidate in candidates]
        choice = PositiveChoice(relevance_C, self.settings.ties, min_lr, self.settings.exhaustive)
        if self.agent is None:  # as if every answer were right
            for index in range(len(candidates)):
                choice.learn(index, True)
        return choice

    def _decide(self, feed: Feed) -> Iterator[TurnCorrectness]:
        """The turns, each when its positives are chosen."""
        if self.agent is not None:
            yield from self.agent.decide(feed)
            return
        while (batch := feed(True)) is not None:
            yield from batch

    def _labels(self, decided: TurnCorrectness) -> Iterator[Labelled]:
        turn, settings, positives = decided.turn, self.settings, decided.choice.positives
        if positives is None:  # a branch with a fault, which the next start repeats
            return
        correct = {ident: score.value for ident, score in decided.scores.items() if score.value is not None}
        ranked = sorted((_with_score(candidate, GAC, correct) for candidate in decided.candidates), key=_sort_key)
        chosen = [decided.candidates[index].passage for index in positives]
        pool = [candidate.passage.id for candidate in not_equal_to(decided.candidates, chosen)]
        if not chosen or not pool:
            yield DroppedTurn(turn.id, "no-negatives" if chosen else "no-positive", _describe_best(ranked[0]))
            return
        yield from label_sets(turn, ranked, chosen, pool, settings.negatives, settings.seed)


def _with_score(candidate: Candidate, name: str, scores: Mapping[str, float]) -> Candidate:
    """The candidate with its score by passage id, if there is one."""
    ident = candidate.passage.id
    return replace(candidate, scores={**candidate.scores, name: scores[ident]}) if ident in scores else candidate


def _sort_key(candidate: Candidate) -> tuple[float, float, int]:
    """Sort key by (GAC, LR); a candidate without GAC ranks between 1 and 0."""
    return -candidate.scores.get(GAC, 0.5), -candidate.scores.get(LR, 0.0), candidate.rank


def _describe_best(candidate: Candidate) -> str:
    """The first candidate and its scores, for people."""
    scores = ", ".join(f"{name} {candidate.scores[name]:g}" for name in (GAC, LR) if name in candidate.scores)
    return f"best: {candidate.passage.id} ({scores})"


# Local relevance: scores of a turn's candidates, window by window, each computed once and cached.


@dataclass(frozen=True, slots=True)
class NoScores:
    """Why the passages of a turn have no scores: a fault of the scorer, or an unreadable output."""

    fault: bool
    why: str


class LocalRelevance:
    """A relevance scorer with its caches."""

    def __init__(self, parts: LabelResources, settings: AgenticRSettings) -> None:
        self.settings, self.tally = settings, parts.tally
        self.relevance = _open_relevance(parts, settings)
        self.cache: ScoreCache[Rating] = parts.score_cache(LR, Rating, self.relevance.identity, self.relevance.card)
        self.answerer = _open_answerer(parts, settings)
        self.answers: ScoreCache[SubAnswers] | None = None
        if self.answerer is not None:
            self.answers = parts.score_cache("sub-answers", SubAnswers, self.answerer.identity, self.answerer.card)

    @property
    def is_model(self) -> bool:
        return isinstance(self.relevance, ModelRelevance)

    @property
    def identity(self) -> str:
        """A digest of everything that the scores depend on besides turns and passages."""
        answerer = self.answerer.identity if self.answerer is not None else ""
        return digest_of(LR, self.relevance.identity, answerer, str(self.settings.window))

    def score(
        self, turns: Sequence[SearchTurn], lists: Sequence[Sequence[Passage]]
    ) -> list[dict[str, float] | NoScores]:
        """Scores by passage id, for each turn. A window without scores leaves its whole turn without scores."""
        sub_answers = self._sub_answers(turns)
        size = self.settings.window
        windows: list[tuple[int, CandidateList]] = []
        scores: list[dict[str, float] | NoScores] = [{} for _ in turns]
        for index, (turn, passages) in enumerate(zip(turns, lists, strict=True)):
            sub_answer = sub_answers[index]
            if isinstance(sub_answer, NoScores):
                scores[index] = sub_answer
                continue
            starts = range(0, len(passages), size)
            windows += [(index, CandidateList(turn, tuple(passages[at : at + size]), sub_answer)) for at in starts]
        keys = [(*window.turn.id.key, window.digest) for _, window in windows]
        ratings = self.cache.complete(keys, lambda rows: self.relevance.rate([windows[row][1] for row in rows]), BATCH)
        for (index, _), rating in zip(windows, ratings, strict=True):
            scores[index] = _merge_scores(scores[index], rating)
        return scores

    def _sub_answers(self, turns: Sequence[SearchTurn]) -> list[str | None | NoScores]:
        """The sub-answer of each turn; one model call per run."""
        model = self.answerer
        if model is None or self.answers is None:
            return [None] * len(turns)
        by_run = {(turn.question.id, turn.trajectory.seed): turn.trajectory for turn in turns}
        trajectories = [*by_run.values()]

        def infer(indices: list[int]) -> list[SubAnswers]:
            results = model.infer([trajectories[index] for index in indices])
            self.tally.add(UNREADABLE, sum(bool(sub_answers.unreadable) for sub_answers in results))
            return results

        keys = [(ident, str(seed), model.digest(trajectory)) for (ident, seed), trajectory in by_run.items()]
        inferred_by_run = dict(zip(by_run, self.answers.complete(keys, infer, BATCH), strict=True))
        return [self._sub_answer(turn, inferred_by_run[turn.question.id, turn.trajectory.seed]) for turn in turns]

    def _sub_answer(self, turn: SearchTurn, sub_answers: SubAnswers) -> str | None | NoScores:
        if sub_answers.fault is not None:
            return NoScores(True, sub_answers.fault)
        sub_answer = sub_answers.answers[turn.search] if sub_answers.answers is not None else None
        self.tally.add(UNSURE, sub_answer is None)
        return sub_answer


def _open_relevance(parts: LabelResources, settings: AgenticRSettings) -> RelevanceScorer:
    """The scorer of `--scorer`."""
    if parts.scorer == ORACLE:
        return oracle().relevance(parts.oracle_world)
    if parts.scorer == GOLD:
        return GoldRelevance()
    prompt = load_relevance_prompt(settings.scorer_prompt)
    return ModelRelevance(parts.writer, prompt, settings.max_tokens, settings.max_words, parts.tally)


def _open_answerer(parts: LabelResources, settings: AgenticRSettings) -> SubAnswerModel | None:
    """The sub-answer model; `None` for the oracle and gold passages, which need none."""
    if parts.scorer in (ORACLE, GOLD) or not settings.sub_answer:
        return None
    prompt = load_sub_answer_prompt(settings.sub_answer_prompt)
    return SubAnswerModel(parts.writer, prompt, settings.max_tokens, settings.max_words, parts.tally)


def _merge_scores(scores: Mapping[str, float] | NoScores, rating: Rating) -> dict[str, float] | NoScores:
    """The scores of a turn with those of one more window. A fault takes precedence over an unreadable output, because
    the next start retries it."""
    if isinstance(scores, NoScores) and (scores.fault or rating.fault is None):
        return scores
    if rating.scores is None:
        return NoScores(rating.fault is not None, rating.fault or rating.unreadable)
    assert not isinstance(scores, NoScores)
    return {**scores, **rating.scores}


def terms(settings: AgenticRSettings) -> MakerRequirements:
    return MakerRequirements(scorer=settings.lr, answers="gac=false" if settings.gac else "")


def open(settings: AgenticRSettings, parts: LabelResources) -> AgenticR:
    """Opens what the settings need, so that a missing resource is reported at once."""
    local = LocalRelevance(parts, settings) if settings.lr else None
    agent = Correctness.of(parts) if settings.gac else None
    return AgenticR(settings, parts, local, agent)
