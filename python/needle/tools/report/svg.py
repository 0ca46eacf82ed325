"""Charts as SVG text: lines over steps, with ticks and a legend; a matrix of counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 10, 34
POINTS = 500
"""Most points of a line: of more, the lowest and the highest in each of half as many columns."""


class Line(NamedTuple):
    """A curve: its name and its points, in the order of x."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about ``count`` round numbers from low to high.

    >>> from needle.tools.report.svg import ticks
    >>> ticks(0, 9.5)
    [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    raw = (high - low) / count
    if not raw > 0 or not math.isfinite(raw):
        return [low]
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next((m * unit for m in (1, 2, 5, 10) if m * unit >= raw * 0.999), 10 * unit)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float, digits: int = 4) -> str:
    """Return a number for an axis.

    >>> from needle.tools.report.svg import short
    >>> short(12000), short(0.0005), short(0.25)
    ('12k', '5e-4', '0.25')
    """
    size = abs(value)
    if size >= 1e9 or 0 < size < 1e-3:
        text, power = f"{value:.{digits - 2}e}".split("e")
        return f"{text.rstrip('0').rstrip('.')}e{int(power)}"
    for limit, letter in ((1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.{digits}g}{letter}"
    return f"{value:.{digits}g}"


def labels(values: Sequence[float]) -> list[str]:
    """Return numbers for an axis, with as many digits as tell them apart.

    >>> from needle.tools.report.svg import labels
    >>> labels([63.25, 63.255, 63.26])
    ['63.25', '63.255', '63.26']
    """
    texts: list[str] = []
    for digits in range(4, 12):
        texts = [short(value, digits) for value in values]
        if len(set(texts)) == len(texts):
            break
    return texts


def thinned(
    x: Sequence[float], y: Sequence[float], most: int = POINTS
) -> list[tuple[float, float]]:
    """Return the finite points of a line, or the extremes of its columns if there are many."""
    points = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(b)]
    if len(points) <= most:
        return points
    found: list[tuple[float, float]] = []
    columns = max(1, most // 2)
    for i in range(columns):
        column = points[i * len(points) // columns : (i + 1) * len(points) // columns]
        ends = {min(column, key=lambda p: p[1]), max(column, key=lambda p: p[1])}
        found += sorted(ends)
    return found


def chart(lines: Sequence[Line], unit: str = "", log: bool = False) -> str:
    """Return a chart of lines over steps; empty if no line has a finite point.

    Where no line has two points, there are numbers in its place.

    Args:
        lines: the curves; each gets the next of the page's colours.
        unit: of the values, written beside their axis.
        log: whether the values are shown by their logarithm; ignored where one is not positive.
    """
    kept = [(line.name, thinned(line.x, line.y)) for line in lines]
    kept = [(name, points) for name, points in kept if points]
    values = [y for _, points in kept for _, y in points]
    if not values:
        return ""
    if all(len(points) == 1 for _, points in kept):
        return _numbers([(name, *points[0]) for name, points in kept])
    log = log and min(values) > 0
    scale = math.log10 if log else float
    low, high = _range([scale(v) for v in values])
    steps = [x for _, points in kept for x, _ in points]
    first, last = min([0, *steps]), max(steps)
    last = last if last > first else first + 1

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - first) / (last - first) * (WIDTH - LEFT - RIGHT)
        up = (scale(y) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return LEFT + across, HEIGHT - BOTTOM - up

    parts = _axes(first, last, low, high, log, unit)
    for i, (name, points) in enumerate(kept):
        spots = [place(*p) for p in points]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in spots)
        data = escape(name, quote=True)
        if len(points) == 1:
            parts.append(f'<circle class="c{i % 6}" cx="{spots[0][0]}" cy="{spots[0][1]}" r="3"/>')
        parts.append(f'<polyline class="c{i % 6}" data-name="{data}" points="{path}"/>')
    legend = "".join(
        f'<span class="key c{i % 6}">{escape(name)} <b>{escape(short(points[-1][1]))}</b></span>'
        for i, (name, points) in enumerate(kept)
    )
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
    return f'<svg class="chart" {box}>{"".join(parts)}</svg><div class="keys">{legend}</div>'


def _numbers(found: Sequence[tuple[str, float, float]]) -> str:
    """Return figures of one point each: the value, the curve's name and the step."""
    return "".join(
        f'<div class="number"><b>{escape(short(y))}</b><small>{escape(name)}, step {x:,.0f}</small>'
        "</div>"
        for name, x, y in found
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis: those of the values, with a little room."""
    low, high = min(values), max(values)
    room = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return low - room, high + room


def _axes(first: float, last: float, low: float, high: float, log: bool, unit: str) -> list[str]:
    """Return the lines and numbers of both axes."""
    parts = []
    marks = ticks(low, high)
    if log:
        marks = [float(m) for m in range(math.ceil(low), math.floor(high) + 1)] or marks
    texts = [escape(x) for x in labels([10.0**mark if log else mark for mark in marks])]
    for mark, text in zip(marks, texts, strict=True):
        y = HEIGHT - BOTTOM - (mark - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    for mark in ticks(first, last):
        x = LEFT + (mark - first) / (last - first) * (WIDTH - LEFT - RIGHT)
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - 16}" text-anchor="middle">{short(mark)}</text>'
        )
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" text-anchor="end">step</text>')
    if unit:
        parts.append(f'<text x="2" y="{HEIGHT - 3}">{escape(unit)}</text>')
    return parts


def matrix(counts: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Return a table of how often each class (rows) was predicted as each class (columns)."""
    head = "".join(f"<th>{escape(str(name))}</th>" for name in names)
    rows = []
    for name, row in zip(names, counts, strict=True):
        total = max(1, sum(row))
        cells = "".join(f'<td style="--share:{n / total:.3f}">{n}</td>' for n in row)
        rows.append(f"<tr><th>{escape(str(name))}</th>{cells}</tr>")
    return f'<table class="matrix"><tr><th></th>{head}</tr>{"".join(rows)}</table>'
