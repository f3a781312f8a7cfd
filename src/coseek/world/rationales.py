"""Rationales: how a question's answer follows from passages, in the form that a laptop model learns to write.

Each line names a passage by title and number before its fact, which binds the entity to its passage; without that, a
small network takes the relation of a wrong passage. Behind a fact of a chain stands what is still asked, with the value
in its place, so that the next fact is always that of the innermost words. What a name is found by stands before it: two
dates are written again with their names behind them, and the values of a constraint before the passage that states
both. With the name first, small networks named either of the two dates' names, and one passage in five.
"""

from collections.abc import Mapping

from coseek.data.question import Question
from coseek.world.passages import spaced
from coseek.world.plan import Step, answer_of, constraints_of, kind_of, plan_of

MARK = " Answer :"
"""Precedes the answer."""
NOW = " Now :"
"""Precedes what is still asked."""


def rationale(question: Question, number_of: Mapping[str, int], titles: Mapping[str, str]) -> str:
    """The rationale of a question with a plan; `number_of` and `titles` are those of its gold passages by id."""
    plan = plan_of(question)
    if kind_of(question) == "constraint":
        facts = " ,".join(f" {row['relation']} : {row['value']}" for row in constraints_of(question))
        title = titles[plan[0].gold_id].strip()
        return conclusion([f"{facts} : {title} # {number_of[plan[0].gold_id]} ."], plan[0].sub_answer)
    lines = [step_line(step, number_of[step.gold_id], titles[step.gold_id]) for step in plan]
    if kind_of(question) != "comparison":
        return conclusion(lines, answer_of(question, plan[-1]))
    if question.meta.get("compare") == "same":
        alike = plan[0].sub_answer == plan[1].sub_answer
        return conclusion([*lines, " the same ." if alike else " not the same ."], "yes" if alike else "no")
    dated = [f" {step.sub_answer} {titles[step.gold_id].strip()}" for step in plan]
    first, last = sorted(plan, key=lambda step: step.sub_answer)
    earlier = dated[plan.index(first)]
    verdict = f"{' ,'.join(dated)} . {first.sub_answer} is before {last.sub_answer} .{earlier} ."
    return conclusion([*lines, verdict], titles[first.gold_id].strip())


def line(title: str, number: int, fact: tuple[str, str]) -> str:
    """The line of one passage with a (relation, value) fact."""
    return f" {title.strip()} # {number} , {fact[0]} : {fact[1]} ."


def fact_of(step: Step, title: str) -> tuple[str, str]:
    """Relation and value of a step, as the passage of this title states them: a step from the value to the name that
    the passage is filed under leads the other way."""
    return step.relation, step.mention if step.sub_answer == title.strip() else step.sub_answer


def step_line(step: Step, number: int, title: str) -> str:
    """The line of a step of a plan, and what is asked behind it."""
    fact = line(title, number, fact_of(step, title))
    return f"{fact}{NOW}{step.rest}" if step.rest else fact


def conclusion(lines: list[str], answer: str) -> str:
    """The lines, then the answer."""
    return f"{''.join(lines)}{MARK}{spaced(answer)}"
