"""What coseek computes is what it computed before: see `write.py` for a change that should change it."""

import pytest
from tests.proof.canonical import Proof, differences, digest
from tests.proof.material import Material
from tests.proof.write import PROOFS, stored

from coseek.core.files import JsonObject

SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return Material(tmp_path_factory.mktemp("proof"))


@pytest.mark.medium
@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW if name == "training" else ()) for name in PROOFS])
def test_results_are_those_of_the_committed_digests(name: str, material: Material) -> None:
    changed = differences(stored()[name], PROOFS[name](material))
    assert not changed, f"{len(changed)} parts changed:\n" + "\n".join(changed)


def test_a_change_is_named_and_the_last_digits_of_a_number_are_none() -> None:
    before: Proof = {"text": "a", "numbers": [1.0, 2.0], "metrics": {"loss": 0.5}, "gone": 1}
    same: Proof = {"text": "a", "numbers": [1.00001, 2.0], "metrics": {"loss": 0.5 + 1e-6}, "gone": 1}
    other: Proof = {"text": "b", "numbers": [1.0, 2.1], "metrics": {"loss": 0.6}, "added": 1}
    assert not differences(before, same)
    assert differences(before, other) == [
        "gone: missing",
        "added: new",
        "text: 'a' → 'b'",
        "numbers[1]: 2.0 → 2.1",
        "metrics · loss: 0.5 → 0.6",
    ]


def test_what_means_the_same_has_the_same_digest() -> None:
    first: JsonObject = {"stop": "answered", "timings": {"model_s": 1.0}, "hits": [{"id": "a", "score": 0.5}]}
    second: JsonObject = {"hits": [{"score": 0.6, "id": "a"}], "stop": "answered"}
    assert digest(first) == digest(second) != digest({**second, "stop": "invalid"})
