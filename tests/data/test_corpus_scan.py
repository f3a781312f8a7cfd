"""A corpus file that changed is scanned again as if for the first time."""

import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from coseek.data.corpus_file import DIGESTS, KnownLines, LinePositions, scan_lines
from coseek.data.passage import Passage, passage_digest

PIECES = [1, 64, 1 << 20]


def written(rows: list[tuple[str, str]], path: Path, rng: random.Random) -> list[bytes]:
    """Write passages with blank lines among them, and no line end behind the last; returns their digests."""
    lines = []
    for ident, text in rows:
        lines += rng.choice([[], [], [" \t"], ["", "\x0b"]])
        lines.append(f'{{"id": "{ident}", "text": "{text}"}}')
    path.write_text("\n".join(lines), encoding="utf-8")
    return [passage_digest(Passage(ident, "", text)) for ident, text in rows]


def joined(found: LinePositions) -> list[NDArray[np.int64]]:
    return [np.concatenate(pieces) for pieces in (found.spans, found.lines, found.passages, found.groups)]


@pytest.mark.slow
@pytest.mark.parametrize("piece_bytes", PIECES)
def test_what_an_earlier_scan_knows_changes_no_digest_and_no_span(piece_bytes: int, tmp_path: Path) -> None:
    rng, path = random.Random(piece_bytes), tmp_path / "corpus.jsonl"
    rows = [(f"p{row}", "é" * rng.randint(0, 40)) for row in range(200)]
    for batch in range(3):
        wanted = written(rows, path, rng)
        fresh = joined(scan_lines(path, None, piece_bytes))
        assert fresh[2].tobytes() == b"".join(wanted)
        data = path.read_bytes()
        assert [data[start:end].strip() for start, end in fresh[0].tolist()] == [
            f'{{"id": "{ident}", "text": "{text}"}}'.encode() for ident, text in rows
        ]
        if batch:
            known = KnownLines.read(tmp_path)
            assert known is not None
            found = scan_lines(path, known, piece_bytes)
            assert all(np.array_equal(one, other) for one, other in zip(fresh, joined(found), strict=True))
            rows_N = np.concatenate(found.known)
            assert np.array_equal(known.passages_N4[rows_N[rows_N >= 0]], fresh[2][rows_N >= 0])
            assert (rows_N >= 0).sum() > len(rows) / 2
        scan_lines(path, None, PIECES[batch % 3]).keep(tmp_path)
        np.save(tmp_path / DIGESTS, fresh[2])
        for edit in range(10):
            at = rng.randrange(len(rows))
            new = (f"n{batch}-{edit}", "x" * rng.randint(0, 40))
            rows[at : at + rng.randint(0, 2)] = [new] if rng.random() < 0.7 else []
