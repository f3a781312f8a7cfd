from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.measure.samples import ORBO, fault, run, search_of

from coseek.core.errors import DataError, SettingError
from coseek.data.digests import Identities
from coseek.data.grade_cache import GeneratedAnswer, GradeCache, Verdict
from coseek.data.run import Run
from coseek.data.trajectory import Search, Trajectory

TRAJECTORIES = [run(search_of("orbo", ORBO)), run(seed=1), fault(seed=2)]


def stored(
    folder: Path,
    trajectories: Sequence[Trajectory] = TRAJECTORIES,
    identities: Identities | None = None,
    order: Sequence[str] | None = None,
) -> Run:
    made = Run.create(folder, {"limits": {"max_turns": 4}})
    with made.open_for_append(identities, order) as file:
        for trajectory in trajectories:
            Run.append(file, trajectory)
    return made


def test_a_run_gives_back_what_was_appended_and_its_settings(tmp_path: Path) -> None:
    stored(tmp_path / "run")
    again = Run(tmp_path / "run")
    assert list(again.trajectories()) == TRAJECTORIES
    assert again.settings == {"limits": {"max_turns": 4}}
    assert again.finished_keys() == {("q1", 0), ("q1", 1), ("q1", 2)}


def test_runs_of_which_a_search_failed_are_repeated_like_those_that_a_fault_ended(tmp_path: Path) -> None:
    lost = run(search_of("orbo", ORBO), Search("mira", fault="503"), seed=2)
    made = stored(tmp_path / "run", [run(search_of("orbo", ORBO)), fault(seed=1), lost])
    assert (made.drop_faults(), [trajectory.seed for trajectory in made.trajectories()]) == (2, [0])


def test_a_refused_resume_has_dropped_no_fault(tmp_path: Path) -> None:
    made = stored(tmp_path / "run", [fault(seed=1)], {"retriever": "a"})
    before = [path.read_bytes() for path in (made.trajectories_path, made.folder / "run.yaml")]
    with pytest.raises(SettingError), made.open_for_append({"retriever": "b"}, repeat_faults=True):
        raise AssertionError("it was opened")
    assert [path.read_bytes() for path in (made.trajectories_path, made.folder / "run.yaml")] == before
    with made.open_for_append({"retriever": "a"}, repeat_faults=True):
        assert not made.finished_keys()


def test_half_a_row_of_a_killed_run_is_completed_by_resume_and_not_by_hand(tmp_path: Path) -> None:
    made = stored(tmp_path / "run")
    made.trajectories_path.write_bytes(made.trajectories_path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"ends in half a row; complete the run: the same command with --resume"):
        list(made.trajectories())


def test_a_run_is_sorted_before_it_is_closed(tmp_path: Path) -> None:
    made = stored(tmp_path / "run", [fault(seed=1), fault(seed=0)], order=["q2", "q1"])
    assert made.is_closed and [trajectory.seed for trajectory in made.trajectories()] == [0, 1]


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    stored(tmp_path / "run")
    with pytest.raises(DataError, match="--resume"):
        Run.create(tmp_path / "run", {})


@pytest.mark.parametrize("cut", [1, 2, 30, 200])
def test_a_line_cut_by_a_kill_is_dropped_before_more_is_appended(cut: int, tmp_path: Path) -> None:
    made = stored(tmp_path / "run")
    whole = made.trajectories_path.read_bytes()
    made.trajectories_path.write_bytes(whole[:-cut])
    with made.open_for_append() as file:
        Run.append(file, TRAJECTORIES[0])
    kept = TRAJECTORIES if cut == 1 else TRAJECTORIES[:-1]  # without its newline alone, a line is still whole
    assert list(made.trajectories()) == [*kept, TRAJECTORIES[0]]


def test_a_run_is_never_begun_among_other_files(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").touch()
    with pytest.raises(DataError, match=r"something else already \(corpus\.jsonl, and no run\.yaml\)"):
        Run.create(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


PARTS = {"questions": "one", "agent": "two"}


def test_trajectories_of_other_parts_never_stand_in_one_run(tmp_path: Path) -> None:
    made = stored(tmp_path / "run", TRAJECTORIES[:1], PARTS)
    before = made.trajectories_path.read_bytes()
    changed = {"questions": "another", "agent": "another"}
    with (
        pytest.raises(SettingError, match=r"other parts than there are now \(what differs: questions, agent\)"),
        made.open_for_append(changed) as file,
    ):
        Run.append(file, TRAJECTORIES[1])
    assert made.trajectories_path.read_bytes() == before
    with made.open_for_append({**PARTS, "retriever": "younger than the run"}) as file:
        Run.append(file, TRAJECTORIES[1])
    with pytest.raises(SettingError, match="what differs: retriever"):
        made.bind({"retriever": "another"})


def test_what_a_failed_start_left_is_begun_anew_and_what_somebody_else_wrote_is_not(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", {"seed": 0}).trajectories_path.touch()
    assert Run.create(tmp_path / "run", {"seed": 1}).settings == {"seed": 1}
    assert Run.begin(tmp_path / "run", {"seed": 2}, resume=True).settings == {"seed": 2}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "run.yaml").write_text("name: http://127.0.0.1:8000\n")
    with pytest.raises(DataError, match="holds a run already"):
        Run.create(tmp_path / "mine", {})
    assert (tmp_path / "mine" / "run.yaml").read_text() == "name: http://127.0.0.1:8000\n"


def test_a_run_inside_of_another_folder_is_made_anew_by_other_parts_alone(tmp_path: Path) -> None:
    made = stored(tmp_path / "table" / "cell", TRAJECTORIES[:1], PARTS)
    (made.folder / "reply.one.jsonl").write_text("{}")
    same = Run.made_with(made.folder, {}, PARTS)
    assert len(same.finished_keys()) == 1 and (made.folder / "reply.one.jsonl").exists()
    fewer = Run.made_with(made.folder, {}, {"agent": "two"})  # nobody could say what it searches now
    assert len(fewer.finished_keys()) == 1
    other = Run.made_with(made.folder, {}, {**PARTS, "agent": "another"})
    assert not other.finished_keys() and [path.name for path in made.folder.iterdir()] == ["run.yaml"]


@pytest.mark.parametrize("inside", ["table", "pairs"])
def test_a_training_run_says_where_its_runs_are(inside: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").touch()
    with pytest.raises(DataError, match="training run, and holds no runs"):
        Run(tmp_path)
    for name in ("c", "a", "b"):
        Run.create(tmp_path / inside / name, {})
    named = f"{tmp_path / inside / 'a'} or {tmp_path / inside / 'b'}"
    with pytest.raises(DataError, match=f"such as {named}$"):
        Run(tmp_path)


# --- sheets of grades: entries lost by a kill, entries of another part, faults that stay for ever


def sheet(folder: Path, identity: str = "judge one") -> GradeCache[Verdict]:
    return GradeCache.beside(folder, Verdict, identity, {"model": "m"})


def write(where: GradeCache[Verdict], *entries: Verdict) -> None:
    with where.appending() as file:
        for entry in entries:
            where.append(file, entry)


def test_a_later_entry_about_the_same_holds(tmp_path: Path) -> None:
    where = sheet(tmp_path)
    write(where, Verdict("q", "a", None, fault="away"), Verdict("q", "b", True))
    write(where, Verdict("q", "a", False))
    assert where.entries() == {("q", "a", ""): Verdict("q", "a", False), ("q", "b", ""): Verdict("q", "b", True)}


def test_a_line_that_a_kill_cut_short_is_dropped_and_the_others_stay(tmp_path: Path) -> None:
    where = sheet(tmp_path)
    write(where, Verdict("q", "a", True), Verdict("q", "b", True))
    where.path.write_bytes(where.path.read_bytes()[:-9])
    assert [entry.response for entry in where.entries().values()] == ["a"]
    write(where, Verdict("q", "c", False))
    assert [entry.response for entry in where.entries().values()] == ["a", "c"]


def test_a_sheet_of_another_part_is_refused(tmp_path: Path) -> None:
    write(sheet(tmp_path), Verdict("q", "a", True))
    sheet(tmp_path).path.rename(sheet(tmp_path, "judge two").path)
    assert sheet(tmp_path).path != GradeCache.beside(tmp_path, GeneratedAnswer, "judge one", {}).path
    with pytest.raises(DataError, match=r"line 1: another part wrote this sheet"):
        sheet(tmp_path, "judge two").entries()


def test_a_broken_entry_is_named_with_its_line(tmp_path: Path) -> None:
    where = sheet(tmp_path)
    write(where, Verdict("q", "a", True))
    with where.path.open("a", encoding="utf-8") as file:
        file.write('{"question_id": "q", "response": "b", "right": "yes", "text": "", "fault": null}\n')
    with pytest.raises(DataError, match="line 3: 'right' must be true or false"):
        where.entries()
