"""The laptop world: its text, its questions, its files."""

import json
from collections import Counter
from functools import cache
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given, settings, strategies as st

from coseek.cli.main import main
from coseek.core.errors import DataError, SettingError, UnknownName
from coseek.core.files import JsonObject
from coseek.core.settings import dump_settings, make_settings
from coseek.data.dataset import Dataset
from coseek.data.question import Question, plan_of
from coseek.lab.world import world as world_module
from coseek.lab.world.facts import Entity
from coseek.lab.world.passages import MAX_WORDS
from coseek.lab.world.rationales import kind_of
from coseek.lab.world.world import World, WorldSettings, make_world, reference_world
from coseek.library import make_world as make_in_folder
from coseek.pipelines.agent_recipe import load_recipe
from coseek.retrieval.retrievers.bm25 import Bm25


@cache
def small() -> World:
    return make_world(WorldSettings(train=2000, dev=400, test=400))


@cache
def tiny() -> World:
    return make_world(WorldSettings(size="tiny", seed=3))


def questions_of(world: World) -> list[Question]:
    return [question for questions in world.questions.values() for question in questions]


def forms(entity: Entity) -> set[str]:
    """Everything that a text may call an entity."""
    return {entity.title, entity.name, entity.alias, f"the {entity.word} {entity.name}"}


def meant(world: World, mention: str, noun: str) -> list[Entity]:
    """All that a mention may mean where this relation is asked for."""
    return [entity for entity in world.oracle.facts.values() if mention in forms(entity) and entity.fact(noun)]


def chase(world: World, entity: Entity, nouns: list[str]) -> str | None:
    """Where a chain of relations ends: an entity's id or a literal."""
    facts = world.oracle.facts
    for left, noun in reversed(list(enumerate(reversed(nouns)))):
        fact = entity.fact(noun)
        if fact is None or (left and not fact.object_id):
            return None
        if not left:
            return fact.object_id or fact.value
        assert fact.object_id
        entity = facts[fact.object_id]
    return None


def called(world: World, ident: str) -> tuple[str, ...]:
    entity = world.oracle.facts.get(ident)
    return entity.names if entity else (ident,)


def test_the_same_settings_make_the_same_world() -> None:
    again = make_world(WorldSettings(size="tiny", seed=3))
    assert again.corpus.digest == tiny().corpus.digest
    assert again.questions == tiny().questions
    assert again.oracle == tiny().oracle


def test_asking_other_questions_leaves_the_passages_alone() -> None:
    asked_for = {"train": 10, "dev": 0, "test": 0, "hop_mix": (0.0, 1.0), "comparison": 0, "constraint": 0}
    fewer = make_world(tiny().settings.model_copy(update=asked_for))
    assert fewer.corpus.digest == tiny().corpus.digest
    assert [question.hops for question in fewer.questions["train"]] == [2] * 10 and len(fewer.questions) == 1


def test_every_passage_tells_exactly_the_facts_that_are_known() -> None:
    for entity in small().oracle.facts.values():
        text = f"{small().corpus.by_id(entity.id).text} "
        assert all(f" {fact.value} " in text for fact in entity.facts)
        assert f" {entity.alias} " in text if entity.alias else " known as " not in text


def test_relations_are_functional_and_former_values_are_not_present_ones() -> None:
    for entity in small().oracle.facts.values():
        assert all(count == 1 for count in Counter(fact.noun for fact in entity.facts).values())
        for fact in entity.facts:
            assert fact.before not in (called(small(), fact.object_id) if fact.object_id else (fact.value,))


def test_titles_and_second_names_are_unique() -> None:
    facts = small().oracle.facts.values()
    names = Counter([entity.title for entity in facts] + [entity.alias for entity in facts if entity.alias])
    assert max(names.values()) == 1
    bare = {entity.name for entity in facts}
    assert not bare & {entity.alias for entity in facts if entity.alias}


def test_every_composition_has_one_answer_by_brute_force() -> None:
    for question in questions_of(tiny()) + small().questions["test"][:400]:
        world = small() if question.id.startswith("w0") else tiny()
        if kind_of(question) == "composition":
            plan = plan_of(question)
            nouns = [step.relation for step in plan]
            ends = {chase(world, entity, nouns) for entity in meant(world, plan[0].mention, nouns[0])}
            assert len(ends) == 1
            end = ends.pop()
            assert end is not None and set(question.answers) == set(called(world, end))
            assert question.hops == len(plan) == len(question.gold_ids)


def test_every_comparison_has_one_answer_by_brute_force() -> None:
    for question in [question for question in small().questions["dev"] if kind_of(question) == "comparison"]:
        step, other = plan_of(question)
        left, right = meant(small(), step.mention, step.relation), meant(small(), other.mention, other.relation)
        assert len(left) == len(right) == 1
        first, second = left[0].fact(step.relation), right[0].fact(other.relation)
        assert first is not None and second is not None
        if question.meta["compare"] == "same":
            same = (first.object_id or first.value) == (second.object_id or second.value)
            assert question.answers == ("yes" if same else "no",)
        else:
            assert int(first.value) != int(second.value)
            winner = left[0] if int(first.value) < int(second.value) else right[0]
            assert set(winner.names) <= set(question.answers) <= forms(winner)


def test_every_constraint_question_has_one_answer_and_needs_both_constraints() -> None:
    questions = [question for question in small().questions["dev"] if kind_of(question) == "constraint"]
    assert questions
    for question in questions:
        constraints = question.meta["constraints"]
        step = plan_of(question)[0]
        assert isinstance(constraints, list)
        fitting = []
        for row in constraints:
            assert isinstance(row, dict)
            noun, value = str(row["relation"]), str(row["value"])
            holders = [e for e in small().oracle.facts.values() if e.kind == step.relation and (fact := e.fact(noun))
                       and value in called(small(), fact.object_id or fact.value)]  # fmt: skip
            fitting.append({entity.id for entity in holders})
        assert fitting[0] & fitting[1] == {step.gold_id}
        assert len(fitting[0]) > 1


def test_no_question_is_asked_twice_and_no_anchor_is_asked_about_in_two_splits() -> None:
    questions = questions_of(small())
    assert len({(question.question, question.gold_ids) for question in questions}) == len(questions)
    for world in (tiny(), small()):
        anchors = {split: {str(ident) for question in questions for ident in _anchors(question)}
                   for split, questions in world.questions.items()}  # fmt: skip
        assert sum(map(len, anchors.values())) == len(set().union(*anchors.values()))


def _anchors(question: Question) -> list[str]:
    anchors = question.meta["anchors"]
    assert isinstance(anchors, list) and len(anchors) == (2 if kind_of(question) == "comparison" else 1)
    return [str(ident) for ident in anchors]


def test_a_chain_gives_no_later_value_away() -> None:
    for question in small().questions["dev"]:
        if kind_of(question) == "composition":
            texts = [question.question] + [small().corpus.by_id(ident).text for ident in question.gold_ids[:-1]]
            assert not any(f" {answer} " in f"{text} " for text in texts for answer in question.answers)


def test_gold_passages_tell_the_sub_answers_and_are_never_out_of_date() -> None:
    for question in questions_of(small()):
        for step in plan_of(question):
            assert f" {step.sub_answer} " in f"{small().corpus.by_id(step.gold_id).text} "
            assert step.gold_id not in small().oracle.stale


def _short_query_recall(world: World) -> float:
    """How often the bare name of a work finds its passage first."""
    works = [entity for entity in world.oracle.facts.values() if entity.kind in ("film", "book", "band", "company")]
    hit_lists = Bm25.over(world.corpus).search([work.name for work in works], k=1)
    return mean(hits[0].passage.id == work.id for work, hits in zip(works, hit_lists, strict=True))


@pytest.mark.medium
def test_more_lookalikes_make_short_queries_find_less() -> None:
    easy, hard = (make_world(WorldSettings(size="compact", lookalikes=share, dev=0, test=0)) for share in (0, 0.9))
    assert _short_query_recall(easy) > _short_query_recall(hard) + 0.15


def test_with_one_wording_passages_and_questions_use_no_other() -> None:
    world = make_world(WorldSettings(size="tiny", paraphrases=1, outdated=0))
    for entity in world.oracle.facts.values():
        text = world.corpus.by_id(entity.id).text
        assert all(fact.relation.clauses[0].format(o=fact.value) in text for fact in entity.facts)


def test_a_saved_world_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "world"
    tiny().save(folder)
    back = World.load(folder)
    assert back.settings == tiny().settings and back.questions == tiny().questions and back.oracle == tiny().oracle
    assert list(back.corpus) == list(tiny().corpus)
    assert Dataset(folder).splits == ["dev", "test", "train"]
    (folder / "world.json").write_text("{}")
    with pytest.raises(DataError, match="coseek world make"):
        World.load(folder)


def test_a_world_replaces_a_world_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "world"
    tiny().save(folder)
    tiny().save(folder)
    (folder / "thesis.txt").write_text("all of it")
    with pytest.raises(DataError, match=r"thesis\.txt.*choose a new or an empty folder"):
        tiny().save(folder)
    assert (folder / "thesis.txt").read_text() == "all of it"
    (folder / "thesis.txt").rename(folder / "questions.mine.jsonl")
    with pytest.raises(DataError, match=r"holds questions\.mine\.jsonl, which is no part of a laptop world"):
        tiny().save(folder)


@pytest.mark.parametrize("world_json", [None, "{}", "no JSON", '{"schema": "of another program"}'])
def test_a_data_set_of_the_users_own_is_not_replaced_by_a_world(tmp_path: Path, world_json: str | None) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "corpus.jsonl").write_text('{"id": "a", "contents": "years of work"}\n')
    (mine / "questions.train.jsonl").write_text("")
    if world_json is not None:
        (mine / "world.json").write_text(world_json)
    with pytest.raises(DataError, match=r"holds a data set that is not a laptop world.*choose a new folder"):
        tiny().save(mine)
    assert main(["world", "make", str(mine), "--size", "tiny"]) == 2
    assert "years of work" in (mine / "corpus.jsonl").read_text()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"hop_mix": [1.0], "dev": 2000}, "larger size"),
        ({"comparison": 0.8, "constraint": 0.8}, "lower one of them"),
        ({"hop_mix": [0, 0]}, "hop_mix"),
    ],
)
def test_what_no_world_can_hold_is_refused(given: JsonObject, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        make_world(make_settings(WorldSettings, {"size": "tiny", **given}))


SHARE = st.sampled_from([0.0, 0.3, 1.0])


@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), aliases=SHARE, alias_use=SHARE, lookalikes=SHARE, namesakes=SHARE, outdated=SHARE)
def test_any_mix_of_difficulties_makes_a_sound_world(
    seed: int, aliases: float, alias_use: float, lookalikes: float, namesakes: float, outdated: float
) -> None:
    world = make_world(WorldSettings(
        size="tiny", seed=seed, aliases=aliases, alias_use=alias_use, lookalikes=lookalikes, namesakes=namesakes,
        outdated=outdated, train=40, dev=10, test=10,
    ))  # fmt: skip
    assert max(len(passage.text.split()) for passage in world.corpus) <= MAX_WORDS
    assert all(
        text == " " + " ".join(text.split()) for passage in world.corpus for text in (passage.title, passage.text)
    )
    assert len({passage.title for passage in world.corpus if passage.id not in world.oracle.stale}) == 306
    for question in questions_of(world):
        assert all(world.corpus.has(ident) for ident in question.gold_ids)
        assert world.oracle.judge(question, question.answers[0])


# --- reference worlds: one name, one world, in every version


def test_the_digest_is_of_passages_and_questions(tmp_path: Path) -> None:
    settings = WorldSettings(size="tiny", train=20, dev=5, test=5)
    made = make_world(settings)
    fewer = make_world(settings.model_copy(update={"test": 4}))
    other = make_world(settings.model_copy(update={"outdated": 0.2}))
    assert len({made.digest, fewer.digest, other.digest}) == 3
    made.save(tmp_path / "w")
    assert World.load(tmp_path / "w").digest == make_world(settings).digest == made.digest


def test_a_reference_world_that_came_out_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = WorldSettings(size="tiny", train=5, dev=0, test=0)
    changed = reference_world("world-1").model_copy(update={"settings": tiny})
    monkeypatch.setattr(world_module, "reference_worlds", lambda: {"world-1": changed})
    with pytest.raises(DataError, match="makes another world-1"):
        make_world(tiny)
    make_world(tiny.model_copy(update={"seed": 1}))


@pytest.mark.slow
def test_world_1_is_what_it_was_by_recipes_and_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = load_recipe("quickstart", ["data.world=world-1"])
    assert recipe.data.world is not None
    assert dump_settings(recipe.data.world) == dump_settings(reference_world("world-1").settings)
    assert recipe.data.unseen == load_recipe("quickstart").data.unseen
    with pytest.raises(UnknownName, match="did you mean 'world-1'"):
        load_recipe("quickstart", ["data.world=world1"])
    assert main(["world", "make", str(tmp_path / "w"), "--name", "world-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["questions"] == {"train": 6000, "dev": 500, "test": 2000}
    assert World.load(tmp_path / "w").digest == reference_world("world-1").sha256
    assert main(["world", "make", str(tmp_path / "w"), "--name", "world-2"]) == 2
    assert "world-1" in capsys.readouterr().err


def test_a_reference_world_takes_no_other_settings(tmp_path: Path) -> None:
    assert main(["world", "make", str(tmp_path / "w"), "--name", "world-1", "--size", "tiny"]) == 2
    with pytest.raises(SettingError, match="fixed"):
        make_in_folder(tmp_path / "w", seed=3, name="world-1")
    assert not (tmp_path / "w").exists()
