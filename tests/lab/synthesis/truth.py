"""Whether a question made from passages alone is true by the facts of its world, and needs all of its hops.

It is *true* if every step of its path is a fact of the world that its phrase words, each step begins where the one
before it ends, no other fact fits the step, and the answers are names of what the last step leads to. It *needs all* if
by the facts no other passage joins two names of its path, and none of its own passages joins others than those of its
step.
"""

from collections import defaultdict
from itertools import pairwise

from coseek.data.question import PathStep, Question, gold_path
from coseek.lab.world.drawn_lexicon import lexicon_of
from coseek.lab.world.facts import Entity, Fact
from coseek.lab.world.world import World


class Truth:
    """The facts of a world, and what they say of a question."""

    def __init__(self, world: World) -> None:
        self._facts = world.oracle.facts
        self._by_name: defaultdict[str, list[Entity]] = defaultdict(list)
        for entity in self._facts.values():
            for name in entity.names:
                self._by_name[name].append(entity)
        lexicon = lexicon_of(world.settings)
        self._clauses = {
            relation.noun: [tuple(clause.split("{o}")) for clause in relation.clauses] for relation in lexicon.relations
        }
        self._joined: defaultdict[frozenset[str], set[str]] = defaultdict(set)
        for entity in self._facts.values():
            for fact in entity.facts:
                self._joined[frozenset((entity.id, fact.object_id or fact.value))].add(entity.id)
                told = self._stale(world, entity.id) if fact.apart else [entity.id]
                self._joined[frozenset((entity.id, self._known(fact.before)))].update(told)

    def _stale(self, world: World, ident: str) -> list[str]:
        return [passage for passage, whose in world.oracle.stale.items() if whose == ident]

    def _known(self, name: str) -> str:
        """The id of what a name names; the name itself for a literal or an ambiguous one."""
        entities = self._by_name.get(name, ())
        return entities[0].id if len(entities) == 1 else name

    def is_true(self, question: Question) -> bool:
        """Whether every step is a fact, and the last one leads to the answers alone."""
        path = gold_path(question)
        if [step.passage for step in path] != [*question.gold_ids] or question.hops != len(path):
            return False
        if any(self._known(step.target) != self._known(following.source) for step, following in pairwise(path)):
            return False
        last = self._facts.get(self._known(path[-1].target))
        accepted = set(last.names) if last is not None else {path[-1].target}
        return all(map(self._holds, path)) and set(question.answers) <= accepted

    def _holds(self, step: PathStep) -> bool:
        entity = self._facts.get(step.passage)  # a passage with an outdated fact is no entity's
        if entity is None or step.source not in entity.names:
            return False
        fitting = [fact for fact in entity.facts if self._words(fact, step)]
        return len(fitting) == 1 and self._known(fitting[0].value) == self._known(step.target)

    def _words(self, fact: Fact, step: PathStep) -> bool:
        """Whether a fact is worded by the phrase of a step: some clause of its relation ends with these words."""
        return any(
            f" {before.strip()}".removesuffix(" the").endswith(f" {step.phrase}")
            for before, _ in self._clauses[fact.noun]
        )

    def needs_all(self, question: Question) -> bool:
        """Whether each passage of the path is needed: no other one joins two of its names."""
        path = gold_path(question)
        names = [self._known(name) for name in (path[0].source, *(step.target for step in path))]
        for first, name in enumerate(names):
            for second in range(first + 1, len(names)):
                joining = self._joined.get(frozenset((name, names[second])), set())
                if joining != ({path[first].passage} if second == first + 1 else set()):
                    return False
        return True
