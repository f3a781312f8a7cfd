"""The structure of the source tree. Fear: a merge brings back a cycle, an upward import or two classes of one name."""

from bench.architecture import structure


def test_the_structure_of_the_source_tree_stays() -> None:
    over = [f"{count.name}: {'; '.join(count.found)}" for count in structure() if count.is_over]
    assert not over, "\n".join(over)
