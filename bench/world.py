"""What one search finds in the laptop world "small", with BM25 and no agent, and what the scripted expert makes of it.

    python bench/world.py

Prints the size of the world and the time it takes to build, recall of the gold passages by kind of query, and the
share of questions that the expert answers.
"""

import random
import time
from collections.abc import Callable, Sequence
from statistics import mean

from coseek.agents.scripted.expert import ExpertAgent
from coseek.data.passage import Hit
from coseek.data.question import Question
from coseek.data.trajectory import Search
from coseek.models.model import EpisodeState
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.world.plan import Step, kind_of, plan_of
from coseek.world.world import World, WorldSettings, make_world

KS = (1, 2, 3)
"""Passages looked at; `report_queries` prints three columns."""
PASSAGES_PER_SEARCH = 2


def short_name(step: Step) -> str:
    """The last word of the mention that is part of a name."""
    return [word for word in step.mention.split() if word[0].isupper()][-1]


VIEWS: dict[str, Callable[[Step], str]] = {
    "name and relation": lambda step: f"{step.mention} {step.relation}",
    "name and type": lambda step: f"{step.mention} {step.word}",
    "name": lambda step: step.mention,
    "sub-question": lambda step: step.sub_question,
    "short name and relation": lambda step: f"{short_name(step)} {step.relation}",
}


def report_world() -> World:
    start = time.perf_counter()
    world = make_world(WorldSettings())
    build_s = time.perf_counter() - start
    start = time.perf_counter()
    make_world(WorldSettings(size="compact", seed=1, train=400, dev=0, test=0))
    compact_s = time.perf_counter() - start
    lengths = [len(passage.text.split()) for passage in world.corpus]
    asked = [question for questions in world.questions.values() for question in questions]
    texts = [passage.title + passage.text for passage in world.corpus] + [question.question for question in asked]
    entities, words = len(world.oracle.facts), set(" ".join(texts).split())
    print(f"{entities} entities, {len(world.corpus)} passages, {len(asked)} questions in {build_s:.2f} s")
    print(f"a throw-away world (compact, 400 questions) in {compact_s:.2f} s")
    print(f"{mean(lengths):.1f} words a passage, {max(lengths)} at most; {len(words)} distinct words")
    return world


def report_queries(retriever: Bm25, world: World) -> None:
    plans = [plan_of(question) for question in world.questions["dev"] if kind_of(question) != "constraint"]
    steps = [step for plan in plans for step in plan]
    by_alias = [step for step in steps if step.mention == world.oracle.facts[step.gold_id].alias]
    print(f"\n{'gold passage found by':40} {'k=1':>6} {'k=2':>6} {'k=3':>6}   searches")
    for name, group in (("", steps), (", by second name", by_alias)):
        for view, write in VIEWS.items():
            found = retriever.search([write(step) for step in group], max(KS))
            at = [mean(_has(row[:k], step.gold_id) for step, row in zip(group, found, strict=True)) for k in KS]
            print(f"{view + name:40} {at[0]:6.3f} {at[1]:6.3f} {at[2]:6.3f}   {len(group)}")


def _has(hits: Sequence[Hit], ident: str) -> bool:
    return ident in [hit.passage.id for hit in hits]


def group_of(question: Question) -> str:
    return kind_of(question) + (f" {question.hops} hop" if kind_of(question) == "composition" else "")


def report_raw(retriever: Bm25, questions: Sequence[Question]) -> None:
    groups: dict[str, list[tuple[Question, list[Hit]]]] = {}
    found = retriever.search([question.question for question in questions], max(KS))
    for question, hits in zip(questions, found, strict=True):
        groups.setdefault(group_of(question), []).append((question, hits))
    print(f"\n{'the question itself, k=3':40} {'all gold':>8} {'answer seen':>12}   questions")
    for name, rows in sorted(groups.items()):
        gold = mean(all(_has(hits, ident) for ident in question.gold_ids) for question, hits in rows)
        seen = mean(any(f" {answer} " in hit.passage.text for answer in question.answers for hit in hits)
                    for question, hits in rows)  # fmt: skip
        print(f"{name:40} {gold:8.3f} {seen:12.3f}   {len(rows)}")


def follow(expert: ExpertAgent, retriever: Bm25, question: Question) -> tuple[str, int]:
    """The expert's answer, and how often it searched."""
    searches: tuple[Search, ...] = ()
    while True:
        move = expert.write(EpisodeState(question, searches), random.Random(f"{question.id} {len(searches)}"))
        if move.answer is not None:
            return move.answer, len(searches)
        hits = retriever.search(move.queries, PASSAGES_PER_SEARCH)
        searches += tuple(Search(query, tuple(row)) for query, row in zip(move.queries, hits, strict=True))


def report_expert(retriever: Bm25, world: World) -> None:
    print(f"\n{'the expert, k=2':40} {'perfect':>8} {'searches':>9} {'faulty':>8} {'searches':>9}")
    groups: dict[str, list[Question]] = {"all": list(world.questions["dev"])}
    for question in world.questions["dev"]:
        groups.setdefault(group_of(question), []).append(question)
    for name, questions in sorted(groups.items()):
        columns = []
        for expert in (ExpertAgent.perfect(), ExpertAgent()):
            ends = [follow(expert, retriever, question) for question in questions]
            right = mean(world.oracle.judge(question, end[0]) for question, end in zip(questions, ends, strict=True))
            columns.append(f"{right:8.3f} {mean(end[1] for end in ends):9.2f}")
        print(f"{name:40} {' '.join(columns)}")


def main() -> None:
    world = report_world()
    retriever = Bm25.over(world.corpus)
    report_queries(retriever, world)
    report_raw(retriever, world.questions["dev"])
    report_expert(retriever, world)


if __name__ == "__main__":
    main()
