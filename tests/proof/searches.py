"""Proof of retrieval: hits of BM25 and of exact dense search, and the scores of the first."""

from tests.proof.canonical import Proof, digest, rounded
from tests.proof.material import Material

import coseek

DEPTH, SCORES = 20, 3


def proof(material: Material) -> Proof:
    """For each index: the hits of each query as a digest, and the first scores as numbers."""
    found: Proof = {}
    for index, retriever in material.indexes.items():
        queries = queries_of(material.questions[:20])
        for number, hits in enumerate(retriever.search(queries, DEPTH), start=1):
            found[f"{index} · query {number:02} · hits"] = digest([hit.passage.id for hit in hits])
            found[f"{index} · query {number:02} · scores"] = [rounded(hit.score) for hit in hits[:SCORES]]
    return found


def queries_of(questions: list[coseek.Question]) -> list[str | coseek.Query]:
    """Questions, every second with reasoning before it, then texts with no words, unknown words and repeated ones."""
    asked: list[str | coseek.Query] = [
        coseek.Query(question.question, question.question, "I need the town first .")
        if place % 2
        else question.question
        for place, question in enumerate(questions)
    ]
    return [*asked, "", "xyzzy", "the the the", "  Ä ß 中 "]
