"""Write the proofs' digests: `python -m tests.proof.write`.

Run it after a change that should change results, and say in the commit which digests changed and why that is better.
`git diff tests/proof/digests.json` names them.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.proof import encoder, labels, searches, training, trajectories
from tests.proof.canonical import Proof, differences
from tests.proof.material import Material

DIGESTS = Path(__file__).with_name("digests.json")
PROOFS: dict[str, Callable[[Material], Proof]] = {
    "trajectories": trajectories.proof,
    "search": searches.proof,
    "labels": labels.proof,
    "training": training.proof,
    "encoder": encoder.proof,
}


def stored() -> dict[str, Proof]:
    """The committed digests by proof."""
    return dict(json.loads(DIGESTS.read_text(encoding="utf-8")))


def main() -> None:
    before = stored() if DIGESTS.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        material = Material(Path(folder))
        made = {name: proof(material) for name, proof in PROOFS.items()}
    for name, proof in made.items():
        changed = differences(before.get(name, {}), proof)
        print(f"{name}: {len(proof)} parts, {len(changed)} changed", *changed[:20], sep="\n  ")
    DIGESTS.write_text(written(made), encoding="utf-8")


def written(made: dict[str, Proof]) -> str:
    """JSON with one part in each line."""
    blocks = []
    for name, proof in made.items():
        lines = [f"{json.dumps(name, ensure_ascii=False)}: {json.dumps(value)}" for name, value in proof.items()]
        blocks.append(f"  {json.dumps(name)}: {{\n    " + ",\n    ".join(lines) + "\n  }")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


if __name__ == "__main__":
    main()
