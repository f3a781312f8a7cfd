"""The bench that trains MiniLM on real questions: its labels after a kill."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from bench.real_retriever import SUMMARY, Place
from tests.labels.small import bm25, world

from coseek.data.question import Question
from coseek.retrieval.retriever import Retriever

NAME = "hipporag musique"


@dataclass(frozen=True)
class Small(Place):
    """A tiny world and BM25 in the place of a real set and MiniLM."""

    def asked(self, name: str, train: bool) -> list[Question]:
        return world().questions["train"][:12]

    def retriever(self, name: str, view: str, encoder: Path | None = None) -> Retriever:
        return bm25()


@pytest.mark.slow
def test_labels_of_a_start_that_was_killed_are_made_whole_before_they_are_trained_on(tmp_path: Path) -> None:
    whole = Small(tmp_path / "whole", tmp_path).labels(NAME) / "labels.jsonl"
    out = Small(tmp_path / "killed", tmp_path).labels(NAME)
    (out / SUMMARY).unlink()
    half = (out / "labels.jsonl").read_bytes()
    (out / "labels.jsonl").write_bytes(half[: len(half) // 2])
    assert Small(tmp_path / "killed", tmp_path).labels(NAME) == out and (out / SUMMARY).exists()
    assert (out / "labels.jsonl").read_bytes() == whole.read_bytes() != b""
