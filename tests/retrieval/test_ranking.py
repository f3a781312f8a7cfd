import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coseek.retrieval.ranking import top_rows


@given(st.lists(st.integers(0, 4), max_size=30), st.integers(1, 40))
def test_the_best_rows_come_first_and_equal_scores_keep_row_order(scores: list[int], k: int) -> None:
    array = np.array(scores, dtype=np.float32)
    expected = sorted(range(len(scores)), key=lambda row: -scores[row])
    assert top_rows(array, k).tolist() == expected[:k]
    assert top_rows(array, k, above=0.0).tolist() == [row for row in expected if scores[row] > 0][:k]


@pytest.mark.parametrize("k", [0, -1])
def test_a_search_for_no_passages_is_a_bug(k: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        top_rows(np.zeros(3, dtype=np.float32), k)
