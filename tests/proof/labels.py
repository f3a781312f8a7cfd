"""Proof of label makers: gold, Agentic-R, DR-Synth and REPLUG over about a hundred search turns."""

from pathlib import Path

from tests.proof.canonical import Proof, digest, rounded
from tests.proof.material import Material

import coseek
from coseek.labels.label_folder import LabelFolder
from coseek.labels.label_set import LabelSet

ASKED = 12
"""Turns of REPLUG whose targets are stored."""


def proof(material: Material) -> Proof:
    """A digest for each turn and maker; for REPLUG the targets, since a model computes them."""
    settings: dict[str, dict[str, object]] = {"gold": {}, "agentic-r": {"candidates": 8}, "dr-synth": {"depth": 12}}
    items: Proof = {}
    for method, own in settings.items():
        out = material.folder / f"labels-{method}"
        scorer = None if method == "gold" else material.data.folder
        coseek.label(material.run, method, out, own, scorer=scorer, count=20 if method == "dr-synth" else None)
        items |= turns_of(method, out)
    return items | replug(material)


def turns_of(method: str, out: Path) -> Proof:
    """A digest of the label sets of each turn, and of each dropped turn's reason."""
    folder = LabelFolder(out)
    items: Proof = {}
    for label in folder.sets():
        items[f"{method} · {turn_name(label)}"] = digest(label.to_json())
    for dropped in folder.dropped():
        row = dropped.to_json()
        items[f"{method} · {row['question_id']}/{row['search']} · dropped"] = digest(row)
    return items


def replug(material: Material) -> Proof:
    """The order of candidates with nearly equal likelihoods is not stored; targets are numbers by passage."""
    out = material.folder / "labels-replug"
    settings = {"candidates": 5, "max_context_tokens": 128, "placement.precision": "float32"}
    coseek.label(material.run, "replug", out, settings, likelihood=material.policy, device="cpu")
    items: Proof = {}
    for index, label in enumerate(LabelFolder(out).sets()):
        assert label.targets is not None
        weighed = zip(label.candidates, label.targets, strict=True)
        targets = {candidate.passage.id: rounded(target) for candidate, target in weighed}
        items[f"replug · {turn_name(label)}"] = [
            digest([*sorted(targets), label.query.to_json()]),
            rounded(sum(candidate.scores["logp"] for candidate in label.candidates)),
            *(targets[name] for name in sorted(targets) if index < ASKED),
        ]
    return items


def turn_name(label: LabelSet) -> str:
    row = label.to_json()
    copy = f"/{row['copy']}" if "copy" in row else ""
    return f"{label.question.id}/{row['search']}{copy}"
