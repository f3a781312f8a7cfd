"""Expert: the scripted demonstrator. It knows the plan of a laptop world's question, or the gold path of another, and
not the answer.

It states a fact only after a search has found the passage with it, one hop per search, in short sentences of one form:
what was found, then what is needed next. Its mistakes are deliberate and can be set, so that a policy warm-started on
its demonstrations can still improve. It declines only what the world has marked as unanswerable, after searches that
missed.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field

from coseek.agents.actions import NOT_FOUND
from coseek.agents.scripted_agent import Move
from coseek.core.settings import Settings
from coseek.data.question import Question
from coseek.data.trajectory import Search
from coseek.models.model import EpisodeState
from coseek.world.lexicon import LAPTOP
from coseek.world.passages import spaced
from coseek.world.plan import Step, answer_of, constraints_of, kind_of, plan_of, wanted


class ExpertSettings(Settings):
    """The expert's habits, and the rates of its deliberate mistakes."""

    question_first: float = Field(default=0.0, ge=0, le=1)
    """Share of questions that it searches as they stand before it looks for a fact. A small policy copies a question
    more surely than it picks a name out of it."""
    stop_early: float = Field(default=0.5, ge=0, le=1)
    """Share of multi-step questions that it answers before the last step, from what it has found."""
    guess_comparisons: bool = True
    """Whether comparisons are broken off as well, with a guess between the two names."""
    bad_query: float = Field(default=0.2, ge=0, le=1)
    """Share of searches with an underspecified query."""
    blind_guess: float = Field(default=0.04, ge=0, le=1)
    """Share of questions that it answers without searching."""
    give_up: float = Field(default=0.5, ge=0, le=1)
    """Probability of giving up after a search that missed, instead of searching again with another query."""
    retries: int = Field(default=2, ge=0)
    """Other queries tried for one fact before it gives up in any case."""
    max_searches: int = Field(default=8, ge=1)
    """Searches after which it answers from what it has found."""
    restate: bool = False
    """Behind a fact write the question that is left, or the answer when nothing is left, and in comparisons each name
    right behind its value: a small policy then copies what it needs next from the words before, instead of counting the
    hops. A demonstration that breaks off does not: so RL can unlearn to break off, and still ends short questions."""


PROMPT_TEMPLATE = "laptop"
NEEDS = "the plan of a laptop world's question, or a gold path (questions made from passages, or 2Wiki's)"

PERFECT = ExpertSettings(stop_early=0, bad_query=0, blind_guess=0, give_up=0)


class ExpertAgent:
    """A scripted agent for questions with a plan or a path; others are refused."""

    def __init__(self, settings: ExpertSettings | None = None) -> None:
        self.settings = settings or ExpertSettings()

    @classmethod
    def perfect(cls) -> "ExpertAgent":
        """The expert without deliberate mistakes: an upper bound for the world and retriever."""
        return cls(PERFECT)

    def write(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """Return the next move; equal state and `rng` give an equal move."""
        move = self._move(so_far, rng)
        return replace(move, selected=_worth(so_far)) if so_far.searches else move

    def conclude(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """Answer from what was found so far, at least with the title found first."""
        plan = plan_of(so_far.question)
        done, _ = progress(plan, so_far.searches)
        if done == len(plan):
            return _conclude(so_far.question, plan, self.settings.restate)
        return _give_up(so_far.question, plan, done, so_far.searches, rng)

    def _move(self, so_far: EpisodeState, rng: random.Random) -> Move:
        question, searches = so_far.question, so_far.searches
        plan = plan_of(question)
        done, misses = progress(plan, searches)
        if not searches and rng.random() < self.settings.blind_guess:
            return Move(spaced("I guess ."), answer=spaced(_blind_guess(question, plan, rng)))
        first = self.settings.question_first
        if first and not searches and rng.random() < first:  # 0 draws nothing: demonstrations stay as they were
            return Move(spaced("First the question ."), queries=(spaced(question.question.strip()),))
        if not done and misses and searches[0].query.strip() == question.question.strip():
            misses -= 1  # it asked for no fact
        if done == len(plan):
            return _conclude(question, plan, self.settings.restate)
        if len(searches) >= self.settings.max_searches or self._gives_up(misses, rng):
            return _give_up(question, plan, done, searches, rng)
        if done and not misses and rng.random() < self._stops_here(question, len(plan)):
            answer = _last_resort(question, plan, done, searches, rng)
            return Move(spaced(_found(question, plan[done - 1])), answer=spaced(answer))
        bad = rng.random() < self.settings.bad_query
        query = _bad_query(plan[done], rng) if bad else _query(question, plan[done], misses)
        return Move(spaced(self._report(question, plan, done, misses)), queries=(spaced(query),))

    def _report(self, question: Question, plan: Sequence[Step], done: int, misses: int) -> str:
        """State what was found, or that nothing was, and what is needed next."""
        needed = f"I need {_wanted(question, plan[done])} ."
        if misses:
            return f"Not found . {needed}"
        if not done:
            return needed
        rest = plan[done - 1].rest if self.settings.restate else ""
        left = f"Now :{rest} " if rest else ""
        return f"{_found(question, plan[done - 1])} {left}{needed}"

    def _gives_up(self, misses: int, rng: random.Random) -> bool:
        return misses > self.settings.retries or (misses > 0 and rng.random() < self.settings.give_up)

    def _stops_here(self, question: Question, steps: int) -> float:
        """The chance per step that adds up to `stop_early` over a question: 1 − (1 − p)^(1 / (steps − 1))."""
        if kind_of(question) == "comparison" and not self.settings.guess_comparisons:
            return 0.0
        return float(1 - (1 - self.settings.stop_early) ** (1 / (steps - 1)))


def make() -> ExpertAgent:
    """Make the expert without deliberate mistakes."""
    return ExpertAgent.perfect()


def progress(plan: Sequence[Step], searches: Sequence[Search]) -> tuple[int, int]:
    """Count the steps whose passage was found (at most one per search), and the searches missed since then."""
    done = misses = 0
    for search in searches:
        if done == len(plan):
            break
        if any(hit.passage.id == plan[done].gold_id for hit in search.hits):
            done, misses = done + 1, 0
        else:
            misses += 1
    return done, misses


def _worth(so_far: EpisodeState) -> tuple[str, ...]:
    """The gold passages found so far."""
    wanted = {step.gold_id for step in plan_of(so_far.question)}
    found = (hit.passage.id for search in so_far.searches for hit in search.hits)
    return tuple(dict.fromkeys(ident for ident in found if ident in wanted))


def _wanted(question: Question, step: Step) -> str:
    return wanted(question, step) if step.word else f": {wanted(question, step)}"


def _found(question: Question, step: Step) -> str:
    if not step.word:
        return f"{step.mention} , {step.relation} : {step.sub_answer} ."
    return f"T{wanted(question, step)[1:]} is {step.sub_answer} ."


def _query(question: Question, step: Step, misses: int) -> str:
    """Query name and relation; after a miss, name and type, or a made step's question; then the name as an alias."""
    if kind_of(question) == "constraint":
        values = " ".join(str(row["value"]) for row in constraints_of(question))
        return f"{step.relation} {values}" if misses % 2 == 0 else values
    # The expert cannot know a person's type before it has read the passage.
    # The kind is the beginning of a passage's id.
    word = "" if step.gold_id.startswith("person-") else f" {step.word}"
    if misses % 3 == 1 and not step.word:
        return step.sub_question
    return step.mention + (f" {step.relation}", word, " also known as")[misses % 3]


def _bad_query(step: Step, rng: random.Random) -> str:
    """Query half of the name with the relation, or the relation alone."""
    words = step.mention.split()
    half = words[len(words) // 2 :] if len(words) > 1 and rng.random() < 0.7 else []
    return " ".join([*half, step.relation])


def _conclude(question: Question, plan: Sequence[Step], restate: bool) -> Move:
    if kind_of(question) != "comparison":
        fact, answer = _found(question, plan[-1]), answer_of(question, plan[-1])
        return Move(spaced(f"{fact} Now : {answer} ." if restate else fact), answer=spaced(answer))
    verdict, answer = _compare(question, plan)
    found = [_found(question, step) for step in plan]
    if restate:
        named = {step.mention: f"{step.sub_answer} {step.mention}" for step in plan}
        found = [found[-1], f"{' , '.join(named.values())} ."]
        verdict = verdict.replace("They", " and ".join(step.sub_answer for step in plan))
        verdict += f" {named[answer]} ." if answer in named else ""
    return Move(spaced(" ".join([*found, verdict])), answer=spaced(answer))


def _compare(question: Question, plan: Sequence[Step]) -> tuple[str, str]:
    if question.meta.get("compare") == "same":
        alike = plan[0].sub_answer == plan[1].sub_answer
        return ("They are the same .", "yes") if alike else ("They are not the same .", "no")
    first, last = sorted(plan, key=lambda step: step.sub_answer)
    return f"{first.sub_answer} is before {last.sub_answer} .", first.mention


def _give_up(question: Question, plan: Sequence[Step], done: int, searches: Sequence[Search],
             rng: random.Random) -> Move:  # fmt: skip
    """Decline a question that is marked as unanswerable, and guess the answer of any other."""
    answer = _last_resort(question, plan, done, searches, rng) if question.answerable else NOT_FOUND
    return Move(spaced(f"I can not find {_wanted(question, plan[done])} ."), answer=spaced(answer))


def _last_resort(question: Question, plan: Sequence[Step], done: int, searches: Sequence[Search],
                 rng: random.Random) -> str:  # fmt: skip
    """Answer with the last fact found, else the latest first-ranked title, else a name in the question."""
    if kind_of(question) == "comparison":
        return _guess_comparison(question, plan, rng)
    if done:
        return plan[done - 1].sub_answer
    titles = [hit.passage.title.strip() for search in searches for hit in search.hits[:1]]
    return titles[-1] if titles else plan[0].mention


def _guess_comparison(question: Question, plan: Sequence[Step], rng: random.Random) -> str:
    return rng.choice(("yes", "no") if question.meta.get("compare") == "same" else (plan[0].mention, plan[1].mention))


def _blind_guess(question: Question, plan: Sequence[Step], rng: random.Random) -> str:
    """Guess an answer of the right type; a name in the question where the type has no names here."""
    if kind_of(question) == "comparison":
        return _guess_comparison(question, plan, rng)
    relation = LAPTOP.by_noun.get(plan[-1].relation)
    target = relation.target if relation else plan[-1].relation
    return LAPTOP.draw_name(target, rng) if target in LAPTOP.pools else plan[-1].mention
