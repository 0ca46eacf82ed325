"""What notebooks show of tensors, modules and runs."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib

import numpy as np

import needle as ndl
from needle import nn
from needle.tools.run import RunFolder


def pixels(text):
    """Return the picture in an HTML text as bytes [h, w, 3]."""
    data = base64.b64decode(re.search(r"base64,([^\"]+)", text)[1])
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    start = data.index(b"IDAT") + 4
    (size,) = struct.unpack(">I", data[start - 8 : start - 4])
    rows = np.frombuffer(zlib.decompress(data[start : start + size]), np.uint8)
    return rows.reshape(height, 1 + 3 * width)[:, 1:].reshape(height, width, 3)


def test_a_tensor_is_a_picture_with_its_facts():
    text = ndl.Tensor([[1.0, 0.0], [-1.0, 0.5]])._repr_html_()
    assert "<b>2×2</b> float32 on cpu" in text and "-1 … 1, mean 0.125" in text
    (high, zero), (low, half) = pixels(text).tolist()
    assert high == [200, 40, 40] and zero == [255, 255, 255] and low == [40, 80, 200]
    assert high[1] < half[1] < 255
    text = ndl.Tensor([float("nan"), 1.0, float("inf")], dtype="float64")._repr_html_()
    assert "2 not finite" in text and pixels(text)[0, 0].tolist() == [128, 128, 128]


def test_all_kinds_of_tensors_are_shown():
    assert pixels(ndl.zeros(2, 3, 200, 70)._repr_html_()).shape == (40, 35, 3)
    assert "shown: [0, 0, :, :]" in ndl.zeros(2, 3, 20, 7)._repr_html_()
    assert "one number" in ndl.Tensor(3.5)._repr_html_() and "3.5" in ndl.Tensor(3.5)._repr_html_()
    assert "<img" not in ndl.zeros(0, 3)._repr_html_()
    for kind in ("int8", "bool", "bfloat16", "float16", "uint8"):
        assert f"{kind} on" in ndl.ones(4, dtype=kind)._repr_html_()
    layer = nn.Linear(3, 2)
    layer.parameters()
    assert "weight" in layer.weight._repr_html_()
    with ndl.lazy_mode():
        assert "mean 2" in (ndl.ones(4) + 1.0)._repr_html_()


def test_a_module_is_a_tree_that_folds():
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Residual(nn.Linear(4, 4))))
    text = model._repr_html_()
    assert text.count("<details") == text.count("</details>") == 3
    assert text.count(" open>") == 2, "deep parts are folded"
    assert "0: <b>Linear</b>(3, 4)" in text and "36 parameters" in text
    model[0].self = model
    assert "36 parameters" in model._repr_html_()
    assert "<details" not in nn.ReLU()._repr_html_()


def test_a_run_is_its_figures_and_curves(tmp_path):
    folder = RunFolder.create("line", str(tmp_path / "run"))
    assert folder._repr_html_() is None
    config = {"recipe": "line", "settings": {"steps": 2}, "chosen": {"own": {"hidden": 3}}}
    (folder.path / "config.json").write_text(json.dumps(config))
    lines = [{"step": i, "split": "train", "loss": 1.0 / i} for i in (1, 2)]
    (folder.path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    text = folder._repr_html_()
    assert "<b>line</b>" in text and "<svg" in text and "<b>loss</b>" in text
    assert "not complete" in text or "2 steps" in text
