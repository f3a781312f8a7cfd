"""Two processes on one `--out`: the second gets a sentence at once."""

from pathlib import Path

import pytest
from tests.cli.conftest import Type
from tests.core.test_lock import holder


@pytest.mark.parametrize("more", [(), ("--resume",)], ids=["anew", "resumed"])
def test_two_commands_never_write_into_one_folder(
    more: tuple[str, ...], world: Path, index: Path, tmp_path: Path, coseek: Type
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    playing = ("run", world, "--split", "dev", "--count", 2, "--agent", "faulty-expert", "--retriever", index)
    assert coseek(*playing, "--out", run).code == 0
    labelling = ("label", run, "--method", "agentic-r", "--scorer", "oracle")
    with holder("folder", out) as other:
        for words in (playing, labelling, ("train", "agent", "from-nothing")):
            said = f"{out} is being written by another process ({other.pid}); wait until it ends, or choose another"
            assert said in coseek(*words, "--out", out, *more).sentence
