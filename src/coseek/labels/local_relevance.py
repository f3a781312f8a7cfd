"""Local relevance: scores of a turn's candidates, window by window, each computed once and cached."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coseek.agents.search_turns import SearchTurn
from coseek.core.fingerprint import digest_of
from coseek.data.passage import Passage
from coseek.data.trajectory import Trajectory
from coseek.graders.factory import oracle
from coseek.graders.grading import BATCH
from coseek.graders.relevance import (
    CandidateList,
    GoldRelevance,
    ModelRelevance,
    Rating,
    RelevanceScorer,
    load_relevance_prompt,
)
from coseek.graders.sub_answer import SubAnswerModel, SubAnswers, load_sub_answer_prompt
from coseek.labels.label_folder import ScoreCache
from coseek.labels.resources import GOLD, ORACLE, LabelResources

LR = "lr"
UNREADABLE, UNSURE = "sub_answers_unreadable", "sub_answers_unsure"
"""Names in the counts: runs with unreadable sub-answers, and turns without a sure sub-answer."""


@dataclass(frozen=True, slots=True)
class RelevanceOptions:
    """How passages are scored."""

    window: int
    prompt: str
    sub_answer_prompt: str | None
    """`None`: no sub-answers."""
    max_tokens: int
    max_words: int


@dataclass(frozen=True, slots=True)
class NoScores:
    """Why the passages of a turn have no scores: a fault of the scorer, or an unreadable output."""

    fault: bool
    why: str


class LocalRelevance:
    """A relevance scorer with its caches."""

    def __init__(self, parts: LabelResources, scoring: RelevanceOptions) -> None:
        self.scoring, self.tally = scoring, parts.tally
        self.relevance = open_relevance(parts, scoring)
        self.kept: ScoreCache[Rating] = parts.score_cache(LR, Rating, self.relevance.identity, self.relevance.card)
        self.answerer = _open_answerer(parts, scoring)
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
        return digest_of(LR, self.relevance.identity, answerer, str(self.scoring.window))

    def score(
        self, turns: Sequence[SearchTurn], shown: Sequence[Sequence[Passage]]
    ) -> list[dict[str, float] | NoScores]:
        """Scores by passage id, for each turn. A window without scores leaves its whole turn without scores."""
        sub_answers = self._sub_answers(turns)
        size = self.scoring.window
        windows: list[tuple[int, CandidateList]] = []
        scores: list[dict[str, float] | NoScores] = [{} for _ in turns]
        for index, (turn, passages) in enumerate(zip(turns, shown, strict=True)):
            sub_answer = sub_answers[index]
            if isinstance(sub_answer, NoScores):
                scores[index] = sub_answer
                continue
            starts = range(0, len(passages), size)
            windows += [(index, CandidateList(turn, tuple(passages[at : at + size]), sub_answer)) for at in starts]
        for (index, _), rating in zip(windows, self._ratings([listed for _, listed in windows]), strict=True):
            scores[index] = _joined(scores[index], rating)
        return scores

    def _ratings(self, lists: Sequence[CandidateList]) -> list[Rating]:
        keys = [(*listed.turn.id.key, listed.digest) for listed in lists]
        return self.kept.complete(keys, lambda some: self.relevance.rate([lists[index] for index in some]), BATCH)

    def _sub_answers(self, turns: Sequence[SearchTurn]) -> list[str | None | NoScores]:
        """The sub-answer of each turn; one model call per run."""
        if self.answerer is None:
            return [None] * len(turns)
        trajectories = {(turn.question.id, turn.trajectory.seed): turn.trajectory for turn in turns}
        inferred = dict(zip(trajectories, self._inferred(self.answerer, list(trajectories.values())), strict=True))
        return [self._sub_answer(turn, inferred[turn.question.id, turn.trajectory.seed]) for turn in turns]

    def _sub_answer(self, turn: SearchTurn, inferred: SubAnswers) -> str | None | NoScores:
        if inferred.fault is not None:
            return NoScores(True, inferred.fault)
        sub_answer = inferred.answers[turn.search] if inferred.answers is not None else None
        self.tally.add(UNSURE, sub_answer is None)
        return sub_answer

    def _inferred(self, model: SubAnswerModel, trajectories: Sequence[Trajectory]) -> list[SubAnswers]:
        def infer(some: list[int]) -> list[SubAnswers]:
            fresh = model.infer([trajectories[index] for index in some])
            self.tally.add(UNREADABLE, sum(bool(sub_answers.unreadable) for sub_answers in fresh))
            return fresh

        assert self.answers is not None
        keys = [(trajectory.question.id, str(trajectory.seed), model.digest(trajectory)) for trajectory in trajectories]
        return self.answers.complete(keys, infer, BATCH)


def open_relevance(parts: LabelResources, scoring: RelevanceOptions) -> RelevanceScorer:
    """The scorer of `--scorer`."""
    if parts.scorer == ORACLE:
        return oracle().relevance(parts.oracle_world)
    if parts.scorer == GOLD:
        return GoldRelevance()
    prompt = load_relevance_prompt(scoring.prompt)
    return ModelRelevance(parts.writer, prompt, scoring.max_tokens, scoring.max_words, parts.tally)


def _open_answerer(parts: LabelResources, scoring: RelevanceOptions) -> SubAnswerModel | None:
    """The sub-answer model; `None` for the oracle and gold passages, which need none."""
    if parts.scorer in (ORACLE, GOLD) or scoring.sub_answer_prompt is None:
        return None
    prompt = load_sub_answer_prompt(scoring.sub_answer_prompt)
    return SubAnswerModel(parts.writer, prompt, scoring.max_tokens, scoring.max_words, parts.tally)


def _joined(scores: Mapping[str, float] | NoScores, rating: Rating) -> dict[str, float] | NoScores:
    """The scores of a turn with those of one more window. A fault takes precedence over an unreadable output, because
    the next start retries it."""
    if isinstance(scores, NoScores) and (scores.fault or rating.fault is None):
        return scores
    if rating.scores is None:
        return NoScores(rating.fault is not None, rating.fault or rating.unreadable)
    assert not isinstance(scores, NoScores)
    return {**scores, **rating.scores}
