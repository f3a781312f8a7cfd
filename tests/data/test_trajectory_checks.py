"""The invariants of one trajectory: each that a file may have lost is named with its segment."""

from collections.abc import Callable
from typing import TypeAlias, cast

import pytest
from tests.measure.samples import MIRA, ORBO, OTHER, decode, fault, found, run

from coseek.core.errors import DataError
from coseek.core.files import JsonObject, parse_row
from coseek.data.trajectory import Trajectory
from coseek.data.trajectory_checks import check_trajectory

Edit: TypeAlias = Callable[[JsonObject], object]


def sound() -> Trajectory:
    return run(found("orbo", ORBO, OTHER), found("mira", MIRA), selected_ids=("mira",))


def part(row: JsonObject, at: int) -> JsonObject:
    return cast(list[JsonObject], row["segments"])[at]


def search(row: JsonObject, at: int) -> JsonObject:
    return cast(list[JsonObject], row["searches"])[at]


def items(row: JsonObject, name: str) -> list[object]:
    return cast(list[object], row[name])


def test_trajectories_of_the_driver_hold_every_invariant() -> None:
    for trajectory in (sound(), fault(), run(answer=None, valid=False)):
        assert [*check_trajectory(trajectory, decode)] == []


BROKEN: dict[str, tuple[Edit, int | None, str]] = {
    "another text": (lambda row: part(row, 1).update(text="<think>ho</think>"), 1, "not the decoding of the ids"),
    "another id": (lambda row: items(part(row, 2), "ids").__setitem__(0, 65), 2, "from character 0"),
    "ids that no tokenizer has": (
        lambda row: items(part(row, 2), "ids").__setitem__(0, 99_999_999),
        2,
        "cannot be decoded",
    ),
    "a negative id": (lambda row: items(part(row, 0), "ids").__setitem__(3, -1), 0, "token 3 is -1"),
    "a lost log-probability": (lambda row: items(part(row, 1), "logprobs").pop(), None, "log-probabilities"),
    "a positive one": (lambda row: items(part(row, 1), "logprobs").__setitem__(2, 0.5), 1, "token 2 is 0.5"),
    "the environment as agent": (lambda row: part(row, 2).update(author="agent"), None, "log-probabilities"),
    "the agent as environment": (lambda row: part(row, 1).update(author="environment"), None, "log-probabilities"),
    "a lost observation": (lambda row: items(row, "segments").pop(2), 2, "two turns of the agent"),
    "a lost prompt": (lambda row: items(row, "segments").pop(0), 0, "begins with the environment's prompt"),
    "no segments": (lambda row: row.update(segments=[], searches=[], selected_ids=[]), None, "no segments"),
    "an observation nobody asked for": (lambda row: items(row, "searches").pop(0), None, "2 observations and only 1"),
    "rising scores": (lambda row: items(search(row, 0), "hits").reverse(), None, "not finite and falling"),
    "the same hit twice": (
        lambda row: items(search(row, 1), "hits").append(items(search(row, 1), "hits")[0]),
        None,
        "same passage twice",
    ),
    "an answer nobody gave": (lambda row: row.update(stop="invalid"), None, "only answered runs have an answer"),
    "a lost answer": (lambda row: row.update(answer=None), None, "only answered runs have an answer"),
    "a fault without a failed search": (
        lambda row: row.update(stop="retriever_error", answer=None),
        None,
        "none of its searches failed",
    ),
    "valid with a format error": (lambda row: row.update(format_error="no"), None, "exactly one holds"),
    "a selection out of nowhere": (lambda row: row.update(selected_ids=["zun"]), None, "'zun' was never retrieved"),
    "evidence out of nowhere": (lambda row: row.update(evidence=["zun"]), None, "'zun' of the evidence was never"),
    "evidence twice": (
        lambda row: row.update(evidence=["orbo", "orbo", "other", "mira"]),
        None,
        "'orbo' stands twice in the evidence",
    ),
    "evidence that is not whole": (lambda row: row.update(evidence=["orbo"]), None, "is not in the evidence"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_invariant_is_named_with_its_segment(name: str) -> None:
    edit, segment, says = BROKEN[name]
    row = sound().to_json()
    edit(row)
    try:
        what, at = next(check_trajectory(parse_row(row, Trajectory.from_json, "row"), decode))
    except DataError as error:
        what, at = str(error), None
    assert says in what and at == segment


def test_text_is_compared_only_where_ids_can_be_decoded() -> None:
    row = sound().to_json()
    part(row, 1).update(text="<think>ha</think>")
    assert [*check_trajectory(Trajectory.from_json(row))] == []
    assert [*check_trajectory(Trajectory.from_json(row), decode)] != []
