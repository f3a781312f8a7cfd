"""The questions of a laptop world, each with one right answer and the plan that finds it.

A *composition* chains one to four relations from its anchor. A *comparison* compares one relation of two anchors. A
*constraint* question asks for the only entity with two values; its anchor is the first value. A *list* asks for one
relation of several anchors. No entity is an anchor in two splits; other entities are shared.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import product
from string import ascii_uppercase

from coseek.core.errors import SettingError
from coseek.core.files import Json, JsonObject
from coseek.data.question import KNOWN, Question, Step, plan_of, with_options
from coseek.lab.world.facts import Entity, Fact, Facts
from coseek.lab.world.lexicon import Constraint, Lexicon, Relation
from coseek.lab.world.passages import WrittenWorld, spaced
from coseek.lab.world.rationales import LIST, listed
from coseek.lab.world.settings import SPLITS, Split, WorldSettings

ANCHOR_SHARES: dict[Split, float] = {"train": 0.70, "dev": 0.15, "test": 0.15}
ATTEMPTS = 400
"""Draws of one question before its type counts as exhausted."""
LISTED = (2, 4)
"""Fewest and most names of a list."""

Path = list[tuple[Entity, Fact]]
"""Entities with one fact each. In a chain the object of a fact is the next entity."""
Draw = Callable[[str], Question | None]
"""Question id → one drawn question; `None` when the draw failed."""


def make_questions(
    written: WrittenWorld, settings: WorldSettings, lexicon: Lexicon, rng: random.Random
) -> dict[str, list[Question]]:
    """The questions by split, without empty splits. Raises `SettingError` if the world has too few facts."""
    counts: dict[Split, int] = {split: settings.questions_in(split) for split in SPLITS if settings.questions_in(split)}
    anchors = split_anchors(written.facts, list(counts), rng)
    asker = _Asker(written, settings, lexicon, rng)
    return {split: asker.ask(split, anchors[split], count) for split, count in counts.items()}


def make_known(
    written: WrittenWorld,
    settings: WorldSettings,
    lexicon: Lexicon,
    rng: random.Random,
    questions: Mapping[str, Sequence[Question]],
) -> dict[str, list[Question]]:
    """Mark the questions that known facts answer, and add the split `known`, which asks for each of these facts in
    `paraphrases` wordings. A constraint question leads from values to a name, so no fact of a name answers it."""
    all_facts = [(entity, fact) for entity in written.facts.values() for fact in entity.facts]
    known_facts = [fact for fact in all_facts if rng.random() < settings.known for _ in range(settings.paraphrases)]
    asker = _Asker(written, settings, lexicon, rng)
    drawn = (asker.along(f"w{settings.seed}-{KNOWN}-{number:05}", [fact]) for number, fact in enumerate(known_facts))
    known_questions = [question for question in drawn if question is not None]
    known_steps = {(step.gold_id, step.relation) for question in known_questions for step in plan_of(question)}

    def mark(question: Question) -> Question:
        is_known = all((step.gold_id, step.relation) in known_steps for step in plan_of(question))
        return replace(question, meta={**question.meta, KNOWN: True}) if is_known else question

    splits = {**questions, KNOWN: known_questions}
    return {split: [*map(mark, of_split)] for split, of_split in splits.items() if of_split}


def offer(
    written: WrittenWorld, questions: Mapping[str, Sequence[Question]], count: int, rng: random.Random
) -> dict[str, list[Question]]:
    """The questions with up to `count` lettered options in a drawn order."""
    values: dict[str, dict[str, None]] = {}
    for entity in written.facts.values():
        for noun, value in ((entity.word, entity.title), *((fact.noun, fact.value) for fact in entity.facts)):
            values.setdefault(noun, {})[value] = None

    def add_options(question: Question) -> Question:
        plan, right = plan_of(question), question.answers[0]
        comparison_values = {"same": ["yes", "no"], "earlier": [step.mention for step in plan]}
        others = comparison_values.get(str(question.meta.get("compare")), [*values[plan[-1].relation]])
        wrong = [other for other in others if other not in question.answers]
        options = [right, *rng.sample(wrong, min(len(wrong), count - 1))]
        rng.shuffle(options)
        lettered = dict(zip(ascii_uppercase, options, strict=False))
        return with_options(question, lettered, ascii_uppercase[options.index(right)])

    return {split: [*map(add_options, of_split)] for split, of_split in questions.items()}


def split_anchors(facts: Facts, splits: Sequence[Split], rng: random.Random) -> dict[Split, list[Entity]]:
    """Split the entities of each kind in the proportions of `ANCHOR_SHARES`."""
    anchors: dict[Split, list[Entity]] = {split: [] for split in splits}
    by_kind: dict[str, list[Entity]] = {}
    for entity in facts.values():
        by_kind.setdefault(entity.kind, []).append(entity)
    total = sum(ANCHOR_SHARES[split] for split in splits)
    for entities in by_kind.values():
        rng.shuffle(entities)
        start, share = 0, 0.0
        for split in splits:
            share += ANCHOR_SHARES[split] / total
            end = round(share * len(entities))
            anchors[split] += entities[start:end]
            start = end
    return anchors


class _Asker:
    """Draws questions without repetition."""

    def __init__(self, written: WrittenWorld, settings: WorldSettings, lexicon: Lexicon, rng: random.Random) -> None:
        self._lexicon = lexicon
        self._facts = written.facts
        self._passages = written.passages
        self._settings = settings
        self._rng = rng
        # Yes and no alternate: equal values are rarer, so free draws would favour no.
        self._yes_is_due = rng.random() < 0.5
        self._asked: set[tuple[str, ...]] = set()
        self._by_name: dict[str, list[Entity]] = {}
        self._holders: dict[tuple[str, str, str], list[Entity]] = {}
        for entity in written.facts.values():
            self._by_name.setdefault(entity.name, []).append(entity)
            for fact in entity.facts:
                self._holders.setdefault((entity.kind, fact.noun, fact.object_id or fact.value), []).append(entity)

    def ask(self, split: Split, anchors: list[Entity], count: int) -> list[Question]:
        draws = self._draws(anchors)
        questions: list[Question] = []
        exhausted_kinds: set[str] = set()
        for number in range(count):
            question = self._ask_one(f"w{self._settings.seed}-{split}-{number:05}", draws, exhausted_kinds)
            if question is None:
                raise SettingError(
                    f"a world of size {self._settings.size!r} has facts for {number} {split} questions and not for "
                    f"{count}; ask for fewer or choose a larger size"
                )
            questions.append(question)
        return questions

    def _draws(self, anchors: list[Entity]) -> dict[str, Draw]:
        """The draws by type of question: `comparison`, `constraint`, `list`, and `1` to `4` hops."""
        rng = self._rng
        by_noun: dict[str, Path] = {}
        for entity in anchors:
            for fact in entity.facts:
                by_noun.setdefault(fact.noun, []).append((entity, fact))
        patterns = [(anchor, row) for anchor in anchors for row in self._lexicon.constraints
                    if len(self._holders.get((*row[:2], anchor.id), ())) > 1]  # fmt: skip
        draws: dict[str, Draw] = {
            "comparison": partial(self._comparison, by_noun=by_noun),
            "constraint": lambda name: self._constraint(name, *rng.choice(patterns)) if patterns else None,
            LIST: lambda name: self._list(name, *rng.choice([*by_noun.items()])),
        }
        for hops, weight in enumerate(self._settings.hop_mix, start=1):
            if weight > 0:
                draws[str(hops)] = partial(self._composition, anchors=anchors, hops=hops)
        return draws

    def _ask_one(self, name: str, draws: dict[str, Draw], exhausted_kinds: set[str]) -> Question | None:
        """A question of a type drawn by weight; compositions replace an exhausted type."""
        hops = [kind for kind in draws if kind.isdigit()]
        weights = [weight for weight in self._settings.hop_mix if weight > 0]
        dice, drawn = self._rng.random(), self._rng.choices(hops, weights)[0]
        shares = {"comparison": self._settings.comparison, "constraint": self._settings.constraint}
        shares[LIST] = self._settings.lists
        first = next((kind for kind in shares if (dice := dice - shares[kind]) < 0), drawn)
        for kind in dict.fromkeys((first, drawn, *reversed(hops))):
            for _ in range(0 if kind in exhausted_kinds else ATTEMPTS):
                if question := draws[kind](name):
                    return question
            exhausted_kinds.add(kind)
        return None

    def _is_new(self, *key: str) -> bool:
        if key in self._asked:
            return False
        self._asked.add(key)
        return True

    def _mention(self, entity: Entity, noun: str) -> str:
        """A name of the anchor that is unique among the entities with the relation."""
        rng, settings = self._rng, self._settings
        if entity.alias and rng.random() < settings.alias_use:
            return entity.alias
        if entity.title == entity.name:
            return entity.name
        namesakes = [other for other in self._by_name[entity.name] if other.fact(noun)]
        if len(namesakes) == 1 and rng.random() < settings.short_names:
            return entity.name
        return f"the {entity.word} {entity.name}" if rng.random() < 0.5 else entity.title

    def _make_step(self, entity: Entity, mention: str, fact: Fact, rest: str = "") -> Step:
        question = spaced(fact.relation.asks[0].format(x=mention))
        return Step(entity.title, mention, entity.word, fact.noun, entity.id, fact.value, question, rest)

    def _answers(self, fact: Fact) -> tuple[str, ...]:
        names = self._facts[fact.object_id].names if fact.object_id else ()
        return tuple(dict.fromkeys((fact.value, *names)))

    # Compositions

    def _composition(self, name: str, anchors: list[Entity], hops: int) -> Question | None:
        path = self._walk(self._rng.choice(anchors), hops)
        if not path or (question := self.along(name, path)) is None:
            return None
        return question if self._is_new(path[0][0].id, *(fact.noun for _, fact in path)) else None

    def along(self, name: str, path: Path) -> Question | None:
        """The question along a path; `None` if its words give a value away."""
        mentions = [self._mention(path[0][0], path[0][1].noun), *(fact.value for _, fact in path[:-1])]
        texts = self._chain_texts(mentions, [fact.relation for _, fact in path])
        text = texts[0]
        if self._gives_away(path, text):
            return None
        plan = self._plan(path, mentions, texts)
        return _make_question(name, "composition", text, self._answers(path[-1][1]), plan, [path[0][0].id], len(path))

    def _plan(self, path: Path, mentions: Sequence[str], texts: Sequence[str]) -> list[Step]:
        """The steps of a path; `texts` is the question before each of them."""
        rests = [*map(spaced, texts[1:]), ""]
        return [
            self._make_step(entity, mention, fact, rest)
            for (entity, fact), mention, rest in zip(path, mentions, rests, strict=True)
        ]

    def _walk(self, anchor: Entity, hops: int) -> Path | None:
        """A random chain without repeated entities; `None` for a dead end."""
        path: Path = []
        entity = anchor
        visited_ids = {anchor.id}
        for left in reversed(range(hops)):
            facts = [fact for fact in entity.facts if not left or fact.object_id]
            if not facts:
                return None
            fact = self._rng.choice(facts)
            path.append((entity, fact))
            if fact.object_id in visited_ids:
                return None
            if fact.object_id:
                visited_ids.add(fact.object_id)
                entity = self._facts[fact.object_id]
        return path

    def _chain_texts(self, mentions: list[str], relations: list[Relation]) -> list[str]:
        """The question about each mention: the whole one, then the rest after each step."""
        rng, variants = self._rng, self._settings.paraphrases
        templates = [rng.choice(relation.phrases[:variants]) for relation in relations[:-1]]
        last = relations[-1]
        if variants == 1 or rng.random() < 0.5:
            templates.append(rng.choice(last.asks[:variants]))
        else:
            templates.append(rng.choice(self._lexicon.frames).format(x=rng.choice(last.phrases[:variants])))
        return [
            reduce(lambda inner, outer: outer.format(x=inner), templates[step:], mention)
            for step, mention in enumerate(mentions)
        ]

    def _gives_away(self, path: Path, text: str) -> bool:
        """Whether the question or an earlier passage contains a later value, which shortens the chain."""
        seen_text = f"{text} "
        for entity, fact in path:
            names = self._answers(fact)
            if any(f" {name} " in seen_text for name in names):
                return True
            # Added after the check: a passage may contain its own value.
            seen_text += f"{self._passages[entity.id].text} "
        return False

    # Lists

    def _list(self, name: str, noun: str, holders: Path) -> Question | None:
        """A question for one relation of two to four anchors of one kind."""
        rng, kind = self._rng, self._rng.choice(holders)[0].kind
        same_kind = [(entity, fact) for entity, fact in holders if entity.kind == kind]
        path = rng.sample(same_kind, min(len(same_kind), rng.randint(*LISTED)))
        mentions = [self._mention(entity, noun) for entity, _ in path]
        parts = [rng.choice(fact.relation.phrases[: self._settings.paraphrases]).format(x=mention)
                 for (_, fact), mention in zip(path, mentions, strict=True)]  # fmt: skip
        frame, values = rng.choice(self._lexicon.frames), [fact.value for _, fact in path]
        left = [frame.format(x=listed([*values[:step], *parts[step:]])) for step in range(len(path))]
        anchors = [entity.id for entity, _ in path]
        if len(path) < LISTED[0] or self._gives_away(path, left[0]) or not self._is_new(LIST, noun, *sorted(anchors)):
            return None
        answers = tuple(map(listed, product(*(self._answers(fact) for _, fact in path))))
        return _make_question(name, LIST, left[0], answers, self._plan(path, mentions, left), anchors, 1)

    # Comparisons

    def _comparison(self, name: str, by_noun: dict[str, Path]) -> Question | None:
        """Which of two years is earlier, or whether two entities have one value."""
        rng, lexicon = self._rng, self._lexicon
        asks_same = rng.random() < 0.5
        is_yes = asks_same and self._yes_is_due
        noun = rng.choice(lexicon.same_nouns if asks_same else lexicon.earlier_nouns)
        pair = self._pair(by_noun.get(noun, []), same_value=is_yes)
        if pair is None:
            return None
        (entity, first), (other, second) = pair
        # "no" needs different entities; the others compare the words in both passages.
        is_equal = first.object_id == second.object_id if asks_same and not is_yes else first.value == second.value
        kind = "same" if asks_same else "earlier"
        if is_equal is not is_yes or not self._is_new(kind, noun, *sorted((entity.id, other.id))):
            return None
        plan = [self._make_step(entity, self._mention(entity, noun), fact) for entity, fact in pair]
        if asks_same:
            self._yes_is_due = not is_yes
            template = rng.choice(lexicon.same[: self._settings.paraphrases])
            answers: tuple[str, ...] = ("yes" if is_yes else "no",)
        else:
            template = lexicon.by_noun[noun].first
            earlier, step = (entity, plan[0]) if int(first.value) < int(second.value) else (other, plan[1])
            answers = tuple(dict.fromkeys((step.mention, *earlier.names)))
        text = template.format(a=plan[0].mention, b=plan[1].mention, noun=noun)
        return _make_question(name, "comparison", text, answers, plan, [entity.id, other.id], 1, compare=kind)

    def _pair(self, holders: Path, same_value: bool) -> Path | None:
        """Two anchors of one kind with the relation and distinct names."""
        if len(holders) < 2:
            return None
        entity, fact = self._rng.choice(holders)
        if same_value:
            holders = [holder for holder in holders if holder[1].value == fact.value]
        other, match = self._rng.choice(holders)
        if other is entity or entity.kind != other.kind or _has_nested_name(entity, other):
            return None
        return [(entity, fact), (other, match)]

    # Two constraints

    def _constraint(self, name: str, anchor: Entity, pattern: Constraint) -> Question | None:
        kind, first, second, template = pattern
        word = self._lexicon.words[kind]
        group = self._holders[kind, first, anchor.id]
        target = self._rng.choice(group)
        first_fact, second_fact = target.fact(first), target.fact(second)
        if first_fact is None or second_fact is None:
            return None
        fitting = self._holders[kind, second, second_fact.object_id or second_fact.value]
        if sum(entity in fitting for entity in group) != 1 or not self._is_new(kind, first, second, target.id):
            return None
        text = template.format(a=first_fact.value, b=second_fact.value)
        step = Step(target.title, first_fact.value, word, word, target.id, target.title, spaced(text))
        constraints: list[Json] = [{"relation": fact.noun, "value": fact.value} for fact in (first_fact, second_fact)]
        return _make_question(name, "constraint", text, target.names, [step], [anchor.id], 1, constraints=constraints)


def _has_nested_name(entity: Entity, other: Entity) -> bool:
    """Whether a name of one contains a name of the other (Merrow, New Merrow), so that answers are ambiguous."""
    names = [(f" {a} ", f" {b} ") for a in entity.names for b in other.names]
    return any(a in b or b in a for a, b in names)


def _make_question(name: str, kind: str, text: str, answers: tuple[str, ...], plan: list[Step], anchors: list[str],
              hops: int, **extra_meta: Json) -> Question:  # fmt: skip
    gold_ids = tuple(dict.fromkeys(step.gold_id for step in plan))
    meta: JsonObject = {"kind": kind, "plan": [step.to_json() for step in plan], "anchors": [*anchors], **extra_meta}
    return Question(name, spaced(text), answers, gold_ids, hops, meta)
