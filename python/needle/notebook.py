"""How notebooks show tensors: a small picture of the values, and what the tensor is."""

from __future__ import annotations

import base64
import html
import struct
import zlib
from typing import Any

import numpy as np

LARGEST = 48
"""Most cells of a picture along an axis; of longer axes every n-th element is shown."""

_STYLE = "display:inline-flex;gap:12px;align-items:center;font-family:monospace;font-size:13px"


def of_tensor(values: Any, dtype: str, device: str, extra: str = "") -> str:
    """Return the HTML of a tensor.

    Args:
        values: its values, a NumPy array.
        dtype: name of its element type.
        device: name of its device.
        extra: what else to say of it.
    """
    numbers = np.asarray(values).astype(np.float64)
    sizes = "×".join(map(str, numbers.shape)) or "one number"
    lines = [f"<b>{sizes}</b> {html.escape(dtype)} on {html.escape(device)}"]
    finite = numbers[np.isfinite(numbers)]
    if numbers.size == 1:
        lines.append(f"{numbers.item():.6g}")
    elif finite.size:
        spread = f"{finite.min():.4g} … {finite.max():.4g}"
        lines.append(f"{spread}, mean {finite.mean():.4g}")
    if finite.size < numbers.size:
        lines.append(f"{numbers.size - finite.size} not finite")
    if numbers.ndim > 2:
        lines.append(f"shown: [{', '.join('0' for _ in numbers.shape[2:])}, :, :]")
    if extra:
        lines.append(html.escape(extra))
    picture = _picture(numbers) if numbers.size > 1 else ""
    return f'<div style="{_STYLE}">{picture}<div>{"<br>".join(lines)}</div></div>'


def _picture(numbers: Any) -> str:
    """Return an image of the last two axes: blue below 0, white at 0, red above, grey for NaN."""
    matrix = numbers.reshape((-1, *numbers.shape[-2:]))[0] if numbers.ndim > 1 else numbers[None]
    rows, columns = (max(1, -(-n // LARGEST)) for n in matrix.shape)
    matrix = matrix[::rows, ::columns]
    finite = np.isfinite(matrix)
    limit = np.abs(matrix[finite]).max(initial=0.0) or 1.0
    share = np.clip(np.nan_to_num(matrix, nan=0.0) / limit, -1.0, 1.0)[..., None]
    red, blue = np.array([200.0, 40.0, 40.0]), np.array([40.0, 80.0, 200.0])
    colours = 255.0 + np.where(share > 0, (red - 255.0) * share, (255.0 - blue) * share)
    colours = np.where(finite[..., None], colours, 128.0).astype(np.uint8)
    height, width = colours.shape[:2]
    cell = max(3, min(16, 144 // max(height, width)))
    data = base64.b64encode(_png(colours)).decode()
    return (
        f'<img src="data:image/png;base64,{data}" width="{cell * width}" '
        f'height="{max(cell * height, 12)}" '
        'style="image-rendering:pixelated;border:1px solid #999">'
    )


def _png(colours: Any) -> bytes:
    """Return an image [h, w, 3] of bytes as a PNG file (ISO/IEC 15948)."""
    height, width = colours.shape[:2]
    rows = b"".join(b"\0" + row.tobytes() for row in colours)

    def chunk(kind: bytes, data: bytes) -> bytes:
        sum_ = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", sum_)

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def of_module(module: Any, name: str = "", above: tuple[Any, ...] = ()) -> str:
    """Return the HTML of a module: a tree that folds, with the number of parameters of each part.

    Args:
        module: a module.
        name: its name in the module above.
        above: the modules above, which are not shown again.
    """
    count = module.num_parameters()
    title = f"{html.escape(name)}: " if name else ""
    title += f"<b>{type(module).__name__}</b>({html.escape(module.extra_repr())})"
    title += f' <span style="color:#777">{count:,} parameters</span>' if count else ""
    above = (*above, module)
    parts = [
        of_module(child, child_name, above)
        for child_name, child in module.named_children()
        if not any(child is other for other in above)
    ]
    margin = "margin-left:18px;" if name else "font-family:monospace;font-size:13px;"
    if not parts:
        return f'<div style="{margin}">{title}</div>'
    fold = "" if len(above) > 2 else " open"
    return f'<details style="{margin}"{fold}><summary>{title}</summary>{"".join(parts)}</details>'
