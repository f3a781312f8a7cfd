"""Windows: a long list ranked by someone who can only look at a few items at a time.

The windows go from the back of the list to its front and overlap, so that what is good in one window is looked at again
in the next (Sun et al. 2023, RankGPT, §3.2). Knows nothing of passages, queries or models: whoever ranks is handed in.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

T = TypeVar("T")

RankWindow: TypeAlias = Callable[[Sequence[T]], Sequence[int]]
"""The items of a window → their places from 0, best first: a permutation."""
RankWindows: TypeAlias = Callable[[list[tuple[int, list[T]]]], Sequence[Sequence[int]]]
"""The same for windows of several lists at once, each with the number of its list."""


def spans(count: int, window: int, step: int) -> list[tuple[int, int]]:
    """Where the windows of a list of `count` items begin and end, from the back; the last one begins at 0.

    Neighbours share `window - step` items, the last two perhaps more. A list of one item or none has no windows.
    """
    if not 1 <= step < window:
        raise ValueError(f"a step lies between 1 and the window less one, {window - 1}; got {step}")
    if count < 2:
        return []
    starts = [max(count - window, 0)]
    while starts[-1] > 0:
        starts.append(max(starts[-1] - step, 0))
    return [(start, min(start + window, count)) for start in starts]


def sliding(order: Sequence[T], rank_window: RankWindow[T], window: int = 20, step: int = 10) -> list[T]:
    """The list after one pass of windows. If every window is ranked rightly, the best `window - step` items are in
    front, in order."""
    return sliding_together([order], lambda windows: [rank_window(items) for _, items in windows], window, step)[0]


def sliding_together(
    orders: Sequence[Sequence[T]], rank_windows: RankWindows[T], window: int = 20, step: int = 10
) -> list[list[T]]:
    """`sliding` on several lists in step: all first windows are ranked in one call, then all second ones, …"""
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
