"""`coseek view` on the command line."""

from pathlib import Path

import pytest
from tests.view.samples import Elements, make_run, trajectory

from coseek.cli.main import main


def test_the_page_lies_in_the_run_unless_it_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "run", [trajectory()])
    assert main(["view", str(folder)]) == 0
    assert f"{folder / 'view.html'}: 1 episodes" in capsys.readouterr().out
    named = tmp_path / "new" / "page.html"
    assert main(["view", str(folder), "--out", str(named)]) == 0
    assert Elements(named.read_text("utf-8")).data["runs"] == ["run"]
    assert named.read_bytes() == (folder / "view.html").read_bytes()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--out", "run/trajectories.jsonl"], "ends in .html"),
        (["--serve", "--out", "x.html"], "leave out --out"),
        (["--labels", "run"], "holds no labels"),
        (["run"], "named twice"),
        (["empty"], "is not a run"),
    ],
)
def test_a_mistake_is_one_sentence_and_no_file_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = make_run(Path("run"), [trajectory()])
    Path("empty").mkdir()
    before = (folder / "trajectories.jsonl").read_bytes()
    assert main(["view", "run", *options]) == 2
    assert said in capsys.readouterr().err
    assert (folder / "trajectories.jsonl").read_bytes() == before
    assert not list(tmp_path.rglob("*.html"))
