"""Published vectors: imports a faiss file over a corpus, such as Search-R1's `e5_Flat.index`, instead of encoding.

A file does not state its texts, its encoder, its prompts or the order of its rows. So a sample of passages is encoded
again, and every one of them must have its vector in its row.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coseek.core.errors import DataError, SettingError
from coseek.core.files import sync
from coseek.data.passage import Corpus
from coseek.retrieval.factory import require_library
from coseek.retrieval.index_files import Report
from coseek.retrieval.vectors.corpus_encoding import encode_corpus, window_encoder
from coseek.retrieval.vectors.embedding_retriever import EmbeddingSettings, Rows, passage_text
from coseek.retrieval.vectors.encoder import EncoderCard, Vectors, encoder_folder
from coseek.retrieval.vectors.store import VectorStore, VectorWriter

if TYPE_CHECKING:
    import faiss

SAMPLE = 32
"""Passages that are encoded again, including the first and the last."""
MAX_DISTANCE = 0.03
"""Largest ‖v − w‖ / ‖w‖ of a vector v of the file and w of the passage encoded again (cosine .9995). Half precision
stays below .003; another prompt, row or length in tokens is above."""
BLOCK_ROWS = 65_536


def vectors_of(corpus: Corpus, settings: EmbeddingSettings, folder: Path, report: Report) -> VectorStore:
    """Write the corpus's vectors into `folder`, or continue: those of `settings.vectors`, else encoded here."""
    if settings.vectors is None:
        return encode_corpus(corpus, settings, folder, report)
    path = Path(settings.vectors)
    index = open_published(path)
    check_published(path, index, corpus, settings)
    writer = VectorWriter(folder, len(corpus), index.d, settings.dtype)
    for start in range(writer.written, len(corpus), BLOCK_ROWS):
        report("vectors read", start, len(corpus))
        writer.append(_rows(path, index, np.arange(start, min(start + BLOCK_ROWS, len(corpus)))))
    report("vectors read", len(corpus), len(corpus))
    return writer.finish()


def take_graph(corpus: Corpus, settings: EmbeddingSettings, m: int, target: Path) -> None:
    """Copy the published graph of `settings.vectors` to `target`, after a check; no-op for a file of vectors alone.

    Raises `SettingError` for a graph of another density than `m`.
    """
    if settings.vectors is None or target.exists():
        return
    path = Path(settings.vectors)
    index = open_published(path)
    graph = getattr(index, "hnsw", None)
    if graph is None:
        return
    if (graph_m := int(graph.nb_neighbors(1))) != m:
        raise SettingError(f"{path} is a graph of m={graph_m}, not {m}; say m={graph_m}")
    check_published(path, index, corpus, settings, graph=True)
    temporary = target.with_name(f"{target.name}.part")
    shutil.copyfile(path, temporary)
    sync(temporary)
    temporary.replace(target)


def open_published(path: Path) -> "faiss.Index":
    """Open a faiss file, memory-mapped where its kind can be. Raises `DataError` for another file."""
    require_library("faiss", "vectors=FILE", "faiss")
    import faiss

    if not path.is_file():
        raise DataError(f"there is no file {path}, which `vectors` names; join its parts first if it was split")
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError:
        raise DataError(
            f"{path} is no index that faiss {faiss.__version__} reads; fetch it again, or leave `vectors` out"
        ) from None


def check_published(
    path: Path, index: "faiss.Index", corpus: Corpus, settings: EmbeddingSettings, *, graph: bool = False
) -> None:
    """Raise `DataError` unless the file's vectors are those of the corpus, in its order, by this encoder.

    A passage is encoded as here or as Search-R1 and FlashRAG encode it: its title in quotes on a line of its own.
    """
    import faiss

    card = EncoderCard.of(encoder_folder(settings.encoder))
    inner_product = index.metric_type == faiss.METRIC_INNER_PRODUCT
    if not (inner_product or card.normalise) or (graph and not (inner_product and card.normalise)):
        raise DataError(
            f"{path} does not rank by inner products of vectors of length 1; leave `vectors` out"
            + (", or name its Flat file" if graph else "")
        )
    if index.ntotal != len(corpus):
        raise DataError(
            f"{path} holds {index.ntotal:,} vectors, and the corpus {len(corpus):,} passages; take the corpus that it "
            "was made from"
        )
    encode = window_encoder(settings)
    rows = np.unique(np.linspace(0, len(corpus) - 1, SAMPLE).astype(np.int64))
    passages = [corpus[row] for row in rows.tolist()]
    layouts = (
        [passage_text(passage) for passage in passages],
        [f'"{passage.title}"\n{passage.text}' for passage in passages],
    )
    encoded = [encode(texts) for texts in layouts]
    if index.d != encoded[0].shape[1]:
        raise DataError(
            f"{path} holds vectors of {index.d} numbers, and {settings.encoder} gives {encoded[0].shape[1]}; name the "
            "encoder that made them"
        )
    published = _rows(path, index, rows)
    distances = ([_distance(*pair) for pair in zip(published, vectors, strict=True)] for vectors in encoded)
    differs = min(([distance > MAX_DISTANCE for distance in layout] for layout in distances), key=sum)
    if any(differs):
        raise DataError(
            f"{path} has other vectors than {settings.encoder} in {sum(differs)} of {len(differs)} passages that were "
            f"encoded again, first in row {rows[differs.index(True)]}; check the order of the corpus, the encoder, "
            f"passage_prompt={settings.passage_prompt!r} and passage_tokens={settings.passage_tokens}"
        )


def _distance(published: Vectors, encoded: Vectors) -> float:
    return float(np.linalg.norm(published - encoded) / max(float(np.linalg.norm(encoded)), 1e-12))


def _rows(path: Path, index: "faiss.Index", rows: Rows) -> Vectors:
    """Vectors of the file (M × D). Raises `DataError` for an index with compressed vectors."""
    try:
        return index.reconstruct_batch(rows)
    except RuntimeError:
        raise DataError(f"{path} does not hold whole vectors; name a Flat or HNSW file") from None
