"""Plots of scores as SVG text for HTML pages.

Lines and text take the page's text colour, for light and dark pages. The same data gives the same bytes: no dates, no
random ids. Needs matplotlib (extra `report`), which is imported when a plot is drawn.
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, NewType

from coseek.core.errors import MissingExtra
from coseek.core.files import JsonObject
from coseek.measure.intervals import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Svg = NewType("Svg", str)
"""An `<svg>` element that this module drew, never text from outside."""

COLOURS = ("#3f8fd2", "#e0812b", "#35a679", "#c4609f", "#8a7fd8", "#b3923a")
"""Readable on white and near-black; the first two also with red-green colour blindness."""
_INK = "#010203"
"""Placeholder of the page's text colour while matplotlib draws."""
_ID = re.compile(r'\bid="')
_STYLE: dict[str, object] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "coseek",
    "text.parse_math": False,
    "font.size": 10,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "text.color": _INK,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": _INK,
    "grid.alpha": 0.15,
    "legend.frameon": False,
}


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot. `low` and `high` draw a band around it; both empty: no band."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    markers: bool = False
    """Draw each point: for a few measurements, such as evaluations."""

    @classmethod
    def of(cls, name: str, points: Sequence[tuple[float, Interval]], banded: bool = True) -> "Series":
        """Measurements at their positions, with a band if all of them have an interval."""
        means = [mean for _, mean in points]
        bands = [(mean.low, mean.high) for mean in means if mean.low is not None and mean.high is not None]
        low, high = zip(*bands, strict=True) if banded and len(bands) == len(points) and bands else ((), ())
        return cls(name, tuple(x for x, _ in points), tuple(mean.mean for mean in means), low, high, markers=True)


@dataclass(frozen=True, slots=True)
class BarSeries:
    """One bar per group, with error bars; `None`: no bar."""

    name: str
    values: tuple[Interval | None, ...]


def series_of(rows: Sequence[JsonObject], key: str, name: str, *, markers: bool = False) -> Series:
    """One metric of `metrics.jsonl` by step; rows without it are skipped."""
    points: list[tuple[float, float]] = []
    for row in rows:
        step, value = row.get("step"), row.get(key)
        if isinstance(step, int | float) and isinstance(value, int | float):
            points.append((float(step), float(value)))
    return Series(name, tuple(step for step, _ in points), tuple(value for _, value in points), markers=markers)


def smoothed(series: Series, window: int) -> Series:
    """The moving average over the last `window` points, for noisy values such as rewards of single batches."""
    means = [sum(series.y[max(0, end - window) : end]) / min(window, end) for end in range(1, len(series.y) + 1)]
    return Series(series.name, series.x, tuple(means), markers=series.markers)


def line_plot(lines: Sequence[Series], x_label: str, y_label: str) -> Svg:
    """Lines over a shared integer axis (steps, rounds, passages). Values within [0, 1] get the axis 0–1."""
    with _style():
        figure, axes = _figure()
        for number, line in enumerate(lines):
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(line.x, line.y, color=colour, label=line.name, marker="o" if line.markers else "", markersize=4)
            if line.low:
                axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.2, linewidth=0)
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel(x_label)
        values = [value for line in lines for value in (*line.y, *line.low, *line.high)]
        return _svg(figure, values, y_label, f"by {x_label}: {', '.join(line.name for line in lines)}")


def bar_plot(groups: Sequence[str], bars: Sequence[BarSeries], y_label: str) -> Svg:
    """Grouped bars with intervals: before and after, by hops."""
    with _style():
        figure, axes = _figure()
        width = 0.8 / max(1, len(bars))
        for number, bar in enumerate(bars):
            values = {index: value for index, value in enumerate(bar.values) if value is not None}
            lower_errors = [0.0 if value.low is None else value.mean - value.low for value in values.values()]
            upper_errors = [0.0 if value.high is None else value.high - value.mean for value in values.values()]
            axes.bar(
                [index - 0.4 + width * (number + 0.5) for index in values],
                [value.mean for value in values.values()],
                width * 0.92,
                yerr=[lower_errors, upper_errors],
                label=bar.name,
                color=COLOURS[number % len(COLOURS)],
                error_kw={"ecolor": _INK, "elinewidth": 1.1, "capsize": 2.5},
            )
        axes.set_xticks(range(len(groups)), list(groups))
        means = [value for bar in bars for value in bar.values if value is not None]
        edges = [edge for mean in means for edge in (mean.mean, mean.high or 0)]
        return _svg(figure, edges, y_label, f"by group ({', '.join(groups)}): {', '.join(bar.name for bar in bars)}")


@contextmanager
def _style() -> Iterator[None]:
    """Apply the style while a plot is drawn, without changing global settings."""
    try:
        from matplotlib import style
    except ImportError:
        raise MissingExtra("matplotlib", "a plot", "report") from None
    with style.context(_STYLE), warnings.catch_warnings():
        # The page's fonts draw the text, so characters that matplotlib's font lacks do not matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _figure() -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axes = figure.add_subplot()
    figure.patch.set_alpha(0)
    axes.patch.set_alpha(0)
    return figure, axes


def _svg(figure: "Figure", values: Sequence[float], y_label: str, description: str) -> Svg:
    """Label a plot of these values and draw it."""
    (axes,) = figure.axes
    if all(0 <= value <= 1 for value in values):  # shares: a small gain should look small
        axes.set_ylim(0, 1)
    axes.set_ylabel(y_label)
    axes.set_axisbelow(True)
    if labels := axes.get_legend_handles_labels()[1]:
        figure.legend(loc="outside upper left", ncols=min(4, len(labels)))
    buffer = StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    attributes = f'<svg role="img" aria-label="{escape(f"{y_label} {description}")}" '
    return Svg(text.replace("<svg ", attributes, 1).strip())


def with_id_prefix(svg: Svg, prefix: str) -> Svg:
    """The plot with prefixed ids and references, so that one page can hold several plots."""
    text = _ID.sub(f'id="{prefix}-', svg).replace('href="#', f'href="#{prefix}-')
    return Svg(text.replace("url(#", f"url(#{prefix}-"))
