"""Fears about drawn lexicons: a word of a measured world in training, a world that cannot be made or read back."""

import re
from pathlib import Path

import pytest

from coseek.lab.world.drawn_lexicon import drawn_lexicon, english
from coseek.lab.world.lexicon import Lexicon, laptop_lexicon
from coseek.lab.world.settings import Size
from coseek.lab.world.world import World, WorldSettings, make_world

FUNCTION_WORDS = """
a also an and as at before belong belongs by called can comes date dates do does earlier equal first for found from
give has have having i in is it its known life lower main me most name named new no not of old on one or people
place same since soon still tell than that the then this times to told until use used was we what when where which
who whom whose with year you
"""
"""Words of any English sentence, and the word for the one literal that both have."""


def words_of(lexicon: Lexicon) -> set[str]:
    """All words of a lexicon in lower case, without fields to fill in."""
    texts = [*lexicon.words.values(), *lexicon.occupations, *lexicon.frames, *lexicon.same, *lexicon.apart]
    texts += [lexicon.opening, lexicon.beside, *lexicon.introductions, *(row[3] for row in lexicon.constraints)]
    for relation in lexicon.relations:
        texts += [relation.noun, relation.first, *relation.clauses, *relation.synonyms, *relation.asks]
    names = [word for pools in lexicon.pools.values() for pool in pools for word in pool]
    names += [word for forms in lexicon.forms.values() for word in forms]
    plain = re.sub(r"\{\w+\}", " ", " ".join([*texts, *names])).lower()
    return {word for word in re.findall(r"[a-z]+", plain) if len(word) > 1}


def drawn(seed: int, size: Size = "tiny") -> World:
    return make_world(WorldSettings(seed=seed, size=size, lexicon="drawn", train=60, dev=0, test=20))


@pytest.mark.medium
def test_no_word_of_a_measured_world_is_learnt_before() -> None:
    measured = words_of(laptop_lexicon()) - set(FUNCTION_WORDS.split())
    for seed in range(60):
        assert measured & words_of(drawn_lexicon(seed, held_out=seed % 2 == 0)) == set(), seed


def test_relations_names_and_wordings_differ_between_drawn_worlds() -> None:
    first, other = words_of(drawn_lexicon(1)), words_of(drawn_lexicon(2))
    assert words_of(drawn_lexicon(1)) == first
    nouns = [{relation.noun for relation in drawn_lexicon(seed).relations} for seed in (1, 2)]
    assert len(nouns[0] & nouns[1]) < 0.2 * len(nouns[0])
    assert len(first & other) < 0.3 * len(first)


@pytest.mark.medium
def test_no_relation_of_a_held_out_world_is_learnt() -> None:
    learnt = {relation.noun for seed in range(60) for relation in drawn_lexicon(seed).relations}
    held_out = [relation.noun for seed in range(20) for relation in drawn_lexicon(seed, held_out=True).relations]
    common = [noun for noun in held_out if noun in learnt]
    assert len(common) < 0.03 * len(held_out)  # two lexicons may invent one short word
    english_nouns = {row.split()[0] for row in (*english("roots"), *english("bare_roots"))}
    assert not english_nouns & set(common) and english_nouns & set(held_out)


def test_a_held_out_relation_is_not_asked_by_a_word_that_only_training_could_explain() -> None:
    """Question and passage name it by words of one stem."""
    frame = words_of(drawn_lexicon(0)) & words_of(drawn_lexicon(1)) & words_of(drawn_lexicon(2))
    rows = [row.split() for row in (*english("roots"), *english("bare_roots"))]
    stems = {row[0]: [word for word in row if word[:3] == row[0][:3]] for row in rows}
    times_asked = 0
    for seed in range(20):
        for relation in drawn_lexicon(seed, held_out=True).relations:
            if relation.noun not in stems:
                continue
            foreign = (
                {word for row in rows if row[0] == relation.noun for word in row} - set(stems[relation.noun]) - frame
            )
            texts = (*relation.clauses, *relation.phrases, *relation.asks)
            assert not [text for text in texts if foreign & set(text.split())]
            times_asked += 1
    assert times_asked > 50


@pytest.mark.slow
@pytest.mark.parametrize("size", ["tiny", "compact", "small"])
def test_a_drawn_world_of_any_size_has_names_enough(size: Size) -> None:
    for seed in range(2):
        world = drawn(seed, size)
        assert len(world.questions["train"]) == 60
        assert {question.meta["kind"] for question in world.questions["train"]} >= {"composition", "comparison"}


def test_a_drawn_world_comes_back_with_its_own_relations(tmp_path: Path) -> None:
    world = drawn(3)
    world.save(tmp_path / "world")
    back = World.load(tmp_path / "world")
    assert back.oracle == world.oracle and back.questions == world.questions and list(back.corpus) == list(world.corpus)
