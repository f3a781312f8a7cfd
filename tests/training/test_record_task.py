"""Fears about records: an answer that is not in the passages, or that one of two keys would give."""

import random
import re
from collections import Counter
from functools import cache
from itertools import pairwise

from hypothesis import given, strategies as st

from coseek.lab.training.record_task import HOPS, RecordTask

WORDS = ["", "", " #", " :", " ,", " .", " ;", " So", " Question", " with", " as", " whose", " is", " having", " the"]
WORDS += [f" {word}" for word in ("its", "being", "which", "has", "for", "and", "of", "that", "belongs", "to")]
WORDS += [" Which", " Who", " ?", " Tell", " me"]
WORDS += [" where", " Find", " I", " want", " know", " Answer", " Now", " lower", " or", " earlier", " Have", " Is"]
WORDS += [" before", " same", " not", " yes", " no", *(f" {number}" for number in range(10))]
VOCABULARY = 2000


NOW = re.compile(r" Now :(.*? [?.])(?= )")


@cache
def task() -> RecordTask:
    """Whole words are tokens; the others are the random ones of names."""
    return RecordTask(encode, VOCABULARY)


def encode(text: str) -> list[int]:
    """A number has a token a digit, as in a base model's vocabulary."""
    parts = [piece for word in text.split() for piece in (word if word.isdigit() else [word])]
    return [WORDS.index(f" {piece}") for piece in parts]


def text(ids: list[int]) -> str:
    return "".join(WORDS[ident] if ident < len(WORDS) else f" w{ident}" for ident in ids)


def facts(answer: str) -> list[tuple[str, str, str, str]]:
    """Name, number, relation and value of each sentence of an answer. Names are made of random tokens alone."""
    read = []
    answer = NOW.sub("", answer)
    for sentence in filter(None, (sentence.strip() for sentence in answer.split(" ."))):
        name, is_fact, rest = sentence.partition(" # ")
        if not is_fact:  # the conclusion of a comparison
            continue
        number, *stated = rest.split(" , ")
        if stated[0].startswith("no "):  # a match reads on
            continue
        for relation, _, value in (fact.partition(" : ") for fact in stated):
            read.append((name, number, relation, value))
    return read


def is_comparison(answer: str) -> bool:
    return " is before" in answer or " the same ." in answer


def is_match(answer: str) -> bool:
    return any(" , " in sentence.partition(" : ")[2] for sentence in NOW.sub("", answer).split(" ."))


def plain(seed: int, spread: float) -> list[tuple[str, str]]:
    return [(text(shown), text(written)) for shown, written in task().draw(spread, random.Random(seed))]


@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.3, 1.0]))
def test_every_fact_is_stated_in_the_record_of_its_number(seed: int, spread: float) -> None:
    turns = plain(seed, spread)
    passages = turns[0][0]
    for shown, written in turns:
        question = shown.partition(" So :")[0]
        for name, number, relation, value in facts(written.partition(" Answer :")[0]):
            # A chain goes on with the value before; a match asks for the name.
            assert name in question or f": {name} ." in written or is_match(written)
            assert relation in question
            record = passages.partition(f"{name} # {number} :")[2].partition(f". # {number}")[0]
            inflected = relation.rpartition(" ")[0]
            assert value in record and (relation in record or (inflected and inflected in record))


@given(st.integers(0, 10**6))
def test_a_chain_goes_from_value_to_name_and_ends_with_its_answer(seed: int) -> None:
    hops = set()
    for shown, written in plain(seed, 1.0):
        lines, mark, answer = written.partition(" Answer : ")
        if mark and not is_match(written) and not is_comparison(written):
            path = facts(lines)
            hops.add(len(path))
            question = shown.partition(" So :")[0].partition(" # 1 :")[0]
            places = [question.find(f" {relation} ") for _, _, relation, _ in path]
            assert min(places) >= 0
            assert answer == path[-1][3]
            assert all(step[3] == other[0] for step, other in pairwise(path))
            # The remaining question has the value in place of the words that asked for it.
            left = NOW.findall(written)
            assert len(left) == len(path) - 1
            for (_, _, _, value), rest, (_, _, relation, _) in zip(path, left, path[1:], strict=False):
                beginning, separator, ending = rest.rpartition(f" {value}")
                assert separator and f" {relation} " in beginning and ending in (" ?", " .")
                assert question.partition(" Question :")[2].startswith(beginning.rpartition(f" {relation} ")[0])
    assert hops <= set(range(1, HOPS + 1))


@given(st.integers(0, 10**6))
def test_a_match_asks_for_the_only_name_with_both_values(seed: int) -> None:
    turns = plain(seed, 1.0)
    known = {fact for _, written in turns for fact in facts(written.partition(" Answer :")[0])}
    for shown, written in turns:
        if is_match(written):
            lines = written.partition(" Answer :")[0]
            *others, (name, number, *clause), (same, _, *other) = facts(lines)
            question = shown.partition(" So :")[0].partition(" # 1 :")[0]
            assert name == same and written.endswith(f" Answer : {name}")
            assert all(f" {word} " in question for word in (*clause, *other))
            having = [{first for first, _, *rest in known if rest == fact} for fact in (clause, other)]
            assert having[0] & having[1] == {name}
            # The records are read in their order, the first given relation in each, the second where the first fits.
            assert re.findall(r" # (\d) ,", lines) == [f"{index}" for index in range(1, int(number) + 1)]
            for _, _, relation, value in others:
                assert relation == clause[0] or (relation == other[0] and value != other[1])
            for lacking in re.findall(r"(?:^|\. )([^.]+) # \d , no ([^.]+) \.", lines):
                assert lacking not in {(first, relation) for first, _, relation, _ in known}


@given(st.integers(0, 10**6))
def test_one_name_and_one_relation_have_one_value(seed: int) -> None:
    known: dict[tuple[str, str], str] = {}
    for _, written in plain(seed, 1.0):
        for name, _, relation, value in facts(written.partition(" Answer :")[0]):
            assert known.setdefault((name, relation), value) == value


def test_neither_the_name_nor_the_relation_alone_gives_the_value() -> None:
    values: Counter[str] = Counter()
    for seed in range(30):
        by_name: dict[str, set[str]] = {}
        by_relation: dict[str, set[str]] = {}
        for _, written in plain(seed, 1.0):
            for name, _, relation, value in facts(written.partition(" Answer :")[0]):
                by_name.setdefault(name, set()).add(value)
                by_relation.setdefault(relation, set()).add(value)
        values["name"] += sum(len(group) > 1 for group in by_name.values())
        values["relation"] += sum(len(group) > 1 for group in by_relation.values())
    assert values["name"] > 20 and values["relation"] > 20


@given(st.integers(0, 10**6))
def test_a_comparison_concludes_from_both_facts(seed: int) -> None:
    for _, written in plain(seed, 1.0):
        if is_comparison(written):
            lines, _, answer = written.partition(" Answer : ")
            (name, _, relation, first), (other, _, same, second) = facts(lines)
            assert relation == same and name != other
            if " is before" in lines:
                numbers = [int(value.replace(" ", "")) for value in (first, second)]
                assert answer == (name if numbers[0] < numbers[1] else other)
                earlier = min(first, second)
                assert f" . {' is before '.join(sorted((first, second)))} . {earlier} {answer} ." in lines
                assert f" . {first} {name} , {second} {other} . " in lines
            else:
                assert (answer == "yes") == (first == second) == (" not the same" not in lines)
