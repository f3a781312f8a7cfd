"""A million real embeddings: MiniLM's vectors of short stretches of the real corpora.

    python bench/embeddings.py --count 1000000      about an hour on two cores; goes on where it was stopped

Every corpus of `--data` is read as one text, and cut into stretches of six words, each beginning a word after the last.
Two neighbours share five words, so that near each vector lie others almost as near: harder to tell apart than the
passages of an encyclopedia. `bench/exact.py` searches what this writes.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from coseek.data.dataset import Dataset
from coseek.data.imports import import_data
from coseek.retrieval.vectors.encoder import encoder_folder

ROOT = Path(__file__).resolve().parent.parent
WORDS, BLOCK = 6, 4_096
SETS = (
    ("hotpotqa", "hotpotqa-pool500"),
    ("hotpotqa", "hipporag-train100"),
    ("musique", "hipporag-train100"),
    ("2wiki", "2wiki-train500"),
    ("2wiki", "hipporag-2wiki-corpus"),
    ("qed", "qed"),
    ("squad", "xquad/xquad.en.json.gz"),
)


def main() -> int:
    args = arguments()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    stretches = list(islice(unique(all_stretches(args.data, args.out)), args.count))
    if len(stretches) < args.count:
        print(f"the corpora hold only {len(stretches):,} different stretches", file=sys.stderr)
    encode(stretches, args.out)
    return 0


def all_stretches(data: Path, work: Path) -> Iterator[str]:
    """Stretches of six words, set after set."""
    for place, (format_name, source) in enumerate(SETS):
        folder = work / "sets" / f"{place}-{format_name}"
        sources = [data / "2wiki-train500", data / source] if source == "hipporag-2wiki-corpus" else [data / source]
        if not folder.exists():
            import_data(format_name, sources, folder)
        words = [word for passage in Dataset(folder).corpus for word in passage.text.split()]
        for start in range(len(words) - WORDS + 1):
            yield " ".join(words[start : start + WORDS])


def unique(texts: Iterator[str]) -> Iterator[str]:
    seen: set[str] = set()
    for text in texts:
        if text not in seen:
            seen.add(text)
            yield text


def encode(texts: list[str], out: Path) -> None:
    """Encode block by block into `minilm.npy`; `done.json` says how many rows are good."""
    path, note = out / "minilm.npy", out / "done.json"
    done = json.loads(note.read_text())["rows"] if note.exists() else 0
    shape = (len(texts), 384)
    vectors_ND = np.lib.format.open_memmap(path, mode="r+" if done else "w+", dtype=np.float32, shape=shape)
    # bfloat16 weights: twice the speed here, and the vectors differ in the third digit. They are stored as float32.
    model = SentenceTransformer(str(encoder_folder("minilm")), device="cpu", local_files_only=True).bfloat16()
    began, first = time.perf_counter(), done
    for start in range(done, len(texts), BLOCK):
        block = texts[start : start + BLOCK]
        found = model.encode(block, batch_size=128, convert_to_tensor=True, show_progress_bar=False).float()
        vectors_ND[start : start + len(block)] = torch.nn.functional.normalize(found, dim=1).numpy()
        vectors_ND.flush()
        note.write_text(json.dumps({"rows": start + len(block)}))
        rate = (start + len(block) - first) / (time.perf_counter() - began)
        print(f"{start + len(block):,} of {len(texts):,}, {rate:.0f} a second", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="MiniLM vectors of a million stretches of real text.")
    parser.add_argument("--count", type=int, default=1_000_000, help="vectors")
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the raw files")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "embeddings", help="minilm.npy is written here")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
