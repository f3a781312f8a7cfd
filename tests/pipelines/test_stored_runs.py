"""Fears about learning from stored runs: wrong ones, another agent's tokens, what the environment wrote."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agents.playing import QUESTION, WIDE, Shelf, Typist, play, script
from tests.agents.test_chat_templates import in_marks
from tests.lab.synthesis.test_renaming import films
from tests.models.networks import TEXTS
from tests.pipelines.test_agent import TINY
from tests.pipelines.trainings import trained

from coseek.agents.drivers import Agent, rollout
from coseek.agents.factory import open_agent, settings_for
from coseek.agents.protocol import load_protocol
from coseek.agents.run_questions import run_questions
from coseek.agents.tag import NOT_FOUND
from coseek.core.errors import DataError, SettingError
from coseek.core.files import write_jsonl
from coseek.core.progress import NoProgress
from coseek.data.dataset import Dataset
from coseek.data.question import gold_path
from coseek.data.run import Run
from coseek.data.trajectory import Author, Trajectory
from coseek.data.trajectory_checks import check_trajectory
from coseek.lab.synthesis.renaming import rename
from coseek.library import make_world
from coseek.models.tokenizer import ByteTokenizer, HfTokenizer, train_tokenizer
from coseek.models.written import closing_of
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_check import check_settings
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.demonstrations import demonstrate, made_questions, retokenised, stored_demonstrations
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.training.sft.settings import KeptRunsSettings

FAST = train_tokenizer(
    TEXTS, ("<search>", "</search>", "<information>", "</information>", "<|user|>", "<|model|>"), 400
)
FAST.chat_template = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|model|>"
STUDENT = HfTokenizer(FAST)
END = STUDENT.decode([STUDENT.eos_id])


def stored(folder: Path, *runs: Trajectory) -> str:
    run = Run.create(folder, {})
    with run.open_for_append({}) as file:
        for number, trajectory in enumerate(runs):
            Run.append(file, replace(trajectory, seed=number))
    return str(folder)


def right(name: str = "search-r1") -> Trajectory:
    return play(name, *script(name))


def test_only_right_runs_in_a_valid_form_are_kept_one_for_each_question(tmp_path: Path) -> None:
    wrong = play("search-r1", "<think>a</think><answer>1900</answer>")
    odd = play("search-r1", "well<answer>1815</answer>")
    folder = stored(tmp_path / "run", wrong, odd, right(), right())
    kept = KeptRunsSettings(reward={"exact_match": 1.0, "valid": {"gate": True}})
    protocol = load_protocol("search-r1")
    stored_runs = stored_demonstrations([folder], kept, protocol, STUDENT, WIDE, seed=0)
    assert [run.seed in (2, 3) for run in stored_runs] == [True]
    both = kept.model_copy(update={"keep": 2})
    assert len(stored_demonstrations([folder], both, protocol, STUDENT, WIDE, seed=0)) == 2
    with pytest.raises(DataError, match="nothing to learn from"):
        stored_demonstrations([stored(tmp_path / "bad", wrong)], kept, protocol, STUDENT, WIDE, seed=0)
    with pytest.raises(DataError, match="the protocol search-r1, and the policy learns qagent"):
        stored_demonstrations([folder], kept, load_protocol("qagent"), STUDENT, WIDE, seed=0)


@pytest.mark.parametrize("name", ["search-r1", "s3", "react", "search-o1"])
def test_another_agents_run_is_written_in_the_policys_tokens_with_the_policys_prompt(name: str) -> None:
    protocol = load_protocol(name)
    run = right(name)
    ours = retokenised(run, protocol, STUDENT, WIDE)
    own = rollout(Agent(protocol, Typist(STUDENT, script(name))), Shelf(), [QUESTION], [7], WIDE)[0]
    assert [segment.author for segment in ours.segments] == [segment.author for segment in run.segments]
    first = next(index for index, segment in enumerate(own.segments) if segment.author is Author.AGENT)
    assert [segment.ids for segment in ours.segments[:first]] == [segment.ids for segment in own.segments[:first]]
    for mine, theirs in zip(ours.segments[first:], run.segments[first:], strict=True):
        assert mine.text.removesuffix(END) == theirs.text
    assert not [what for what in check_trajectory(ours, decode=STUDENT.decode) if "side context" not in what[0]]


@pytest.mark.parametrize("name", ["search-r1", "s3", "qagent", "react", "search-o1"])
def test_a_thought_that_one_agents_template_opened_is_whole_in_anothers(name: str) -> None:
    protocol, turns = load_protocol(name), {STUDENT: script(name)[0]}
    for mark in ("<think>", "[THINK]", "<|START_THINKING|>"):
        opening = HfTokenizer(deepcopy(FAST))
        opening.fast.chat_template += f"{mark}\n"
        turns[opening] = in_marks(turns[STUDENT], "", closing_of(mark))
    for teacher, turn in turns.items():
        model = Typist(teacher, [turn, *script(name)[1:]])
        run = rollout(Agent(protocol, model), Shelf(), [QUESTION], [7], WIDE)[0]
        assert run.valid, run.format_error
        for policy in turns:
            ours = retokenised(run, protocol, policy, WIDE)
            spans, before = protocol.grammar.spans(ours.segments), protocol.grammar.spans(run.segments)
            assert not protocol.grammar.format_error(spans)
            assert [span.tag for span in spans if span.tag] == [span.tag for span in before if span.tag]
            assert ours.segments[-1].text.removesuffix(END) == run.segments[-1].text


def test_a_mark_of_the_protocol_is_the_policys_one_token_and_a_role_mark_in_a_passage_is_none() -> None:
    ours = retokenised(right(), load_protocol("search-r1"), STUDENT, WIDE)
    mark, role = STUDENT.encode("<search>")[0], STUDENT.encode("<|user|>")[0]
    assert ours.segments[1].ids.count(mark) == 1 and ours.ids.count(role) == 1  # the chat template's own


@pytest.mark.parametrize("end", ["", "<|im_end|>", "</s>\n"])
def test_a_turn_that_nothing_stopped_ends_with_the_policys_own_end_and_not_with_the_letters_of_anothers(
    end: str,
) -> None:
    run = right("search-o1")
    last = run.segments[-1]
    told = replace(run, segments=(*run.segments[:-1], replace(last, text=last.text + end)))
    ours = retokenised(told, load_protocol("search-o1"), STUDENT, WIDE)
    assert ours.segments[-1].text == last.text + END and ours.segments[-1].ids[-1] == STUDENT.eos_id
    assert STUDENT.eos_id not in [ident for segment in ours.segments[1:-1] for ident in segment.ids]


def test_a_run_in_the_policys_own_tokens_keeps_what_was_sampled() -> None:
    protocol = load_protocol("search-r1")
    own = rollout(Agent(protocol, Typist(STUDENT, script("search-r1"))), Shelf(), [QUESTION], [7], WIDE)[0]
    assert retokenised(own, protocol, STUDENT, WIDE) == own
    assert retokenised(own, protocol, ByteTokenizer(), WIDE).ids != own.ids


def test_runs_and_their_demonstrator_are_named_together_and_the_outcome_asks_no_grader() -> None:
    for line in ("warm_start.demonstrator=runs", "warm_start.runs=[runs/x]"):
        with pytest.raises(SettingError, match="belong together"):
            check_settings(load_recipe("from-nothing", [line]))
    both = ["warm_start.demonstrator=runs", "warm_start.runs=[runs/x]", "warm_start.keep.reward={gen_acc: 1.0}"]
    with pytest.raises(SettingError, match="needs a"):
        check_settings(load_recipe("from-nothing", both))


@pytest.mark.slow
def test_a_policy_learns_from_the_stored_runs_of_another_agent(tmp_path: Path) -> None:
    lines = [line for line in TINY if not line.startswith("warm_start")]
    first = AgentTraining(load_recipe("from-nothing", [*lines, "warm_start=null"]), tmp_path / "data")
    first.prepare_data()
    rules = open_agent(settings_for("rules", "search-r1"))
    run = Run.create(tmp_path / "teacher", {})
    run_questions(run, rules, first.retrievers["data"], first.questions("train")[:20], WIDE)
    sft = "warm_start.sft={steps: 6, repeat_steps: 0, rounds: 1, tokens_per_step: 1500, log_every: 1, curriculum: []}"
    kept = "warm_start.keep={reward: {searches: 1.0}, at_least: 1.0}"
    learns = [
        "warm_start.demonstrator=runs", f"warm_start.runs=[{tmp_path / 'teacher'}]", "warm_start.worlds=0", kept, sft,
    ]  # fmt: skip
    trained(AgentTraining(load_recipe("from-nothing", [*lines, *learns, "learn=demonstrations"]), tmp_path / "out"))
    rows = (tmp_path / "out" / "warm-start" / "round-1" / "metrics.jsonl").read_text().splitlines()
    losses = [float(row.partition('"loss": ')[2].partition(",")[0].rstrip("}")) for row in rows]
    assert len(losses) == 6 and losses[-1] < losses[0]


MADE = "warm_start.made={count: 30, dev: 0.1, test: 0.1}"


@pytest.mark.slow
def test_made_questions_are_demonstrated_beside_the_training_questions(tmp_path: Path) -> None:
    data = make_world(tmp_path / "w", size="compact", train=10, dev=0, test=0)
    recipe = load_recipe(
        "from-nothing", ["warm_start.worlds=0", "warm_start.one_shot=0", "limits.max_tokens=100000", MADE]
    )
    made = made_questions(recipe, data)
    assert made == made_questions(recipe, Dataset(data.folder)) and 10 <= len(made) <= 30
    assert all(map(gold_path, made))
    protocol = recipe.load_protocol()
    tokenizer = ByteTokenizer(protocol.grammar.special_tokens)
    shown = demonstrate(recipe, protocol, tokenizer, Bm25.over(data.corpus), data, NoProgress())
    assert [run.question for run in shown] == [*data.questions("train"), *made]


def test_renamed_questions_are_demonstrated_beside_the_training_questions(tmp_path: Path) -> None:
    corpus, questions = films()
    corpus.save(tmp_path / "corpus.jsonl")
    write_jsonl(tmp_path / "questions.train.jsonl", (question.to_json() for question in questions))
    room = [f"limits.max_{what}tokens=100000" for what in ("", "turn_", "observation_", "document_")]
    settings = ["warm_start.worlds=0", "warm_start.one_shot=0", "warm_start.renamed=2", *room]
    recipe, data = load_recipe("from-nothing", settings), Dataset(tmp_path)
    protocol = recipe.load_protocol()
    tokenizer = ByteTokenizer(protocol.grammar.special_tokens)
    shown = demonstrate(recipe, protocol, tokenizer, Bm25.over(corpus), data, NoProgress())
    copies = [rename(corpus, questions, seed) for seed in (0, 1)]
    assert [run.question for run in shown] == [*questions, *(question for _, renamed in copies for question in renamed)]
    for (renamed, _), runs in zip(copies, (shown[3:6], shown[6:]), strict=True):
        hits = [hit.passage for run in runs for search in run.searches for hit in search.hits]
        assert hits and all(hit == renamed.by_id(hit.id) for hit in hits)


@pytest.mark.parametrize("other", ["warm_start.worlds=2", "warm_start={demonstrator: rules, worlds: 0, %s}"])
@pytest.mark.parametrize(
    ("kind", "setting", "some"), [("made", MADE, "made: {}"), ("renamed", "warm_start.renamed=1", "renamed: 1")]
)
def test_who_does_not_demonstrate_made_or_renamed_questions_is_refused_them(
    kind: str, setting: str, some: str, other: str
) -> None:
    with pytest.raises(SettingError, match=f"only the expert demonstrates {kind} questions"):
        load_recipe("from-nothing", [setting, other.replace("%s", some)])


LONG = "It was built of wood . " * 60


def demonstrations(folder: Path, *settings: str) -> list[Trajectory]:
    write_jsonl(folder / "corpus.jsonl", [
        {"id": "rome", "title": "Rome", "text": "Rome was made by Romulus."},
        {"id": "ostia", "title": "Ostia", "text": f"Ostia is a harbour. {LONG} It was made by Ancus."},
        {"id": "alba", "title": "Alba", "text": "Alba lies on a hill."},
    ])  # fmt: skip
    write_jsonl(folder / "questions.train.jsonl", [
        {"id": "found", "question": "Who made Rome?", "answers": ["Romulus"], "gold_ids": ["rome"], "hops": 1},
        {"id": "cut", "question": "Who made Ostia?", "answers": ["Ancus"], "gold_ids": ["ostia"], "hops": 1},
        {"id": "missed", "question": "Who made nothing?", "answers": ["Nobody"], "gold_ids": ["alba"], "hops": 1},
    ])  # fmt: skip
    recipe = load_recipe("smollm", [
        "limits={passages_per_search: 1, max_document_tokens: 400, max_observation_tokens: 500, max_turn_tokens: 500, "
        "max_tokens: 9000}", "warm_start.also={}", *settings,
    ])  # fmt: skip
    data, protocol = Dataset(folder), recipe.load_protocol()
    tokenizer = ByteTokenizer(protocol.grammar.special_tokens)
    return demonstrate(recipe, protocol, tokenizer, Bm25.over(data.corpus), data, NoProgress())


def test_neither_a_missed_passage_nor_an_answer_that_was_cut_off_is_demonstrated(tmp_path: Path) -> None:
    runs = demonstrations(tmp_path, "warm_start.one_shot=0", "warm_start.reading=0")
    assert [run.question.id for run in runs] == ["found"]
    assert "Rome was made by Romulus." in runs[0].segments[-1].text
    assert NOT_FOUND not in "".join(run.segments[-1].text for run in runs)


def test_a_reading_shows_the_gold_passage_and_learns_the_answer_alone(tmp_path: Path) -> None:
    runs = demonstrations(tmp_path, "warm_start.one_shot=0", "warm_start.reading=1")
    readings = [run for run in runs if run.protocol == "generator"]
    assert {run.question.id for run in readings} == {"found", "cut", "missed"}
    for run in readings:
        prompt, reply = run.segments
        assert (prompt.author, reply.author) == (Author.ENVIRONMENT, Author.AGENT)
        assert run.question.question in prompt.text
        assert prompt.text.count("\n[") <= 5
        assert reply.text.startswith(run.question.answers[0])
