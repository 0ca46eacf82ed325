"""Pictures of a model's results: grids of images, a confusion matrix."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Images = np.ndarray[Any, Any]


def grid(
    images: Images, columns: int, gap: int = 2, scale: int = 1, labels: Sequence[str] = ()
) -> Images:
    """Return images uint8 [n, h, w, 3] side by side in rows, white between them.

    Args:
        images: the images, row after row.
        columns: number of images in a row.
        gap: pixels between images.
        scale: factor of the size of each pixel.
        labels: labels of the rows, written to the left of them.
    """
    if scale > 1:
        images = images.repeat(scale, 1).repeat(scale, 2)
    n, height, width, colours = images.shape
    rows = -(-n // columns)
    out = np.full(
        (rows * (height + gap) - gap, columns * (width + gap) - gap, colours), 255, np.uint8
    )
    for i, image in enumerate(images):
        top, left = i // columns * (height + gap), i % columns * (width + gap)
        out[top : top + height, left : left + width] = image
    return np.concatenate([_margin(labels, len(out), height, height + gap), out], 1)


def _margin(labels: Sequence[str], size: int, height: int, step: int) -> Images:
    """Return labels below one another, black on white [size, w, 3], in the middle of each row."""
    if not labels:
        return np.zeros((size, 0, 3), np.uint8)
    from PIL import Image, ImageDraw

    measure = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    boxes = [measure.textbbox((0, 0), text) for text in labels]
    image = Image.new("RGB", (int(max(box[2] for box in boxes)) + 12, size), "white")
    draw = ImageDraw.Draw(image)
    for i, (text, box) in enumerate(zip(labels, boxes, strict=True)):
        draw.text((6, i * step + (height - box[3]) / 2), text, fill="black")
    return np.array(image)


def save_image(path: Path, image: Images) -> None:
    """Write an image uint8 [h, w, 3] in the format of the path's suffix."""
    from PIL import Image

    Image.fromarray(image).save(path)


def draw_confusion(path: Path, counts: Images, names: Sequence[str], title: str) -> None:
    """Draw how often each class (rows) was predicted as each class (columns).

    The counts are written beside the picture, as JSON, for the report.
    """
    values = {"names": list(names), "counts": counts.tolist()}
    path.with_suffix(".json").write_text(json.dumps(values), encoding="utf-8")
    picture, axes = _figure((7.5, 7), title)
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    for i, j in np.ndindex(*counts.shape):
        colour = "white" if share[i, j] > 0.5 else "black"
        axes.text(j, i, int(counts[i, j]), ha="center", va="center", color=colour, fontsize=8)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    picture.savefig(path, dpi=120)


def draw_predictions(
    path: Path, images: Images, titles: Sequence[str], columns: int, title: str
) -> None:
    """Draw images uint8 [n, h, w, 3] in a grid, each with a line above it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = max(1, -(-len(images) // columns))
    picture = Figure(figsize=(1.5 * columns, 1.75 * rows + 0.5), layout="constrained")
    FigureCanvasAgg(picture)
    picture.suptitle(title)
    for i, (image, text) in enumerate(zip(images, titles, strict=True)):
        axes = picture.add_subplot(rows, columns, i + 1)
        axes.imshow(image)
        axes.set_title(text, fontsize=8)
        axes.axis("off")
    picture.savefig(path, dpi=120)


def draw_shares(path: Path, x: Sequence[int], y: Sequence[float], labels: tuple[str, str]) -> None:
    """Draw shares over integers, with labels for the two axes."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    picture, axes = _figure((7, 4), "")
    axes.plot(x, y, marker="o")
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(alpha=0.3)
    picture.savefig(path, dpi=120)


def _figure(size: tuple[float, float], title: str) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.add_subplot()
    axes.set_title(title)
    return picture, axes
