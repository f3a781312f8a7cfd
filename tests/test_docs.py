"""The documentation: links, commands, recipes and settings that it names are those of the code."""

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from tests.source_tree import PACKAGE, ROOT, nodes, sources
from tests.test_architecture import LAYERS

from coseek.cli.main import COMMANDS, program_of
from coseek.core.plugins import plugin_names
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question
from coseek.data.trajectory import StopReason, Trajectory
from coseek.pipelines.agent_recipe import load_recipe, recipe_names
from coseek.pipelines.part_trials import check_part
from coseek.pipelines.together_recipe import load_together_recipe, together_recipe_names
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.index import build_index
from coseek.rewards.reward import Reward, make_reward
from coseek.training.encoder.recipe import load_retriever_recipe, retriever_recipe_names

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINKING = [*PAGES, ROOT / "CHANGELOG.md", *sorted((ROOT / "bench" / "results").glob("*.md"))]
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
OTHERS_NAMES = ("RECIPE", "NAME")
"""Placeholders for a recipe of the reader's choice."""


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_pages_and_headings_that_exist(page: Path) -> None:
    for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        target = page.parent / link if link else page
        assert target.exists(), f"{link} is not there"
        assert not anchor or anchor in anchors(target), f"{link} has no heading #{anchor}"


def test_every_page_is_linked_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)#\s]+)", index.read_text("utf-8"))}
    missing = {page.resolve() for page in (ROOT / "docs").rglob("*.md")} - linked - {index.resolve()}
    assert not missing, sorted(map(str, missing))


def test_every_page_that_the_code_names_exists() -> None:
    missing = {
        (str(path.relative_to(ROOT)), name)
        for folder in ("src", "tests", "bench")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".yaml")
        for name in re.findall(r"\b(?:docs|bench/results)/[\w./-]*\.md\b", path.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    }
    assert not missing, sorted(missing)


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """(page, arguments behind `coseek`) of every command line in a shell block."""
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                start = words.index("coseek") if "coseek" in words else None
                if start is not None and (start == 0 or words[start - 1] == "-m"):
                    yield str(page.relative_to(ROOT)), words[start + 1 :]


COMMAND_LINES = pytest.mark.parametrize(
    ("page", "arguments"), [pytest.param(page, words, id=" ".join(words[:4])) for page, words in command_lines()]
)


@COMMAND_LINES
def test_every_command_line_parses_as_the_program_would(page: str, arguments: list[str]) -> None:
    assert arguments[0] in plugin_names(COMMANDS), page
    program = program_of(arguments[0])
    context = program.make_context("coseek", arguments[1:])
    if isinstance(program, typer.core.TyperGroup):
        name, command, rest = program.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        command.make_context(name, rest, parent=context)


@COMMAND_LINES
def test_every_recipe_and_setting_on_a_command_line_exists(page: str, arguments: list[str]) -> None:
    if arguments[0] != "train" or arguments[2] in OTHERS_NAMES:
        return
    settings = [word for word in arguments[3:] if re.match(r"[a-z_.]+=", word)]
    if arguments[1] == "agent":
        # A part of the reader's own is a file that is not here.
        load_recipe(arguments[2], [word for word in settings if ".py" not in word])
    elif arguments[1] == "retriever":
        labels = ["labels"] if {"--labels", "--settings"} & {*arguments} else []
        load_retriever_recipe(arguments[2], settings, labels)
    elif arguments[1] == "together":
        load_together_recipe(arguments[2], settings)


def test_every_recipe_has_a_line_in_the_documentation() -> None:
    written = {name for page in PAGES for name in re.findall(r"`[^`\n]+`", page.read_text(encoding="utf-8"))}
    names = {*recipe_names(), *retriever_recipe_names(), *together_recipe_names()}
    assert [name for name in sorted(names) if not {f"`{name}`", f"`{name.removesuffix('-laptop')}`"} & written] == []


def test_every_extra_has_a_place_in_the_documentation() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs" / "reference" / "extras.md").read_text(encoding="utf-8")
    ours = {"dev", "mutation", "docs"}
    assert [name for name in project["optional-dependencies"] if name not in ours and f"`{name}`" not in page] == []


def test_the_page_on_the_architecture_has_the_layers_of_the_test() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    told = {package: int(layer) for layer, package in re.findall(r"^\| (\d+) \| `(\w+)` \|", page, flags=re.MULTILINE)}
    there = {package: layer for package, layer in LAYERS.items() if list(PACKAGE.glob(f"{package}*"))}
    assert {package: told.get(package) for package in there} == there


def test_the_files_of_own_mechanisms_exist() -> None:
    page = (ROOT / "docs" / "explanation" / "own-mechanisms.md").read_text(encoding="utf-8")
    files = re.findall(r"`(?!src/)([a-z_]+/[\w/]+(?:\.py)?)`", page)
    assert files
    assert [name for name in files if not (PACKAGE / name).exists()] == []


def test_every_class_of_the_glossary_exists() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^- (.*?):", page, flags=re.MULTILINE)
    named = {name for word in words for name in re.findall(r"`([A-Z]\w+)`", word)}
    parsed = (node for path in sources("src/coseek") for node in nodes(path))
    assert named and named <= {node.name for node in parsed if isinstance(node, ast.ClassDef)}


def page_files(page: Path) -> dict[str, str]:
    """File name → content, of the Python blocks behind "All of `NAME.py`:" on a page."""
    text = page.read_text(encoding="utf-8")
    return dict(re.findall(r"All of `(\w+\.py)`:\n\n```python\n(.*?)```", text, flags=re.DOTALL))


@pytest.mark.medium
def test_the_parts_of_the_page_on_own_parts_work(tmp_path: Path) -> None:
    files = page_files(ROOT / "docs" / "how-to" / "write-a-part.md")
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    reward = make_reward({str(tmp_path / "brevity.py"): {"weight": 1.0, "most": 20}})
    trajectory = Trajectory(Question("q", "Who?", ("Ada",)), "direct", (), (), StopReason.ANSWERED, "Ada Lovelace")
    paid = reward.compute(trajectory)
    assert isinstance(paid, Reward) and paid.value == pytest.approx(0.9)

    for stem, kind in {"brevity": "reward", "newest": "retriever", "latest_find": "query view"}.items():
        assert check_part(tmp_path / f"{stem}.py").kind == kind

    corpus = Corpus([Passage("old", "T", "a bridge of 1801"), Passage("new", "T", "a bridge of 1999")])
    corpus.save(tmp_path / "corpus.jsonl")
    build_index(tmp_path / "corpus.jsonl", "bm25", tmp_path / "bm25")
    (tmp_path / "newest.yaml").write_text("retriever: newest.py\nover: bm25\ndepth: 10\n", encoding="utf-8")
    hits = open_retriever(tmp_path / "newest.yaml").search(["a bridge"], k=2)[0]
    assert [hit.passage.id for hit in hits] == ["new", "old"]
