"""An array that is written piece by piece is the file that numpy writes at once."""

from pathlib import Path

import numpy as np
import pytest

from coseek.retrieval.lexical.postings import ArrayWriter


@pytest.mark.parametrize(
    "pieces", [[], [[]], [[1, 2], [], [255]], [[1], [300, 2], [3]], [[7] * 9, [70_000]], [[0.5], [2.25, -1.0]]]
)
def test_pieces_make_the_bytes_that_numpy_saves(pieces: list[list[float]], tmp_path: Path) -> None:
    kind = np.float32 if any(isinstance(one, float) for piece in pieces for one in piece) else np.uint8
    with ArrayWriter(tmp_path / "pieces.npy", kind) as writer:
        for piece in pieces:
            writer.append(np.array(piece, dtype=np.float32 if kind is np.float32 else np.uint32))
    whole = np.array([one for piece in pieces for one in piece])
    smallest = np.min_scalar_type(int(whole.max(initial=0))) if kind is np.uint8 else kind
    np.save(tmp_path / "whole.npy", whole.astype(smallest))
    assert (tmp_path / "pieces.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
