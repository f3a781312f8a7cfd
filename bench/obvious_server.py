"""The obvious server: FastAPI, one blocking handler a request, the retriever as a global. What `bench/serve.py` beats.

    python bench/obvious_server.py INDEX      prints its URL; --bare SECONDS measures the retriever without any server

It is how the public servers are written, and not made worse than they are: no request log, the same HTTP parser and
event loop as ours, the same encoder and the same vectors, searched as a script does it.
"""

import argparse
import json
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from coseek.cli.commands.serve import opened
from coseek.data.passage import Hit
from coseek.retrieval.index import IndexCard, open_index
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.retrievers.dense import VECTORS, Dense
from coseek.retrieval.vectors.encoder import encoder_folder
from coseek.retrieval.vectors.store import VectorStore


class Plain:
    """A dense index in the hands of a script: `encode`, a product with all vectors, a partial sort."""

    def __init__(self, folder: Path) -> None:
        from sentence_transformers import SentenceTransformer

        index = open_index(folder)
        assert isinstance(index, Dense) and index.corpus is not None
        self.corpus = index.corpus
        store = VectorStore.open(folder / VECTORS)
        self.vectors_ND = store.gather(np.arange(len(store))).astype(np.float32)
        self.encoder = SentenceTransformer(str(encoder_folder(index.settings.encoder)), local_files_only=True)
        self.encoder.max_seq_length = index.settings.query_tokens

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        queries_QD = self.encoder.encode(list(queries), normalize_embeddings=True, show_progress_bar=False)
        found = []
        for scores_N in queries_QD @ self.vectors_ND.T:
            rows = np.argpartition(-scores_N, k)[:k]
            rows = rows[np.argsort(-scores_N[rows])]
            found.append([Hit(self.corpus[row], float(scores_N[row])) for row in rows.tolist()])
        return found


class Request(BaseModel):
    queries: list[str]
    topk: int | None = None
    return_scores: bool = False


def obvious(retriever: Plain | Retriever) -> FastAPI:
    app = FastAPI()

    @app.post("/retrieve")
    def retrieve(request: Request) -> dict[str, list[list[dict[str, object]]]]:
        found = retriever.search(request.queries, request.topk or 3)
        return {
            "result": [
                [
                    {
                        "document": {
                            "id": hit.passage.id,
                            "contents": hit.passage.contents,
                            "title": hit.passage.title,
                            "text": hit.passage.text,
                        },
                        "score": hit.score,
                    }
                    for hit in hits
                ]
                for hits in found
            ]
        }

    return app


def bare(retriever: Retriever, queries: list[str], batch: int, seconds: float) -> float:
    """Queries a second of the retriever alone, batch after batch."""
    blocks = [queries[start : start + batch] for start in range(0, len(queries) - batch + 1, batch)]
    retriever.search(blocks[0], 3)
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        retriever.search(blocks[done % len(blocks)], 3)
        done += 1
    return done * batch / (time.perf_counter() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description="The server that everybody writes first.")
    parser.add_argument("index", type=Path)
    parser.add_argument("--bare", type=float, help="seconds of searching without a server; prints queries a second")
    parser.add_argument("--batch", type=int, default=32, help="queries a search, with --bare")
    parser.add_argument("--queries", type=Path, help="a JSON list of strings, with --bare")
    args = parser.parse_args()
    if args.bare:
        queries = json.loads(args.queries.read_text(encoding="utf-8"))
        print(bare(opened(str(args.index)), queries, args.batch, args.bare))
        return 0
    dense = IndexCard.read(args.index).retriever == "dense"
    retriever = Plain(args.index) if dense else open_index(args.index)
    retriever.search(["warm up"], 3)
    listening = socket.create_server(("127.0.0.1", 0), backlog=1_024)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    config = uvicorn.Config(obvious(retriever), access_log=False, log_level="warning")
    uvicorn.Server(config).run(sockets=[listening])
    return 0


if __name__ == "__main__":
    sys.exit(main())
