"""Expert: the scripted demonstrator. It knows the plan of a laptop world's question, or the gold path of another, and
not the answer.

It states a fact only after a search has found its passage, one hop per search, in the lines of a rationale
(`lab/world/rationales.py`), which the shipped base model has learnt to write: the last fact, then what is needed next.
Its deliberate mistakes are settings, so that a policy warm-started on its demonstrations can still improve. It declines
only questions that the world has marked as unanswerable, after searches that missed.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from coseek.agents.episode import shown_documents
from coseek.agents.scripted_agent import Move
from coseek.agents.tag import NOT_FOUND
from coseek.core.settings import Settings
from coseek.data.question import KNOWN, Question, Step, plan_of
from coseek.data.trajectory import Search
from coseek.lab.training.drills import make_drills
from coseek.lab.world.lexicon import laptop_lexicon
from coseek.lab.world.passages import spaced
from coseek.lab.world.rationales import (
    LIST,
    MISSED,
    NEXT,
    NOW,
    answer_of,
    compared,
    constraints_of,
    kind_of,
    line,
    listed,
    step_line,
    wanted,
)
from coseek.models.model import EpisodeState


@dataclass(frozen=True, slots=True)
class Shown:
    """A passage as the agent saw it."""

    title: str
    number: int | None
    """Its number among those of the turn, from 1; `None` for what is known without a passage."""


class ExpertSettings(Settings):
    """The expert's habits, and the rates of its deliberate mistakes."""

    question_first: float = Field(default=0.0, ge=0, le=1)
    """Share of questions whose own text is its first query. A small policy copies a question more reliably than it
    picks a name out of it."""
    stop_early: float = Field(default=0.5, ge=0, le=1)
    """Share of multi-step questions that it answers before the last step, from the facts found so far."""
    guess_comparisons: bool = True
    """Whether it also stops early in comparisons, with a guess between the two names."""
    bad_query: float = Field(default=0.2, ge=0, le=1)
    """Share of searches with an underspecified query."""
    blind_guess: float = Field(default=0.04, ge=0, le=1)
    """Share of questions that it answers without searching."""
    recall: float = Field(default=0.75, ge=0, le=1)
    """Share of the questions marked as known (a world with `known`) that it answers from memory, without a search."""
    give_up: float = Field(default=0.5, ge=0, le=1)
    """Probability of giving up after a search that missed, instead of searching again with another query."""
    retries: int = Field(default=2, ge=0)
    """Maximum number of further queries for one fact before it gives up."""
    max_searches: int = Field(default=8, ge=1)
    """Searches after which it answers from the facts found so far."""
    restate: bool = False
    """Write the remaining question after each fact, and the answer after the last one: a small policy then copies what
    it needs next from the words before, instead of counting the hops. A demonstration that stops early does not, so
    that RL can unlearn to stop early, and still ends short questions."""


SETTINGS = ExpertSettings
PROMPT_TEMPLATE = "laptop"
NEEDS = "the plan of a laptop world's question, or a gold path (questions made from passages, or 2Wiki's)"

PERFECT = ExpertSettings(stop_early=0, bad_query=0, blind_guess=0, recall=0, give_up=0)
"""No deliberate mistakes: an upper bound for the world and retriever."""


class ExpertAgent:
    """A scripted agent for questions with a plan or a path; `plan_of` raises `DataError` for any other."""

    def __init__(self, settings: ExpertSettings | None = None) -> None:
        self.settings = settings or ExpertSettings()

    def write(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """Return the next move; equal state and `rng` give an equal move."""
        move = self._move(so_far, rng)
        return replace(move, selected=_found_gold_ids(so_far)) if so_far.searches else move

    def conclude(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """Answer from the facts found so far, else with the title ranked first."""
        plan = plan_of(so_far.question)
        if so_far.question.meta.get(KNOWN) and not so_far.searches:
            return self._recall(so_far.question, plan)
        passages, _ = progress(plan, so_far.searches)
        if len(passages) == len(plan):
            return self._conclude(so_far.question, plan, passages)
        return _give_up(so_far.question, plan, len(passages), so_far.searches, rng)

    def _move(self, so_far: EpisodeState, rng: random.Random) -> Move:
        question, searches = so_far.question, so_far.searches
        plan = plan_of(question)
        passages, misses = progress(plan, searches)
        done_steps = len(passages)
        if not searches and question.meta.get(KNOWN) and rng.random() < self.settings.recall:
            return self._recall(question, plan)
        if not searches and rng.random() < self.settings.blind_guess:
            return Move(spaced("I guess ."), answer=spaced(_blind_guess(question, plan, rng)))
        first = self.settings.question_first
        if first and not searches and rng.random() < first:  # at 0 nothing is drawn: older seeds give the same
            return Move(spaced("First the question ."), queries=(spaced(question.question.strip()),))
        if not done_steps and misses and searches[0].query.strip() == question.question.strip():
            misses -= 1  # the question itself is a query for no fact
        if done_steps == len(plan):
            return self._conclude(question, plan, passages)
        failed = misses > self.settings.retries or len(searches) >= self.settings.max_searches
        if failed or (misses > 0 and rng.random() < self.settings.give_up):
            return _give_up(question, plan, done_steps, searches, rng)
        if done_steps and not misses and rng.random() < self._stop_chance(question, len(plan)):
            answer = _last_resort(question, plan, done_steps, searches, rng)
            return Move(_fact_line(question, plan[done_steps - 1], passages[-1], restate=False), answer=spaced(answer))
        is_bad = rng.random() < self.settings.bad_query
        query = _bad_query(plan[done_steps], rng) if is_bad else _query(question, plan[done_steps], misses)
        return Move(self._report_progress(question, plan, passages, misses), queries=(spaced(query),))

    def _report_progress(self, question: Question, plan: Sequence[Step], passages: Sequence[Shown], misses: int) -> str:
        """The last fact, or that a search missed, then what is needed next."""
        need = f"{NEXT} {wanted(question, plan[len(passages)])} ."
        if misses:
            return f"{MISSED}{need}"
        return "".join([*self._facts(question, plan, passages)[-1:], need])

    def _stop_chance(self, question: Question, steps: int) -> float:
        """The chance per step that adds up to `stop_early` over a question: 1 − (1 − p)^(1 / (steps − 1))."""
        if kind_of(question) == "comparison" and not self.settings.guess_comparisons:
            return 0.0
        return float(1 - (1 - self.settings.stop_early) ** (1 / (steps - 1)))

    def _conclude(self, question: Question, plan: Sequence[Step], passages: Sequence[Shown]) -> Move:
        """State the last fact, for a comparison all facts, and answer."""
        facts = self._facts(question, plan, passages)
        if kind_of(question) == "comparison":
            verdict, answer = compared(question, plan, [shown.title for shown in passages])
            return Move("".join([*facts, verdict]), answer=spaced(answer))
        answer = answer_of(question, plan[-1])
        left = f"{NOW}{spaced(answer)} ." if self.settings.restate else ""
        return Move(f"{facts[-1]}{left}", answer=spaced(answer))

    def _recall(self, question: Question, plan: Sequence[Step]) -> Move:
        """State every fact from memory, and answer."""
        passages = [Shown(step.entity, None) for step in plan]
        conclusion = self._conclude(question, plan, passages)
        if kind_of(question) == "comparison":
            return conclusion
        return replace(conclusion, thought="".join([*self._facts(question, plan, passages[:-1]), conclusion.thought]))

    def _facts(self, question: Question, plan: Sequence[Step], passages: Sequence[Shown]) -> list[str]:
        """The lines of the steps that have a passage."""
        restate = self.settings.restate
        return [_fact_line(question, step, shown, restate) for step, shown in zip(plan, passages, strict=False)]


def make(settings: ExpertSettings = PERFECT) -> ExpertAgent:
    """Make the expert, without deliberate mistakes by default."""
    return ExpertAgent(settings)


drills = make_drills
"""Called by warm starts with a throw-away world of the expert's demonstrations."""


def progress(plan: Sequence[Step], searches: Sequence[Search]) -> tuple[list[Shown], int]:
    """The passages found for the first steps, at most one per search, and the number of searches that missed since."""
    passages: list[Shown] = []
    misses = 0
    for search in searches:
        if len(passages) == len(plan):
            break
        hit = next((hit for hit in search.hits if hit.passage.id == plan[len(passages)].gold_id), None)
        if hit is None:
            misses += 1
            continue
        of_turn = shown_documents([other for other in searches if other.turn == search.turn])
        number = next(number for number, (_, shown) in enumerate(of_turn, 1) if shown.passage.id == hit.passage.id)
        passages.append(Shown(hit.passage.title, number))
        misses = 0
    return passages, misses


def _found_gold_ids(so_far: EpisodeState) -> tuple[str, ...]:
    """The gold passages found so far."""
    gold_ids = {step.gold_id for step in plan_of(so_far.question)}
    ids = (hit.passage.id for search in so_far.searches for hit in search.hits)
    return tuple(dict.fromkeys(ident for ident in ids if ident in gold_ids))


def _fact_line(question: Question, step: Step, shown: Shown, restate: bool) -> str:
    """The line of a step; with `restate`, followed by the rest of the question."""
    if kind_of(question) == "constraint":
        pairs = ((str(row["relation"]), str(row["value"])) for row in constraints_of(question))
        return line(shown.title, shown.number, *pairs)
    return step_line(step if restate else replace(step, rest=""), shown.number, shown.title)


def _query(question: Question, step: Step, misses: int) -> str:
    """Query name and relation; after a miss, name and type, or the step's own question where there is no type; then the
    name as an alias."""
    if kind_of(question) == "constraint":
        values = " ".join(str(row["value"]) for row in constraints_of(question))
        return f"{step.relation} {values}" if misses % 2 == 0 else values
    # The expert cannot know a person's type (occupation) before it has read the passage. Ids begin with the kind.
    word = "" if step.gold_id.startswith("person-") else f" {step.word}"
    if misses % 3 == 1 and not step.word:
        return step.sub_question
    return step.mention + (f" {step.relation}", word, " also known as")[misses % 3]


def _bad_query(step: Step, rng: random.Random) -> str:
    """Query half of the name with the relation, or the relation alone."""
    words = step.mention.split()
    half_name = words[len(words) // 2 :] if len(words) > 1 and rng.random() < 0.7 else []
    return " ".join([*half_name, step.relation])


def _give_up(question: Question, plan: Sequence[Step], done_steps: int, searches: Sequence[Search],
             rng: random.Random) -> Move:  # fmt: skip
    """Decline a question that is marked as unanswerable, and guess the answer of any other."""
    answer = _last_resort(question, plan, done_steps, searches, rng) if question.answerable else NOT_FOUND
    return Move(spaced(f"I can not find : {wanted(question, plan[done_steps])} ."), answer=spaced(answer))


def _last_resort(question: Question, plan: Sequence[Step], done_steps: int, searches: Sequence[Search],
                 rng: random.Random) -> str:  # fmt: skip
    """Answer with the last fact found (a list: with all), else the latest first-ranked title, else a name in the
    question."""
    if kind_of(question) == "comparison":
        return _guess_comparison(question, plan, rng)
    if done_steps:
        values = [step.sub_answer for step in plan[:done_steps]]
        return listed(values) if kind_of(question) == LIST else values[-1]
    titles = [hit.passage.title.strip() for search in searches for hit in search.hits[:1]]
    return titles[-1] if titles else plan[0].mention


def _guess_comparison(question: Question, plan: Sequence[Step], rng: random.Random) -> str:
    return rng.choice(("yes", "no") if question.meta.get("compare") == "same" else (plan[0].mention, plan[1].mention))


def _blind_guess(question: Question, plan: Sequence[Step], rng: random.Random) -> str:
    """Guess an answer of the right type; a name in the question where the type has no names here."""
    if kind_of(question) == "comparison":
        return _guess_comparison(question, plan, rng)
    lexicon = laptop_lexicon()
    relation = lexicon.by_noun.get(plan[-1].relation)
    target = relation.target if relation else plan[-1].relation
    return lexicon.draw_name(target, rng) if target in lexicon.pools else plan[-1].mention
