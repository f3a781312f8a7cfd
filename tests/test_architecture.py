"""The architecture: layers, sizes and names, read from the files themselves."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.source_tree import PACKAGE, ROOT, imported_modules, imported_packages, nodes, parsed, sources

import coseek
from coseek.cli.main import COMMANDS, main
from coseek.core.errors import EXTRA_OF, MissingExtra
from coseek.core.plugins import plugin_names
from coseek.core.settings import Settings

LAYERS = {
    "core": 0,
    "data": 1,
    "hardware": 1,
    "models": 2,
    "retrieval": 3,
    "agents": 4,
    "measure": 5,
    "hub": 6,
    "rewards": 6,
    "traces": 6,
    "graders": 7,
    "labels": 8,
    "training": 9,
    "pipelines": 10,
    "lab": 11,
    "studies": 11,
    "serve": 12,
    "view": 12,
    "cli": 12,
    "library": 13,
    "adapters": 13,
}
"""Package → layer. A package imports itself and packages on lower layers, nothing else."""

NEIGHBOURS = {
    ("cli", "serve"): "the command line starts the services",
    ("cli", "view"): "the command line writes and serves the viewer's page",
}
"""The only ways between two packages of one layer, each with its reason."""

TORCH_FREE = (
    "core", "data", "hardware", "retrieval", "agents", "rewards", "measure", "traces", "hub", "graders", "labels",
    "view", "cli", "lab.world", "lab.agents", "lab.synthesis",
)  # fmt: skip

LONG: dict[str, str] = {}
"""Files over 500 lines and functions (`file:function`) over 60, each with its reason."""


def test_every_package_has_a_layer() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert packages <= LAYERS.keys()


@pytest.mark.medium
def test_packages_import_only_lower_layers() -> None:
    wrong = []
    for path in sources("src/coseek"):
        package = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for other in imported_packages(path) if package in LAYERS else ():
            below = other not in LAYERS or LAYERS[other] < LAYERS[package]
            if not (other == package or below or (package, other) in NEIGHBOURS):
                wrong.append(f"{path.relative_to(ROOT)} imports {other}")
    assert not wrong, "\n".join(wrong)


def test_only_the_command_line_imports_the_laboratory() -> None:
    """Everything else finds its parts by name, as it finds a user's (`core/plugins.py`)."""
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources("src/coseek")
        if path.relative_to(PACKAGE).parts[0] not in ("lab", "cli")
        for module in imported_modules(path)
        if module.startswith("coseek.lab.")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.medium
def test_tests_and_benches_do_not_import_each_other() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for folder, other in (("tests", "bench"), ("bench", "tests"))
        for path in sources(folder)
        for module in imported_modules(path)
        if module.partition(".")[0] == other
    ]
    assert not wrong, "\n".join(wrong)


def test_files_and_functions_are_short() -> None:
    long = []
    for path in sources("src", "tests", "bench"):
        name = str(path.relative_to(ROOT))
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > 500 and name not in LONG:
            long.append(f"{name}: {lines} lines")
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > 60 and f"{name}:{node.name}" not in LONG:
                    long.append(f"{name}:{node.name}: {length} lines")
    assert not long, "\n".join(long)


def test_every_module_says_what_it_is() -> None:
    silent = [str(path.relative_to(ROOT)) for path in sources("src", "bench") if not ast.get_docstring(parsed(path))]
    assert not silent, "\n".join(silent)


def test_every_setting_is_described_where_it_is_declared() -> None:
    bare = []
    for module_info in pkgutil.walk_packages(coseek.__path__, "coseek."):
        try:
            module = importlib.import_module(module_info.name)
        except MissingExtra:  # an adapter for a library that is not installed here
            continue
        for kind in vars(module).values():
            if inspect.isclass(kind) and issubclass(kind, Settings) and kind.__module__ == module_info.name:
                bare += [
                    f"{module_info.name}.{kind.__name__}.{key}"
                    for key, field in kind.model_fields.items()
                    if not field.description
                ]
    assert not bare, "\n".join(bare)


def run_python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_coseek_imports_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "numpy", "pydantic", "bm25s")
    assert run_python(f"import coseek, sys; print([name for name in {heavy!r} if name in sys.modules])") == "[]\n"


@pytest.mark.medium
def test_packages_that_need_no_torch_import_none() -> None:
    packages = tuple(f"coseek.{package}." for package in TORCH_FREE)
    code = f"""
import coseek, importlib, pkgutil, sys
for found in pkgutil.walk_packages(coseek.__path__, 'coseek.', onerror=lambda name: None):
    if found.name.startswith({packages!r}):
        importlib.import_module(found.name)
        assert 'torch' not in sys.modules, found.name
"""
    # walk_packages imports the packages it walks through; the `__init__` of those with torch is free of it, too.
    run_python(code)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="did you mean 'Passage'"):
        coseek.Passsage  # noqa: B018


def test_type_checkers_and_python_see_the_same_names() -> None:
    tree = parsed(PACKAGE / "__init__.py")
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.asname: (node.module or "").removeprefix("coseek.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == coseek._HOMES


def test_the_version_and_the_extras_are_those_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == coseek.__version__
    for library, extra in EXTRA_OF.items():
        wanted = " ".join(project["optional-dependencies"][extra])
        assert library.replace("_", "-") in wanted, f"{library} is not in the extra {extra}"


def written_commands() -> set[tuple[str, ...]]:
    """Every `coseek COMMAND [SUBCOMMAND]` that README and the docs tell people to type."""
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *PACKAGE.rglob("recipes/*.yaml"),
    ]
    commands: set[tuple[str, ...]] = set()
    for page in pages:
        for words in re.findall(r"\bcoseek ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", code_in(page)):
            commands.add(tuple(word for word in words if word))
    return commands


def code_in(page: Path) -> str:
    """The commands of a page: its code blocks and `code`, or all of a file that is no Markdown."""
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".md":
        return text
    blocks = re.findall(r"```(?:sh|bash|console)?\n(.*?)```", text, flags=re.DOTALL)
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return "\n".join(blocks + re.findall(r"`([^`\n]+)`", prose))


@pytest.mark.medium
def test_every_command_in_the_docs_exists(capsys: pytest.CaptureFixture[str]) -> None:
    for command in sorted(written_commands()):
        assert command[0] in plugin_names(COMMANDS), f"`coseek {command[0]}` is in the docs and is no command"
        assert main([command[0], "--help"]) == 0
        if "COMMAND" in capsys.readouterr().out and len(command) > 1:
            assert main([*command, "--help"]) == 0, f"`coseek {' '.join(command)}` is in the docs and is no command"


def test_every_file_that_the_docs_name_exists() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for name in re.findall(
            r"(?<![\w/])((?:bench|recipes|tests|docs|examples)/[\w./-]+\.\w+)", page.read_text(encoding="utf-8")
        ):
            assert (ROOT / name).exists(), f"{page.relative_to(ROOT)} names {name}, which is not there"


def test_no_link_is_tracked() -> None:
    """Git makes way for a tracked link by deleting an ignored folder of its name, such as `.venv`."""
    if not (ROOT / ".git").exists():
        return
    staged = subprocess.run(["git", "ls-files", "--stage"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    links = [line.partition("\t")[2] for line in staged.splitlines() if line.startswith("120000 ")]
    assert not links, f"run `git rm --cached {' '.join(links)}` and amend the commit"


@pytest.mark.medium
def test_no_file_holds_a_path_of_one_machine() -> None:
    # Put together here, so that this file does not hold what it looks for.
    wrong = re.compile(
        "|".join(("/" + "work/", "/" + "home/", "/" + "root/", "/" + "Users/", "index" + "-url", "find" + "-links"))
    )
    kept = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]
    for folder in ("src", "tests", "bench", "docs", "examples", ".ci"):
        kept += [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    leaks = [
        f"{path.relative_to(ROOT)}, line {number}"
        for path in kept
        for number, line in enumerate(path.read_bytes().decode("utf-8", errors="replace").splitlines(), start=1)
        if wrong.search(line)
    ]
    assert not leaks, "\n".join(leaks)
