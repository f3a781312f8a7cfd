"""Sliding windows: ranks a long list with a ranker that takes a few items at a time.

Overlapping windows move from the back of the list to its front, so that the best items of a window enter the next one
(Sun et al. 2023, RankGPT, §3.2). The ranker is a function argument.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

T = TypeVar("T")

RankWindows: TypeAlias = Callable[[list[tuple[int, list[T]]]], Sequence[Sequence[int]]]
"""Windows of several lists, each with its list's number → the order of each, best first, as indices into it."""


def spans(count: int, window: int, step: int) -> list[tuple[int, int]]:
    """The (start, end) of each window over `count` items, from the back; the last one starts at 0. Consecutive windows
    share `window - step` items; the last two may share more. Fewer than two items have no windows."""
    if not 1 <= step < window:
        raise ValueError(f"a step lies between 1 and the window less one, {window - 1}; got {step}")
    if count < 2:
        return []
    starts = [max(count - window, 0)]
    while starts[-1] > 0:
        starts.append(max(starts[-1] - step, 0))
    return [(start, min(start + window, count)) for start in starts]


def sliding_together(
    orders: Sequence[Sequence[T]], rank_windows: RankWindows[T], window: int = 20, step: int = 10
) -> list[list[T]]:
    """Each list as its windows were ranked: all first windows in one call, then all second ones, and so on."""
    lists = [list(order) for order in orders]
    plans = [spans(len(order), window, step) for order in lists]
    for turn in range(max(map(len, plans), default=0)):
        due = [(number, *plan[turn]) for number, plan in enumerate(plans) if turn < len(plan)]
        ranked = rank_windows([(number, lists[number][start:end]) for number, start, end in due])
        for (number, start, end), places in zip(due, ranked, strict=True):
            if sorted(places) != list(range(end - start)):
                raise ValueError(f"a window of {end - start} items was ranked as {list(places)}: no permutation")
            items = lists[number][start:end]
            lists[number][start:end] = [items[place] for place in places]
    return lists
