"""The picture of a run."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

from needle.tools.run import RunFolder


def available() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw_loss(folder: RunFolder, title: str, figure: str, unit: str) -> str | None:
    """Draw one of the run's metrics, for training and held-out data, into loss.png.

    Args:
        folder: folder of the run.
        title: title of the picture.
        figure: name of the metric in metrics.jsonl.
        unit: label of the vertical axis.

    Returns:
        The name of the file, or None without data to draw.
    """
    lines = [line for line in folder.metrics() if figure in line]
    if not lines:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(picture)
    axes: Any = picture.add_subplot()
    for split, style in (("train", {"linewidth": 1.0}), ("held-out", {"marker": "o"})):
        chosen = [line for line in lines if line["split"] == split]
        if chosen:
            x, y = [line["step"] for line in chosen], [line[figure] for line in chosen]
            name = f"{split}, last {y[-1]:.3f}"
            axes.plot(x, y, label=name, **style)
    values = sorted(line[figure] for line in lines if math.isfinite(line[figure]))
    low, high = (values[0], values[int(0.97 * (len(values) - 1))]) if values else (0.0, 0.0)
    if low < high:
        axes.set_ylim(max(0.0, low - 0.1 * (high - low)), high + 0.05 * (high - low))
    axes.set_xlabel("step (updates)")
    axes.set_ylabel(unit)
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    picture.savefig(folder.path / "loss.png", dpi=120)
    return "loss.png"
