"""Tables: columns of CSV and Parquet files. Parquet needs pyarrow (``needle-dl[parquet]``)."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from needle.data.dataset import Dataset, check_index
from needle.errors import DataError, OptionError, unknown

__all__ = ["Columns", "read_csv", "read_parquet"]

MOST_BYTES = 2**30
"""Limit of a CSV file, which is read as a whole; more belongs into Parquet."""


class Columns(Dataset):
    """The rows of a table: item i is a dict of each column's value i.

    A batch is a dict of arrays [n], and of tuples for texts.

    Args:
        columns: name and values of each, all of one length.

    Raises:
        DataError: if there is no column, or their lengths differ.

    >>> table = ndl.data.Columns({"age": [31, 24], "name": ["Ada", "Bo"]})
    >>> next(iter(ndl.data.DataLoader(table, 2)))["name"]
    ('Ada', 'Bo')
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        super().__init__()
        self.columns = {str(name): _column(values) for name, values in columns.items()}
        lengths = {name: len(values) for name, values in self.columns.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(f"Columns: expected columns of one length, got {lengths}")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: Any) -> dict[str, Any]:
        check_index(index, len(self))
        found = {name: values[index] for name, values in self.columns.items()}
        return {k: tuple(x) if _is_text(x) else x for k, x in found.items()}

    def batch(self, indices: np.ndarray[Any, Any]) -> dict[str, Any]:
        return self[indices]

    def select(self, *names: str) -> tuple[Any, ...]:
        """Return the arrays of some columns, such as for ``NDArrayDataset``.

        Raises:
            OptionError: for a name that is not one of the columns.
        """
        for name in names:
            if name not in self.columns:
                raise unknown("Columns: column", name, self.columns)
        return tuple(self.columns[name] for name in names)

    def in_memory(self) -> bool:
        return True

    def fingerprint(self) -> str:
        parts = []
        for name, values in self.columns.items():
            ends = [str(x) for x in (*values[:2], *values[-2:])]
            parts.append(f"{name}#{zlib.crc32(repr(ends).encode()):08x}")
        return f"Columns[{len(self)}]({', '.join(parts)})"[:2000]


def _column(values: object) -> np.ndarray[Any, Any]:
    array = np.asarray(values)
    return array.astype(object) if array.dtype.kind in "US" else array


def _is_text(values: object) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind == "O"


def read_csv(
    path: str | Path, columns: Sequence[str] | None = None, delimiter: str = ","
) -> Columns:
    """Return the columns of a CSV file, whose first line has their names.

    A column becomes int64 if all its cells are integers, float32 if all are numbers or empty
    (NaN), and texts otherwise.

    Args:
        path: path of a UTF-8 file of at most 1 GiB.
        columns: names of the columns to keep; all of them for None.
        delimiter: the character between cells.

    Raises:
        DataError: if the file is missing, too large, not UTF-8, or a line has another number of
            cells than the first one.
        OptionError: for a column that the file does not have, or another delimiter.

    >>> table = ndl.data.read_csv("people.csv", ["age", "height"])  # doctest: +SKIP
    """
    if not isinstance(delimiter, str) or len(delimiter) != 1:
        raise OptionError(f"read_csv: expected one character as delimiter, got {delimiter!r:.40}")
    try:
        if Path(path).stat().st_size > MOST_BYTES:
            raise DataError(f"{path}: {Path(path).stat().st_size} bytes, at most {MOST_BYTES}")
        with open(path, newline="", encoding="utf-8-sig") as file:
            return _rows(str(path), csv.reader(file, delimiter=delimiter, strict=True), columns)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is not a CSV file in UTF-8 ({error})") from None


def _rows(path: str, reader: Any, columns: Sequence[str] | None) -> Columns:
    names: list[str] = next(reader, [])
    if not names or len(set(names)) < len(names):
        raise DataError(f"{path}: expected different names in the first line, got {names!r:.200}")
    chosen = _chosen("read_csv", names, columns)
    places = [names.index(name) for name in chosen]
    cells: list[list[str]] = [[] for _ in chosen]
    for row in reader:
        if len(row) != len(names):
            if not row:
                continue  # an empty line
            raise DataError(
                f"{path}: line {reader.line_num} has {len(row)} cells, expected {len(names)}"
            )
        for column, place in zip(cells, places, strict=True):
            column.append(row[place])
    return Columns({name: _parsed(column) for name, column in zip(chosen, cells, strict=True)})


def _parsed(cells: list[str]) -> np.ndarray[Any, Any]:
    try:
        return np.array([int(cell) for cell in cells], np.int64)
    except (ValueError, OverflowError):
        pass
    try:
        return np.array([float(cell) if cell else np.nan for cell in cells], np.float32)
    except ValueError:
        return np.array(cells, object)


def _chosen(what: str, names: Sequence[str], columns: Sequence[str] | None) -> list[str]:
    for name in columns or ():
        if name not in names:
            raise unknown(f"{what}: column", name, names)
    return list(names if columns is None else columns)


def read_parquet(path: str | Path, columns: Sequence[str] | None = None) -> Columns:
    """Return columns of a Parquet file; floating ones become float32, missing numbers NaN.

    Args:
        path: path of the file.
        columns: names of the columns to keep; all of them for None.

    Raises:
        DataError: if the file is missing or invalid, a column has neither numbers nor texts, or
            pyarrow is not installed.
        OptionError: for a column that the file does not have.

    >>> table = ndl.data.read_parquet("people.parquet", ["age", "height"])  # doctest: +SKIP
    """
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise DataError(
            f"{path}: reading Parquet needs pyarrow, which is not installed\n"
            "  try: pip install 'needle-dl[parquet]'"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            chosen = _chosen("read_parquet", file.schema_arrow.names, columns)
            table = file.read(columns=chosen)
    except (OSError, ArrowException) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error})") from None
    return Columns({name: _arrow(name, table.column(name)) for name in chosen})


def _arrow(name: str, column: Any) -> np.ndarray[Any, Any]:
    values = column.to_numpy()
    if values.dtype.kind in "iub":
        return values
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    if values.dtype.kind == "O" and all(isinstance(x, (str, bytes)) for x in values):
        return values
    raise DataError(
        f"read_parquet: column {name!r} has type {column.type}\n  rule: numbers, or texts without "
        "gaps\n  try: columns=[...] without it"
    )
