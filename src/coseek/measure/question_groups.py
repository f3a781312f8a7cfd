"""Question groups: the questions that tables average together, by data set, hops, type and domain."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from coseek.core.errors import UnknownName
from coseek.data.question import KNOWN, Question

ALL = "all"
"""Name of the group of all questions."""
IN_DOMAIN, OUT_OF_DOMAIN = "in domain", "out of domain"
"""Groups of questions from data sets that were trained on, and of the others."""

MACRO, MACRO_LARGE = "macro", "macro, n ≥ 200"
"""Macro means, in which every data set weighs the same: over all sets, and without those of fewer than `LARGE_SET`
questions. The mean over all questions is the micro mean."""
MICRO = "micro"
LARGE_SET = 200
RESERVED = (ALL, IN_DOMAIN, OUT_OF_DOMAIN, MACRO, MACRO_LARGE)


def _by_hops(question: Question) -> str | None:
    return None if question.hops is None else f"{question.hops} hop" + ("s" if question.hops != 1 else "")


GROUPS: dict[str, Callable[[Question], str | None]] = {
    "hops": _by_hops,
    "chain": lambda question: "2+ hops" if (question.hops or 0) > 1 else None,
    "kind": lambda question: question.kind,
    "known": lambda question: "known" if question.meta.get(KNOWN) else "not known",
    "dataset": lambda question: question.dataset,
}
"""Functions that group questions; `None`: only in the group `all`."""


def check_groups(by: Iterable[str]) -> None:
    """Raise `UnknownName` for an unknown grouping."""
    for name in by:
        if name not in GROUPS:
            raise UnknownName("group", name, GROUPS)


def datasets_of(questions: Iterable[Question]) -> dict[str, list[str]]:
    """Data set → the ids of its questions, by name; empty for questions of fewer than two data sets."""
    datasets: dict[str, list[str]] = {}
    for question in questions:
        if question.dataset is not None:
            # A set called like another group would hide it.
            name = f"{question.dataset} (set)" if question.dataset in RESERVED else question.dataset
            datasets.setdefault(name, []).append(question.id)
    return dict(sorted(datasets.items())) if len(datasets) > 1 else {}


def groups_of(
    questions: Iterable[Question], by: Sequence[str], in_domain: Collection[str] = ()
) -> dict[str, list[str]]:
    """Group → the ids of its questions; `all` comes first, then the data sets where there are several."""
    all_questions = list(questions)
    dataset_groups = datasets_of(all_questions)
    groups = {ALL: [question.id for question in all_questions], **dataset_groups}
    if in_domain:
        is_in_domain = {question.id: question.dataset in in_domain for question in all_questions}
        groups[IN_DOMAIN] = [ident for ident in is_in_domain if is_in_domain[ident]]
        groups[OUT_OF_DOMAIN] = [ident for ident in is_in_domain if not is_in_domain[ident]]
    for name in by:
        if name == "dataset" and dataset_groups:
            continue
        members = [(group, question.id) for question in all_questions if (group := GROUPS[name](question)) is not None]
        for group, ident in sorted(members):
            groups.setdefault(group, []).append(ident)
    return groups


def macro_groups(datasets: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """Macro mean → its data sets, of data sets with their questions; empty for fewer than two sets."""
    large = [name for name, idents in datasets.items() if len(idents) >= LARGE_SET]
    groups = {MACRO: list(datasets)} if len(datasets) > 1 else {}
    return {**groups, MACRO_LARGE: large} if groups and 0 < len(large) < len(datasets) else groups
