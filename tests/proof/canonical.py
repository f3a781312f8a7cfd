"""Canonical values of the proofs: what is hashed, what is compared within a tolerance, and how two proofs differ.

Texts, ids and orders are hashed. Numbers that torch or numpy compute are stored, rounded to six significant digits, and
compared within a tolerance, because their last digits depend on the vector width of the processor.
"""

import hashlib
import json
import math
from collections.abc import Collection, Iterator, Mapping

from coseek.core.files import Json, JsonObject

RELATIVE, ABSOLUTE = 3e-4, 1e-5
"""Tolerances of stored numbers. With AVX512, AVX2 and SSE they differ by at most 5e-5, relative, or 3e-6."""

Proof = dict[str, Json]
"""Name of a part → its digest (a text), or its numbers."""

VOLATILE = frozenset({"timings", "cost_usd", "schema", "trajectory"})
"""Fields that change without a change of meaning: seconds, prices, versions of files, digests of other rows."""
FLOATS = frozenset({"score", "retriever", "logp"})
"""Scores of a retriever or model. The order of the hits is hashed; some scores are stored as numbers in `search`."""


def digest(value: Json, without: Collection[str] = VOLATILE | FLOATS) -> str:
    """Hash a value as JSON with sorted keys, without the named fields at any depth."""
    text = json.dumps(_pruned(value, without), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _pruned(value: Json, without: Collection[str]) -> Json:
    if isinstance(value, Mapping):
        return {name: _pruned(item, without) for name, item in value.items() if name not in without}
    if isinstance(value, list | tuple):
        return [_pruned(item, without) for item in value]
    return value


def rounded(value: float) -> float:
    """Round to six significant digits."""
    return float(f"{value:.6g}")


def metrics(row: Mapping[str, float]) -> JsonObject:
    """The metrics of a step, rounded, without seconds."""
    return {name: rounded(row[name]) for name in sorted(row) if not name.endswith("_s")}


def differences(stored: Mapping[str, Json], computed: Mapping[str, Json]) -> list[str]:
    """One line for each part that is missing, new or different."""
    lines = [f"{name}: missing" for name in stored if name not in computed]
    lines += [f"{name}: new" for name in computed if name not in stored]
    for name in stored:
        if name in computed:
            lines += _differences(name, stored[name], computed[name])
    return lines


def _differences(path: str, stored: Json, computed: Json) -> Iterator[str]:
    if isinstance(stored, dict) and isinstance(computed, dict):
        yield from differences(
            {f"{path} · {name}": value for name, value in stored.items()},
            {f"{path} · {name}": value for name, value in computed.items()},
        )
    elif isinstance(stored, list) and isinstance(computed, list) and len(stored) == len(computed):
        for index, (before, after) in enumerate(zip(stored, computed, strict=True)):
            yield from _differences(f"{path}[{index}]", before, after)
    elif not _equal(stored, computed):
        yield f"{path}: {stored!r} → {computed!r}"


def _equal(stored: Json, computed: Json) -> bool:
    if isinstance(stored, int | float) and isinstance(computed, int | float):
        return math.isclose(stored, computed, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return stored == computed
