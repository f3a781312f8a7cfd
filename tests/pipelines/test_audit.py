"""One fear each: a token, mask, hit, answer, reward or label that was altered, and a digest file that is gone."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from coseek.agents.factory import limits_for, settings_for
from coseek.core.errors import DataError
from coseek.core.files import SUMS, JsonObject, read_jsonl, read_yaml, write_jsonl, write_yaml
from coseek.data.digests import write_digests
from coseek.data.run import Run
from coseek.data.token_data import FILE, TokenData, agent_spans
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import World, make_world
from coseek.labels.label_folder import LabelFolder
from coseek.pipelines.agent_run import RunSettings, run_agent
from coseek.pipelines.audit import audit_labels, audit_run, audits_of
from coseek.pipelines.labelling import label_runs, label_settings
from coseek.retrieval.index import build_index
from coseek.rewards.reward import Reward, make_reward

Edit = Callable[[list[JsonObject]], object]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(WorldSettings(size="tiny", train=0, dev=0, test=3))


@pytest.fixture(scope="module")
def home(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world, its index, a run of rules with the rewards of a training, and gold labels of it."""
    home = tmp_path_factory.mktemp("home")
    world.save(home / "world")
    build_index(home / "world", "bm25", home / "index")
    answer(home, "rules", home / "run")
    run = Run(home / "run")
    reward = make_reward({"exact_match": 1.0})
    data = []
    for trajectory in run.trajectories():
        paid = reward.compute(trajectory)
        assert isinstance(paid, Reward)
        key = (trajectory.question.id, trajectory.seed)
        data.append(TokenData(*key, 0, paid.value, paid.parts, spans=agent_spans(trajectory)).to_json())
    write_jsonl(run.folder / FILE, data)
    write_yaml(run.folder / "run.yaml", {**run.record, "settings": {**run.settings, "reward": {"exact_match": 1.0}}})
    write_digests(run.folder, run.files)
    settings, own = label_settings([str(run.folder)], {}, {"method": "gold"})
    label_runs(settings, own, home / "labels")
    return home


def answer(home: Path, agent: str, out: Path) -> None:
    who = settings_for(agent, "search-r1")
    limits = limits_for(who).model_copy(update={"max_turn_tokens": 40} if agent != "rules" else {})
    source = {"questions": str(home / "world"), "split": "test", "retriever": str(home / "index")}
    run_agent(RunSettings(**source, agent=who, limits=limits), out, resume=False)  # type: ignore[arg-type]


def parts(row: JsonObject, name: str) -> list[JsonObject]:
    return cast(list[JsonObject], row[name])


def first_hit(rows: list[JsonObject]) -> JsonObject:
    return next(hit for search in parts(rows[0], "searches") for hit in parts(search, "hits"))


def test_everything_of_a_sound_run_is_derived_again(home: Path) -> None:
    audit = audit_run(home / "run", str(home / "index"))
    assert (audit.rows, audit.derived, audit.bound, audit.violations, audit.left_out) == (3, 3, True, (), {})


def a_token(rows: list[JsonObject]) -> None:
    """Write an exclamation mark for a space into what the environment showed, in the ids and in the text."""
    segment = parts(rows[0], "segments")[2]
    ids = cast(list[int], segment["ids"])
    ids[ids.index(ord(" "))] = ord("!")
    segment["text"] = str(segment["text"]).replace(" ", "!", 1)


def the_mask(rows: list[JsonObject]) -> None:
    segment = parts(rows[0], "segments")[2]
    segment.update(author="agent", tag="search", logprobs=[-0.5] * len(cast(list[int], segment["ids"])))


RUN = "trajectories.jsonl"
ALTERED: dict[str, tuple[str, Edit, str]] = {
    "a token": (RUN, a_token, "not what the environment writes here"),
    "the mask": (RUN, the_mask, "two turns of the agent"),
    "a tag": (RUN, lambda rows: parts(rows[0], "segments")[1].update(tag=""), "it is '' by the agent"),
    "a query": (RUN, lambda rows: parts(rows[0], "searches")[0].update(query="who"), "search 1 asks 'who'"),
    "an answer": (RUN, lambda rows: rows[0].update(answer="nobody"), "answer is 'nobody'"),
    "a hit that was shown": (RUN, lambda rows: first_hit(rows).update(text="It is."), "not what the environment"),
    "a score": (RUN, lambda rows: first_hit(rows).update(score=99.5), "search 1 finds other passages or scores now"),
    "a gold answer": (RUN, lambda rows: cast(JsonObject, rows[0]["question"]).update(answers=["x"]), "not that of the"),
    "a seed": (RUN, lambda rows: rows[0].update(seed=5), "no such question with seed 5"),
    "a row": (RUN, lambda rows: rows.pop(), "1 of the run's 3 rows are missing"),
    "the same row twice": (RUN, lambda rows: rows.append(rows[0]), "on line 1 already"),
    "a reward": (FILE, lambda rows: rows[0].update(reward=0.77), "the reward is 0.77"),
    "a part": (FILE, lambda rows: cast(JsonObject, rows[0]["parts"]).update(exact_match=0.5), "'exact_match' is 0.5"),
    "a span": (FILE, lambda rows: parts(rows[0], "spans").pop(), "stand at the tokens"),
}


@pytest.mark.medium
@pytest.mark.parametrize("name", ALTERED)
def test_what_was_altered_differs_from_what_follows(name: str, home: Path, tmp_path: Path) -> None:
    """With new digests, which find nothing."""
    file, edit, says = ALTERED[name]
    folder = shutil.copytree(home / "run", tmp_path / "run")
    rows = [row for _, row in read_jsonl(folder / file)]
    edit(rows)
    write_jsonl(folder / file, rows)
    write_digests(folder, Run(folder).files)
    audit = audit_run(folder, str(home / "index") if name == "a score" else None)
    assert says in "\n".join(map(str, audit.violations))


def test_an_altered_label_differs_from_the_one_that_is_made_again(home: Path, tmp_path: Path) -> None:
    sound = audit_labels(home / "labels")
    assert sound.rows == sound.derived > 0 and sound.bound and not sound.violations and not sound.left_out
    folder = shutil.copytree(home / "labels", tmp_path / "labels")
    path = LabelFolder(folder).sets_path
    rows = [row for _, row in read_jsonl(path)]
    rows[0].update(positive=cast(list[str], rows[0]["negatives"])[0], negatives=[])
    write_jsonl(path, rows[:-1])
    write_digests(folder, [folder / "labels.yaml", path, folder / "dropped.jsonl"])
    violations = "\n".join(map(str, audit_labels(folder).violations))
    assert "positive does not follow from the runs" in violations and "is missing from the runs" in violations
    (folder / SUMS).unlink()
    assert "there is no digest file" in str(audit_labels(folder).violations[0])


def test_what_nobody_can_derive_is_bound_by_the_digest_file(home: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(home / "run", tmp_path / "run")
    rows = [row for _, row in read_jsonl(folder / "trajectories.jsonl")]
    rows[0]["timings"] = {"wall_s": 1.0}
    write_jsonl(folder / "trajectories.jsonl", rows)
    (violation,) = audit_run(folder).violations
    assert violation.file.name == "trajectories.jsonl" and "changed after the folder was closed" in violation.what


def test_a_run_without_digests_was_stopped(home: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(home / "run", tmp_path / "run")
    (folder / SUMS).unlink()
    (violation,) = audit_run(folder).violations
    assert "--resume" in violation.what and not audit_run(folder).bound
    with Run(folder).open_for_append():
        pass
    assert audit_run(folder).count == 0 and audit_run(folder).bound


def test_files_that_have_gone_since_are_named_and_are_no_fault_of_the_run(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = shutil.copytree(home, tmp_path / "home")
    shutil.rmtree(moved / "world")
    shutil.rmtree(moved / "index")
    record = read_yaml(moved / "run" / "run.yaml", "run")
    settings = cast(JsonObject, record["settings"])
    settings |= {"questions": str(moved / "world"), "retriever": str(moved / "index")}
    write_yaml(moved / "run" / "run.yaml", record)
    write_digests(moved / "run", Run(moved / "run").files)
    audit = audit_run(moved / "run")
    assert audit.count == 0 and audit.derived == 3
    assert {"questions and rows", "hits", "searches"} == audit.left_out.keys()


def test_all_runs_and_labels_below_a_folder_are_audited_and_a_folder_without_any_is_refused(
    home: Path, tmp_path: Path
) -> None:
    audits = [(audit.folder.name, audit.of) for audit in audits_of(home)]
    assert audits == [("run", "trajectories"), ("labels", "label rows")]
    with pytest.raises(DataError, match="is not a run"):
        list(audits_of(tmp_path))
