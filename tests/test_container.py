"""The container: its steps are those of `make env`, and what it copies is what a clone has. `make check` lints it."""

import re
import tomllib

from tests.source_tree import ROOT

LINES = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()


def test_its_only_step_is_the_installation_that_everybody_uses() -> None:
    assert [line for line in LINES if line.startswith("RUN")] == ["RUN make env"]
    assert LINES.index("COPY . /coseek") < LINES.index("WORKDIR /coseek") < LINES.index("RUN make env")


def test_its_python_is_one_that_we_are_tested_with() -> None:
    (version,) = re.findall(r"^FROM python:(3\.\d+)-", "\n".join(LINES), flags=re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]


def test_nothing_that_git_leaves_out_is_copied_into_it() -> None:
    def names(file: str) -> set[str]:
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        return {line.strip("/").removeprefix("**/") for line in lines if line and not line.startswith("#")}

    assert names(".gitignore") <= names(".dockerignore")
    copied = {"pyproject.toml", "constraints.txt", "Makefile", "README.md", "LICENSE", "src", "docs", "bench", "tests"}
    assert not copied & names(".dockerignore")
