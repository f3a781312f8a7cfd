"""The glossary: its names are the code's names, and words that were given up stand nowhere in the code."""

import ast
import re

from tests.source_tree import PACKAGE, ROOT, nodes, parsed, sources

import coseek

ROWS = re.findall(
    r"^\| ([^|]+?) \| ([^|]+?) \| ([^|]+?) \|$",
    (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"),
    flags=re.MULTILINE,
)[1:]
"""(word with its names, meaning, use in the field), without the head."""
MAIN = {
    "agents": "agents/rollout.py agents/protocol.py agents/grammar.py agents/episode.py agents/scripted_agent.py",
    "core": "core/cache.py",
    "data": "data/passage.py data/question.py data/trajectory.py data/run.py data/dataset.py",
    "labels": "labels/label_folder.py",
    "measure": "measure/leaderboard.py",
    "models": "models/engine.py models/text_model.py",
    "training": "training/trainer/critic.py training/trainer/workers.py training/trainer/batch.py",
    "world": "world/world.py world/oracle.py",
}
"""Room → its main modules."""


def words_of(text: str) -> set[str]:
    return set(text.split())


TOO_SMALL = words_of(
    """
    Action Batch Call CanConclude DataError Intent LeaderboardCell Move ProtocolFile Ranks Span TagFile ToolFile
    TurnSearches
    KVCache LineFile OutOfTokens RunRows CachedTextModel KeptTexts PartialFailure Place TokenBlock ValueModule
    """
)
"""Classes of main modules that are details of one that has a row."""
GIVEN_UP = words_of(
    """
    answering asides beginning complaint complaints feeding making wording wordings writers
    """
)
"""Words of an older dialect that are part of no identifier."""
NO_CLASS = words_of(
    """
    aside board course door frozen health journal lesson lessons past said sheet sick tally told watching
    writing
    """
)
"""Words of it that still name a local variable here and there, and no class or module."""
STANDARD = {"Frozen", "PastTurn", "TensorBoardTracker"}
"""Classes whose name has such a word in its ordinary sense."""


def names(word: str) -> list[str]:
    return re.findall(r"`([A-Za-z_]\w*)`", word)


def plain(word: str) -> str:
    return re.sub(r"\s*`[^`]*`", "", word).lower()


def classes() -> set[str]:
    found = (node for path in sources("src/coseek") for node in nodes(path))
    return {node.name for node in found if isinstance(node, ast.ClassDef)}


def modules() -> set[str]:
    """The names of files and folders."""
    return {part.removesuffix(".py") for path in sources("src/coseek") for part in path.relative_to(PACKAGE).parts}


def identifiers() -> set[str]:
    """Every name that the code defines: classes, functions, arguments and variables, modules and folders."""
    found = classes() | modules()
    for path in sources("src/coseek"):
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return found


def parts(name: str) -> set[str]:
    """The words that an identifier is put together from."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+", name)}


def test_words_are_sorted_and_each_stands_once() -> None:
    words = [plain(word) for word, _, _ in ROWS]
    assert words == sorted(set(words))
    assert 80 <= len(words) <= 140


def test_a_name_stands_at_one_word_only() -> None:
    found = [name for word, _, _ in ROWS for name in names(word)]
    assert sorted(found) == sorted(set(found))


def test_every_class_of_the_glossary_exists() -> None:
    wanted = {name for word, meaning, _ in ROWS for name in names(word) + names(meaning) if name[0].isupper()}
    assert wanted - classes() == set()


def test_every_name_that_coseek_offers_has_a_word() -> None:
    known = {name for word, _, _ in ROWS for name in names(word)}
    assert {name for name in coseek.__all__ if not name.startswith("__")} - known == set()


def test_the_main_classes_of_every_room_have_a_word() -> None:
    known = {name for word, _, _ in ROWS for name in names(word)} | TOO_SMALL
    missing = [
        f"{module}: {node.name}"
        for modules in MAIN.values()
        for module in modules.split()
        for node in parsed(PACKAGE / module).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in known
    ]
    assert not missing, missing


def test_words_that_were_given_up_name_nothing_in_the_code() -> None:
    assert sorted(name for name in identifiers() if parts(name) & GIVEN_UP) == []
    named = classes() | modules()
    assert sorted(name for name in named - STANDARD if parts(name) & NO_CLASS) == []
