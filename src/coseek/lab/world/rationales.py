"""Rationales: how a question's answer follows from passages, in the form that a laptop model learns to write.

Each line names a passage by title and number before its fact, which binds the entity to its passage; without that, a
small network takes the relation of a wrong passage. After a fact of a chain comes the rest of the question, with the
value in its place, so that the next fact is always that of the innermost words. A small network finds the value of a
name, but not the name of a value. Therefore two dates are repeated, each followed by its name, and for two given values
the passages are read in order up to the one that states both (docs/LOG.md).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from coseek.core.files import JsonObject
from coseek.data.passage import Passage
from coseek.data.question import Question, Step, plan_of
from coseek.lab.world.passages import spaced

LIST = "list"
"""The kind of questions for several names."""


def kind_of(question: Question) -> str:
    """`composition`, `comparison`, `constraint` or `list`; empty for questions of no laptop world."""
    return str(question.meta.get("kind", ""))


def constraints_of(question: Question) -> list[JsonObject]:
    """`relation` and `value` of each constraint; empty for other questions."""
    constraints = question.meta.get("constraints", [])
    rows = constraints if isinstance(constraints, list) else []
    return [row for row in rows if isinstance(row, dict)]


def wanted(question: Question, step: Step) -> str:
    """What a step looks up, in words: `the RELATION of NAME`, the kind with its two values, or the step's own question
    if the plan is a gold path."""
    if not step.word:
        return step.sub_question
    if kind_of(question) == "constraint":
        values = " and ".join(f"{row['relation']} {row['value']}" for row in constraints_of(question))
        return f"the {step.relation} with {values}"
    return f"the {step.relation} of {step.mention}"


def listed(names: Sequence[str]) -> str:
    """`A , B and C`: several names, spaced as in passages."""
    return f"{' , '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def answer_of(question: Question, last: Step) -> str:
    """The answer as the last step writes it, or the question's own answer if its path ends elsewhere: comparisons
    along a gold path ask for another name, and lists for all values."""
    if kind_of(question) == LIST:
        return question.answers[0]
    if last.word or not question.answers or last.sub_answer in question.answers:
        return last.sub_answer
    return question.answers[0]


# Rationales

MARK = " Answer :"
"""Precedes the answer."""
NOW = " Now :"
"""Precedes the rest of the question."""
NEXT = " Next :"
"""Precedes what is to be looked up."""
MISSED = " Not found ."


@dataclass(frozen=True, slots=True)
class StatedFact:
    """What a passage states: the name that it is filed under, the relation and the value."""

    title: str
    relation: str
    value: str


def rationale(question: Question, passages: Sequence[Passage], facts: Mapping[str, Sequence[StatedFact]]) -> str:
    """The rationale of a question with a plan. Its gold passages are among `passages`, which are numbered from 1;
    `facts` are what passages state, by id."""
    if kind_of(question) == "constraint":
        return _conclusion([*_read_in_order(question, passages, facts)], plan_of(question)[0].sub_answer)
    return _along(question, {passage.id: (number, passage.title) for number, passage in enumerate(passages, 1)})


def recalled(question: Question) -> str:
    """The rationale of a composition or comparison whose facts are known: the same lines, without passages."""
    return _along(question, {step.gold_id: (None, step.entity) for step in plan_of(question)})


def _along(question: Question, sources: Mapping[str, tuple[int | None, str]]) -> str:
    """The line of each step, then the answer. `sources`: passage id → the number and the title that its line names."""
    plan = plan_of(question)
    lines = [step_line(step, *sources[step.gold_id]) for step in plan]
    if kind_of(question) != "comparison":
        return _conclusion(lines, answer_of(question, plan[-1]))
    verdict, answer = compared(question, plan, [sources[step.gold_id][1] for step in plan])
    return _conclusion([*lines, verdict], answer)


def _conclusion(lines: list[str], answer: str) -> str:
    return f"{''.join(lines)}{MARK}{spaced(answer)}"


def compared(question: Question, plan: Sequence[Step], titles: Sequence[str]) -> tuple[str, str]:
    """What follows from the lines of two steps, and the answer. `titles` are those of their passages."""
    if question.meta.get("compare") == "same":
        is_equal = plan[0].sub_answer == plan[1].sub_answer
        return (" the same .", "yes") if is_equal else (" not the same .", "no")
    names = [title.strip() for title in titles]
    dated_names = [f" {step.sub_answer} {name}" for step, name in zip(plan, names, strict=True)]
    first, last = sorted(range(len(plan)), key=lambda row: int(plan[row].sub_answer))
    order = f" {plan[first].sub_answer} is before {plan[last].sub_answer} ."
    return f"{' ,'.join(dated_names)} .{order}{dated_names[first]} .", names[first]


def _read_in_order(
    question: Question, passages: Sequence[Passage], facts: Mapping[str, Sequence[StatedFact]]
) -> Iterator[str]:
    """What each passage states of the first given relation, and where that is the given value, of the second; up to the
    gold passage."""
    first, second = ((str(row["relation"]), str(row["value"])) for row in constraints_of(question))
    for number, passage in enumerate(passages, 1):
        if passage.id in question.gold_ids:
            yield line(passage.title, number, first, second)
            return
        stated_values = {fact.relation: fact.value for fact in facts.get(passage.id, ())}
        if first[0] not in stated_values:
            yield f" {passage.title.strip()} # {number} , no {first[0]} ."
            continue
        relations = [first[0], second[0]] if stated_values[first[0]] == first[1] else [first[0]]
        facts_read = [(relation, stated_values[relation]) for relation in relations if relation in stated_values]
        yield line(passage.title, number, *facts_read)


def line(title: str, number: int | None, *facts: tuple[str, str]) -> str:
    """The line of one passage with its (relation, value) facts; without a number they are known from no passage."""
    stated = " ,".join(f" {relation} : {value}" for relation, value in facts)
    mark = "" if number is None else f" # {number}"
    return f" {title.strip()}{mark} ,{stated} ."


def fact_of(step: Step, title: str) -> tuple[str, str]:
    """Relation and value of a step, as the passage of this title states them: a step from the value to the name that
    the passage is filed under leads the other way."""
    return step.relation, step.mention if step.sub_answer == title.strip() else step.sub_answer


def step_line(step: Step, number: int | None, title: str) -> str:
    """The line of a step of a plan, then the rest of the question."""
    fact = line(title, number, fact_of(step, title))
    return f"{fact}{NOW}{step.rest}" if step.rest else fact
