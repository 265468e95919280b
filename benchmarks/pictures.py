"""The picture of a topic: lines where figures are points of one, and bars of the ratios to what they stand beside."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.measuring import Missing, Row

_COLOURS = {True: "#2a7f4f", False: "#b3382c", None: "#4a6fa5"}


def draw(path: Path, title: str, rows: list[Row]) -> None:
    """Write the picture; raises ``Missing`` without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise Missing("no pictures: pip install matplotlib") from None
    mpl.use("Agg")
    from matplotlib import pyplot

    lines: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.line:
            lines[row.line].append(row)
    bars = [row for row in rows if not row.line and (row.peer is not None or row.holds is not None)]
    heights = ([3.5] if lines else []) + ([0.6 + 0.42 * len(bars)] if bars else [])
    if not heights:
        return
    figure, panels = pyplot.subplots(
        len(heights), figsize=(9, sum(heights) + 0.4), height_ratios=heights, layout="constrained", squeeze=False
    )
    figure.suptitle(title, fontsize=10)
    if lines:
        _draw_lines(panels[0][0], lines)
    if bars:
        _draw_bars(panels[-1][0], bars)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_lines(axes: Any, lines: dict[str, list[Row]]) -> None:
    for name, points in lines.items():
        axes.plot([row.x for row in points], [row.ours for row in points], marker="o", label=name)
        axes.set_xlabel(points[0].x_name, fontsize=8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))


def _draw_bars(axes: Any, rows: list[Row]) -> None:
    """A bar for each row: its ratio to its peer or, where the bound is on the figure itself, to the bound."""
    labels, values, bounds = [], [], []
    for row in rows:
        bound = row.at_least if row.at_most is None else row.at_most
        on_ratio = row.ratio is not None and not row.absolute
        labels.append(f"{row.name}\n({'beside ' + row.peer_name if on_ratio else 'part of ' + row.bound})")
        values.append(row.ratio if on_ratio else row.ours / bound)
        bounds.append(bound if on_ratio else 1)
    axes.barh(labels, values, color=[_COLOURS[row.holds] for row in rows])
    axes.set_xlim(0, min(max(1, *values), 4) * 1.15)
    for place, (value, bound) in enumerate(zip(values, bounds, strict=True)):
        if bound is not None:
            axes.plot([bound, bound], [place - 0.4, place + 0.4], color="black", linewidth=2)
        axes.annotate(f" {value:.2f}", (min(value, 4), place), va="center", fontsize=8)
    axes.axvline(1, color="grey", linestyle=":")
    axes.invert_yaxis()
    axes.tick_params(labelsize=7)
    axes.set_xlabel("ours divided by theirs; the black mark is the bound", fontsize=8)
