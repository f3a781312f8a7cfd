"""Proof of retrieval: hits of BM25 and of exact dense search, and the scores of the first."""

from tests.proof.canonical import Proof, digest, rounded
from tests.proof.material import Material

import coseek

DEPTH, SCORES = 20, 3


def proof(material: Material) -> Proof:
    """For each index: the hits of each query as a digest, and the first scores as numbers."""
    items: Proof = {}
    for index, retriever in material.indexes.items():
        queries = queries_of(material.questions[:20])
        for number, hits in enumerate(retriever.search(queries, DEPTH), start=1):
            items[f"{index} · query {number:02} · hits"] = digest([hit.passage.id for hit in hits])
            items[f"{index} · query {number:02} · scores"] = [rounded(hit.score) for hit in hits[:SCORES]]
    return items


def queries_of(questions: list[coseek.Question]) -> list[str | coseek.Query]:
    """Questions, every second with reasoning before it, then texts with no words, unknown words and repeated ones."""
    queries: list[str | coseek.Query] = [
        coseek.Query(question.question, question.question, "I need the town first .")
        if index % 2
        else question.question
        for index, question in enumerate(questions)
    ]
    return [*queries, "", "xyzzy", "the the the", "  Ä ß 中 "]
