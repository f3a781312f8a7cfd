"""Counts of the source tree. Fear: a merge brings back a cycle, a second class of one name, or logic written twice."""

import pytest
from bench.architecture import all_counts


@pytest.mark.slow
def test_no_count_of_the_source_tree_is_over_its_bar() -> None:
    over = [
        f"{count.name}: {count.value}, bar {count.bar}: {'; '.join(count.found)}"
        for count in all_counts(only_barred=True)
        if count.is_over
    ]
    assert not over, "\n".join(over)
