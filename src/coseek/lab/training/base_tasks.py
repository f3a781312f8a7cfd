"""Base tasks: training tasks of a base model before any protocol, from worlds of drawn words.

Prompts contain passages and end with a cue that selects the task; targets are words without tags. `read` has the prompt
of the laptop generator, so that a base model can be used as one.

    read     the facts that lead to the answer, then the answer        " So :"
    drill    facts asked by name and relation, of entities alike       " So :"
    next     the facts found so far, then what to look up, or the answer; passages may be missing   " Then :"
    support  which passages support the answer                         " Support :"
    check    whether a claimed answer is right                         " Claim : … Check :"
    enough   whether the passages are enough to answer                 " Enough :"
    records  facts of random tokens, asked as a drill
    copy     a random sequence again, after a gap of random tokens
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Literal

from pydantic import Field, model_validator

from coseek.core.settings import Settings
from coseek.data.passage import Passage
from coseek.data.question import Question, plan_of
from coseek.data.trajectory import Trajectory
from coseek.graders.generator import Generator
from coseek.lab.training.examples import DRILL_FACTS, ExampleSampler, drill_of, trajectory_of
from coseek.lab.training.record_task import RecordTask
from coseek.lab.world.passages import spaced
from coseek.lab.world.rationales import MARK, NEXT, kind_of, rationale, step_line, wanted
from coseek.lab.world.world import World, WorldSettings, make_world
from coseek.models.model import Tokenizer
from coseek.training.sft.settings import Weight

Task = Literal["read", "drill", "next", "support", "check", "enough", "records", "copy"]
FIRST: dict[Task, float] = {"records": 0.85, "copy": 0.15}
"""Task → its share of the examples at the start."""
GROWING = 0.7
"""Share of the warm-up in which records grow."""
GIVING_WAY = 1 / 3
"""Share of the warm-up over which text then replaces them."""
CUES: dict[Task, str] = {
    "read": " So :", "drill": " So :", "next": " Then :", "support": " Support :", "check": " Check :",
    "enough": " Enough :",
}  # fmt: skip
"""Task → the end of its prompt."""
LIVE_WORLDS = 12
"""Number of worlds to draw from at any time; training moves on from the oldest one."""
GROWN = 0.2
"""Share of training, from the warm-up on, after which examples may have the maximum number of passages."""
FOLLOW_UPS = 4
"""Drills about the same passages after an example: more to learn from one context."""
MISSING = 0.6
"""Share of `next` and `enough` examples in which a passage of the plan is missing."""
COPY_LENGTHS = (6, 40)
COPY_GAPS = (0, 300)
COPY_ALPHABETS = (12, 200)
"""Minimum and maximum number of distinct tokens of a copy with few: one token does not determine its source."""
GIVEN = 4
"""Number of tokens of such a copy in the prompt."""
FEW = 0.6
"""Share of copies with few distinct tokens."""


class BaseTaskSettings(Settings):
    """The training tasks of a base model."""

    shares: dict[Task, Weight] = Field(
        default={
            "read": 0.36, "drill": 0.1, "next": 0.18, "support": 0.06, "check": 0.08, "enough": 0.06, "records": 0.12,
            "copy": 0.04,
        }
    )  # fmt: skip
    """Task → its share of the examples after the warm-up; a task without a share is left out."""
    worlds: int = Field(default=2000, ge=1)
    """Worlds in all, one after the other."""
    world: WorldSettings = WorldSettings(
        size="tiny", lexicon="drawn", train=300, dev=0, test=0, comparison=0.15, constraint=0.1, outdated=0.1
    )
    """Settings of a world; each has another seed."""
    passages: tuple[int, int] = (1, 8)
    """Fewest and most passages of an example, gold ones included."""
    warm_up: float = Field(default=0.1, ge=0.0, lt=0.5)
    """Share of training in which records and copies are alone."""

    @model_validator(mode="after")
    def _is_consistent(self) -> "BaseTaskSettings":
        if not 1 <= self.passages[0] <= self.passages[1]:
            raise ValueError("passages is the fewest and the most of an example, such as [1, 8]")
        if not any(self.shares.values()):
            raise ValueError("shares needs a task above 0")
        if self.warm_up and not any(self.shares.get(task) for task in FIRST):
            raise ValueError("a warm_up is made of records and copy; give one of them a share, or set warm_up=0")
        return self


@dataclass(frozen=True, slots=True)
class BaseExample:
    """A prompt, its target, and the passages in it."""

    shown: str
    written: str
    passages: tuple[Passage, ...]


@dataclass(frozen=True)
class BaseTasks:
    """Draws examples. A draw is a function of the share of training and the random generator alone."""

    settings: BaseTaskSettings
    seed: int
    tokenizer: Tokenizer
    vocabulary: int
    """Number of the tokenizer's ids."""
    generator: Generator
    """The generator whose prompt is used."""
    corpus: ExampleSampler | None = None
    """A user's corpus."""
    corpus_share: float = 0.0
    """Share of the examples with text from the corpus; the others are from drawn worlds."""

    def draw(self, done: float, rng: random.Random) -> Trajectory:
        """Draw an example at the share `done` of training."""
        shares = self.shares(done)
        task = rng.choices(list(shares), weights=list(shares.values()))[0]
        if task == "copy":
            return self._copy_trajectory(rng)
        if task == "records":
            return self._trajectory(task, self.records.draw(self._growth(done), rng))
        if self.corpus is not None and rng.random() < self.corpus_share:
            sampler = self.corpus
        else:
            sampler = self.sampler(int(done * self.settings.worlds) + rng.randrange(LIVE_WORLDS))
        example = self.example(task, sampler, done, rng)
        turns = [(example.shown, example.written)]
        for _ in range(FOLLOW_UPS):
            turns += self._drill_turns(sampler, example.passages, rng)
        encode = self.tokenizer.encode_data
        return self._trajectory(task, [(encode(shown), encode(written)) for shown, written in turns])

    def shares(self, done: float) -> dict[Task, float]:
        """Task → its share of the examples, at first of records and copies only."""
        warm_up = self.settings.warm_up
        late_weight = min(1.0, max(0.0, (done / warm_up - 1.0) / GIVING_WAY)) if warm_up else 1.0
        shares = {task: share for task, share in self.settings.shares.items() if share}
        return {task: late_weight * share + (1 - late_weight) * FIRST.get(task, 0.0) for task, share in shares.items()}

    def _growth(self, done: float) -> float:
        """How far records have grown, from 0 to 1."""
        return min(1.0, done / (self.settings.warm_up * GROWING)) if self.settings.warm_up else 1.0

    @cached_property
    def records(self) -> RecordTask:
        return RecordTask(self.tokenizer.encode_data, self.vocabulary)

    @cached_property
    def sampler(self) -> Callable[[int], ExampleSampler]:
        """Number of a world → its sampler."""

        @lru_cache(maxsize=LIVE_WORLDS + 1)
        def make(number: int) -> ExampleSampler:
            return ExampleSampler.of_world(self.world(number), "train")

        return make

    def world(self, number: int) -> World:
        """The world of this number."""
        return make_world(self.settings.world.model_copy(update={"seed": self.world_seed(number)}))

    def world_seed(self, number: int) -> int:
        """The seed of the world of this number."""
        return random.Random(f"{self.seed}/base world/{number}").getrandbits(31)

    def example(self, task: Task, sampler: ExampleSampler, done: float, rng: random.Random) -> BaseExample:
        """One example of a task with text."""
        fewest, most = self.settings.passages
        growth = min(1.0, max(0.0, done - self.settings.warm_up) / GROWN)
        count = rng.randint(fewest, fewest + round((most - fewest) * growth))
        if task == "drill":
            drill = sampler.drill(count, rng)
            return self._example(drill.question, drill.passages, CUES[task], drill.written)
        if task == "support":
            question = rng.choice(sampler.supported)
            passages = sampler.passages(question, max(count, 2), rng)
            numbers = [number for number, passage in enumerate(passages, 1) if passage.id in question.gold_ids]
            written = "".join(f" # {number}" for number in numbers) + " ."
            return self._example(question, passages, CUES[task], written)
        question = sampler.draw_question(rng)
        if task in ("next", "enough"):
            return self._partial_example(task, sampler, question, count, rng)
        example = sampler.example_of(question, count, rng)
        facts, _, answer = example.written.partition(MARK)
        if task == "check":
            right = rng.random() < 0.5
            claim = answer if right else spaced(self._wrong_answer(sampler, question, rng))
            verdict = " right ." if right else " wrong ."
            return self._example(question, example.passages, f" Claim :{claim} .{CUES[task]}", f"{facts}{verdict}")
        return self._example(question, example.passages, CUES[task], example.written)

    def _example(self, question: Question, passages: tuple[Passage, ...], cue: str, written: str) -> BaseExample:
        """An example with the generator's prompt, which ends with another cue."""
        shown = self.generator.context(question.question, passages).prompt
        return BaseExample(shown.removesuffix(CUES["read"]) + cue, written, passages)

    def _drill_turns(
        self, sampler: ExampleSampler, passages: tuple[Passage, ...], rng: random.Random
    ) -> list[tuple[str, str]]:
        """A drill about the same passages, for some of their facts."""
        numbered = enumerate(passages, 1)
        facts = [(number, fact) for number, passage in numbered for fact in sampler.facts.get(passage.id, ())]
        if not facts:
            return []
        drill = drill_of(rng.sample(facts, min(len(facts), DRILL_FACTS)))
        return [(f" Question : {drill.question.question}{CUES['drill']}", drill.written)]

    def _partial_example(
        self, task: Task, sampler: ExampleSampler, question: Question, count: int, rng: random.Random
    ) -> BaseExample:
        """An example in which the passages of some steps may be missing."""
        plan = plan_of(question)
        all_passages = sampler.passages(question, max(count, 2), rng)
        # The first steps are found; passages of later ones may be among the others by chance.
        found_count = rng.randrange(len(plan)) if rng.random() < MISSING else len(plan)
        found_ids = {step.gold_id for step in plan[:found_count]}
        missing_ids = {step.gold_id for step in plan[found_count:]} - found_ids
        shown_passages = tuple(passage for passage in all_passages if passage.id not in missing_ids)
        numbers = {passage.id: number for number, passage in enumerate(shown_passages, 1)}
        titles = {passage.id: passage.title for passage in shown_passages}
        complete = all(step.gold_id in numbers for step in plan)
        if complete:
            written = rationale(question, shown_passages, sampler.facts)
            facts = written.partition(MARK)[0]
        else:
            facts = "".join(step_line(step, numbers[step.gold_id], titles[step.gold_id]) for step in plan[:found_count])
            written = f"{facts}{NEXT} {wanted(question, plan[found_count])} ."
        if task == "enough":
            written = f"{facts}{' yes .' if complete else ' no .'}"
        return self._example(question, shown_passages, CUES[task], written)

    def _wrong_answer(self, sampler: ExampleSampler, question: Question, rng: random.Random) -> str:
        """An answer of the same type that is wrong."""
        if set(question.answers) <= {"yes", "no"}:
            return "no" if "yes" in question.answers else "yes"
        plan = plan_of(question)
        if kind_of(question) == "comparison":
            return next(step.mention for step in plan if step.mention not in question.answers)
        wrong = [value for value in sampler.values[plan[-1].relation] if value not in question.answers]
        return rng.choice(wrong) if wrong else plan[0].mention

    def _copy_trajectory(self, rng: random.Random) -> Trajectory:
        """Random tokens, a gap, and the tokens again. The prompt has enough of the copy to determine its source."""
        length, gap = rng.randint(*COPY_LENGTHS), rng.randint(*COPY_GAPS) if rng.random() < 0.9 else 0
        has_small_alphabet = rng.random() < FEW
        # The first two ids are padding and end of text.
        any_token = partial(rng.randrange, 2, self.vocabulary)
        alphabet = [any_token() for _ in range(rng.randint(*COPY_ALPHABETS))] if has_small_alphabet else ()
        tokens = [rng.choice(alphabet) if alphabet else any_token() for _ in range(length + gap)]
        given_count = GIVEN if has_small_alphabet else 1
        return self._trajectory("copy", [([*tokens, *tokens[:given_count]], tokens[given_count:length])], ends=False)

    def _trajectory(self, task: Task, turns: Sequence[tuple[list[int], list[int]]], ends: bool = True) -> Trajectory:
        """A trajectory of prompts and targets; with `ends`, each target ends with the end of text."""
        end = [self.tokenizer.eos_id] if ends else []
        ended = [(shown, [*written, *end]) for shown, written in turns]
        return trajectory_of(ended, Question(task, "", hops=0), "base", self.tokenizer)
