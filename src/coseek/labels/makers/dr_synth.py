"""DR-Synth: the agent searches again, and a ranker that knows the answer orders the passages of every search.

AgentIR, section 3.3 and appendix B. At each search turn of a new run:

1. the retriever returns its best 50, through its own view (the paper's sees the query alone);
2. the question's gold passages are put first;
3. a ranker that knows the query, the question and its answers orders all of them;
4. the first is the positive, the last seven are hard negatives. The agent reads the first five.

Only runs with a right answer are kept: by strict EM, or by another `outcome`. Choices that the paper leaves open: a
retrieved gold passage moves to the front and keeps its rank; a copy of the positive under another id is no negative;
where the ranker's order is unreadable the agent reads the retriever's, and the turn is dropped. A run with a fault, the
ranker's included, gives no labels and is repeated at the next start.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pydantic import Field, model_validator

from coseek.agents.limits import Limits
from coseek.agents.run_questions import row_keys_of, run_questions
from coseek.agents.search_turns import SearchTurn
from coseek.core.errors import DataError, RetrieverError, SettingError
from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings, dump_settings
from coseek.data.answers import cover_match, exact_match
from coseek.data.grade_cache import Verdict
from coseek.data.question import Question
from coseek.data.run import RowKey, Run
from coseek.data.trajectory import Trajectory
from coseek.graders.factory import oracle
from coseek.graders.grading import BATCH
from coseek.graders.judge import Claim, Judge
from coseek.graders.ranker import GoldRanker, ModelRanker, Ranker, load_rank_prompt
from coseek.graders.structured_output import FAULT
from coseek.labels.label_folder import ScoreCache, TextStore
from coseek.labels.label_set import Candidate, DroppedTurn, LabelSet, not_equal_to
from coseek.labels.maker import RUN, Labelled, MakerRequirements, StoredTurns
from coseek.labels.oracle_retriever import OracleRanking, OracleRetriever, OracleSearch, StoredRanking
from coseek.labels.resources import GOLD, ORACLE, LabelResources, by_trajectory

METHOD = "dr-synth"


class DrSynthSettings(Settings):
    """Ranking of the agent's searches, and labels from it."""

    depth: int = Field(default=50, ge=2)
    """Passages of the retriever that are ranked at every search."""
    gold: bool = True
    """Put the question's gold passages first."""
    shown: int = Field(default=5, ge=1)
    """Number of passages that the agent reads, from the top of the order."""
    negatives: int = Field(default=7, ge=1)
    """Number of hard negatives, from the end of the order."""
    reject: bool = True
    """Drop the turns of runs whose answer is wrong. Agents that write no answer have only wrong ones."""
    outcome: Literal["em", "cover", "judge"] = "em"
    """A right answer: equal to an accepted answer, one that contains an accepted answer, or what the judge says. The
    answers of deep research are sentences, which are almost never equal to an accepted answer."""
    judge: str | None = None
    """The judge of outcome=judge: a model folder, a URL, a YAML file, or the folder of a laptop world."""
    lenient_orders: bool = False
    """Repair an order that misses up to a fifth of the passages or repeats some: repeated ones are dropped, missing
    ones appended in the retriever's order. Otherwise the turn of such an order is dropped."""
    samples: int = Field(default=1, ge=1)
    """Runs per question; several differ only where the agent samples (`--temperature`)."""
    seed: int = 0
    """Seed of the runs."""
    prompt: str = "oracle-rank"
    """Prompt of a ranking model: a built-in one by name, or a YAML file."""
    window: int | None = Field(default=None, ge=2)
    """Passages per call of a ranking model, in windows from the last to the first (RankGPT); all when not set."""
    step: int = Field(default=10, ge=1)
    """Shift of the window; less than `window`."""
    passage_words: int = Field(default=400, ge=1)
    """Words of a passage in the prompt of a ranking model: about what the agent is shown of a document (512 tokens).
    AgentIR's program passes texts whole; its judge reads 50 of them at once."""
    answer_tokens: int = Field(default=512, ge=1)
    """Tokens that a ranking model may generate: about six per passage, more for models that reason first."""

    @model_validator(mode="after")
    def _is_consistent(self) -> "DrSynthSettings":
        if self.shown > self.depth:
            raise SettingError(f"shown={self.shown} passages are more than the depth={self.depth} that are ranked")
        if self.window is not None and self.step >= self.window:
            raise SettingError(f"a step of {self.step} skips passages; it must be less than window={self.window}")
        if (self.outcome == "judge") != (self.judge is not None):
            raise SettingError("outcome=judge and judge=MODEL need each other")
        return self


@dataclass(frozen=True)
class DrSynth:
    """Implements `LabelMaker` and `RolloutMaker`."""

    settings: DrSynthSettings
    parts: LabelResources

    @cached_property
    def ranker(self) -> Ranker:
        parts, settings = self.parts, self.settings
        if parts.scorer == ORACLE:
            return oracle().ranker(parts.oracle_world)
        if parts.scorer == GOLD:
            return GoldRanker()
        return ModelRanker(
            parts.writer,
            load_rank_prompt(settings.prompt),
            settings.answer_tokens,
            settings.passage_words,
            parts.tally,
            settings.window,
            settings.step,
            settings.lenient_orders,
        )

    @cached_property
    def rankings(self) -> OracleSearch:
        settings, retriever = self.settings, self.parts.retriever
        identity = digest_of(self.ranker.identity, retriever.identity, str(settings.depth), str(settings.gold))
        card = {**self.ranker.card, "retriever": retriever.name, "depth": settings.depth, "gold": settings.gold}
        cache = self.parts.score_cache("rankings", StoredRanking, identity, card)
        texts = TextStore(self.parts.folder / "scores" / "texts.jsonl")
        return OracleSearch(retriever, self.ranker, cache, texts, settings.depth, settings.gold)

    @cached_property
    def judge(self) -> Judge | None:
        name = self.settings.judge
        return None if name is None else self.parts.judge(name)

    @cached_property
    def verdicts(self) -> ScoreCache[Verdict]:
        assert self.judge is not None
        return self.parts.score_cache("verdicts", Verdict, self.judge.identity, self.judge.card)

    @cached_property
    def identity(self) -> str:
        # The identities of ranker and judge hold their prompts and weights.
        settings = self.settings.model_dump_json(exclude={"prompt", "judge"})
        judge = "" if self.judge is None else self.judge.identity
        return digest_of(METHOD, settings, self.rankings.cache.identity, self.parts.agent_identity, judge)

    @property
    def limits(self) -> Limits:
        return self.parts.limits.with_passages(self.settings.shown)

    def left(self, questions: Sequence[Question]) -> list[RowKey]:
        finished_keys, settings = self._run(questions).finished_keys(), self.settings
        return [key for key in row_keys_of(questions, settings.seed, settings.samples) if key not in finished_keys]

    def roll_out(
        self,
        questions: Sequence[Question],
        tell: Callable[[int, int], None],
        only: Collection[RowKey] | None = None,
    ) -> StoredTurns:
        """Turns by question in the given order, then by seed."""
        settings, agent, run = self.settings, self.parts.agent, self._run(questions)
        retriever = OracleRetriever(self.rankings, questions)
        run_questions(
            run,
            agent,
            retriever,
            questions,
            self.limits,
            seed=settings.seed,
            samples=settings.samples,
            overlap=retriever.concurrency > 1,
            only=only,
            tell=tell,
        )
        run.arrange(question.id for question in questions)
        question_ids = {question.id for question in questions}
        faults = sum(stored.fault is not None for stored in run.trajectories() if stored.question.id in question_ids)
        self.parts.tally.add(FAULT + RUN, faults)
        return StoredTurns(run, agent.protocol, question_ids)

    def _run(self, questions: Sequence[Question]) -> Run:
        """The run of these questions without trajectories with a fault. Raises `UserError` for questions that cannot
        be labelled, and for a folder that was begun with other settings."""
        without_gold = next((question for question in questions if not question.gold_ids), None)
        if self.parts.scorer == GOLD and without_gold is not None:
            raise DataError(
                f"question {without_gold.id!r} names no gold passages, which --scorer gold needs; take questions with "
                "gold_ids, or another scorer"
            )
        if self.settings.gold and any(question.gold_ids for question in questions):
            _ = self.parts.corpus  # raises where there is no corpus, before the first search
        folder = self.parts.folder / "run"
        if not (folder / "run.yaml").exists():
            made_by = {"method": METHOD, "identity": self.identity, **dump_settings(self.settings)}
            return Run.create(folder, {"labels": made_by, "limits": dump_settings(self.limits)})
        run = Run(folder)
        stored = run.settings.get("labels")
        if not isinstance(stored, dict) or stored.get("identity") != self.identity:
            raise SettingError(f"{folder} was begun with other settings or parts; use the same ones, or another --out")
        run.drop_faults()
        return run

    def label(self, turns: Iterable[SearchTurn]) -> Iterator[Labelled]:
        for batch in by_trajectory(turns, BATCH):
            yield from self._labels([turn for turn in batch if turn.trajectory.fault is None])

    def _labels(self, turns: Sequence[SearchTurn]) -> Iterator[Labelled]:
        """The labels of turns of runs without a fault; the next start repeats the others."""
        trajectories = {(turn.question.id, turn.trajectory.seed): turn.trajectory for turn in turns}
        right = dict(zip(trajectories, self._are_right(list(trajectories.values())), strict=True))
        for turn in turns:
            is_right = right[turn.question.id, turn.trajectory.seed]
            if is_right is None:
                continue
            if not is_right:
                yield DroppedTurn(turn.id, "wrong-answer", turn.trajectory.answer or "")
                continue
            ranking = self._ranking(turn)
            if ranking is None:
                continue
            if ranking.unreadable:
                yield DroppedTurn(turn.id, "unreadable", ranking.unreadable)
            else:
                yield label_of(turn, ranking.candidates, self.settings.negatives)

    def _are_right(self, trajectories: Sequence[Trajectory]) -> list[bool | None]:
        """Whether the turns of each run may give labels; `None` for a fault of the judge, which is counted."""
        if not self.settings.reject:
            return [True] * len(trajectories)
        if self.judge is None:
            match = exact_match if self.settings.outcome == "em" else cover_match
            return [match(trajectory.answer, trajectory.question.answers) for trajectory in trajectories]
        pairs = [(trajectory.question, trajectory.answer) for trajectory in trajectories]
        claims = [Claim(question, answer) for question, answer in pairs if answer is not None]
        keys = [claim.key for claim in claims]
        judge = self.judge
        verdicts = self.verdicts.complete(keys, lambda rows: judge.judge([claims[row] for row in rows]), BATCH)
        for verdict in verdicts:
            self.parts.tally.fail("judge", verdict.fault)
        right = {key[:2]: verdict.right for key, verdict in zip(keys, verdicts, strict=True)}
        return [answer is not None and right[question.id, answer] for question, answer in pairs]

    def _ranking(self, turn: SearchTurn) -> OracleRanking | None:
        """The ranking of a turn; `None` for a fault of the ranker or the retriever."""
        try:
            ranking = self.rankings.of([(turn.question, turn.query)])[0]
        except RetrieverError as error:
            self.parts.tally.fail("retriever", str(error))
            return None
        return ranking if ranking.fault is None else None


def label_of(turn: SearchTurn, ordered: Sequence[Candidate], negatives: int) -> Labelled:
    """The label of a turn from the first and the last candidates of an order."""
    others = not_equal_to(ordered, [ordered[0].passage]) if ordered else []
    if not others:
        return DroppedTurn(turn.id, "too-few", f"{len(ordered)} passages were found")
    return LabelSet.ranked(turn, ordered, others[-negatives:])


SETTINGS = DrSynthSettings
VIEW = "reasoning+query@code"


def terms(settings: DrSynthSettings) -> MakerRequirements:
    return MakerRequirements(scorer=True, answers="reject=false" if settings.reject else "", rolls_out=True)


def open(settings: DrSynthSettings, parts: LabelResources) -> DrSynth:
    return DrSynth(settings, parts)
