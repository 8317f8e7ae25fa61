"""Rows of one measured table of `aiconfigurator-core`, filtered while they are read.

Tables lie at `<system>/<operation>/<framework>/<version>/<name>.parquet`. Of several versions the newest that has the
file serves: they time the same kernel on the same GPU, and what an older engine loses to it is the engine profile's.
A framework without the table borrows that of another, in the order of `FRAMEWORKS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.cost.measured.cache import package_data, version_order

FRAMEWORKS = ("trtllm", "sglang", "vllm")
Columns = dict[str, NDArray[Any]]
Coded = tuple[NDArray[np.object_], NDArray[np.int32]]  # the values of a column, and which of them each row has


def available() -> bool:
    """Whether the package with the tables is installed."""
    return package_data() is not None


def tables(
    system: str | None, operation: str, name: str, framework: str, release: str = ""
) -> Iterator[tuple[str, Path]]:
    """(framework, file) of a table, that of `framework` first; of each the newest version, up to `release` if given.

    None of a GPU that has no tables.
    """
    for word in (framework, *(other for other in FRAMEWORKS if other != framework)):
        versions = [path.parent for path in reversed(every(system, operation, name, word))] if system else []
        if versions:
            bounded = bool(release) and word == framework
            older = [at for at in versions if bounded and version_order(at.name) <= version_order(release)]
            chosen = older[-1] if older else versions[0 if bounded else -1]
            yield word, chosen / f"{name}.parquet"


def every(system: str, operation: str, name: str, framework: str) -> list[Path]:
    """A framework's own table of each version, newest first."""
    package = package_data()
    folder = Path() if package is None else package[0] / system / operation / framework
    return sorted(folder.glob(f"*/{name}.parquet"), key=lambda at: version_order(at.parent.name), reverse=True)


@lru_cache(maxsize=32)  # of 200,000 rows at the most: under a megabyte each
def _column(path: Path, name: str) -> Coded:
    """A column of a table.

    By pyarrow's files alone: its datasets, and its conversions to numpy, load pandas where that is installed, which
    takes half a second of a process; its functions (`dictionary_encode` is one) take a tenth.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    places: dict[object, int] = {}  # value -> its code, as they come
    codes = [np.zeros(0, np.int32)]
    for chunk in pq.ParquetFile(path, read_dictionary=[name]).read(columns=[name]).column(name).chunks:
        if isinstance(chunk, pa.DictionaryArray):
            values, inner = chunk.dictionary.to_pylist(), np.from_dlpack(chunk.indices)
        else:
            distinct_values, inner = np.unique(np.from_dlpack(chunk), return_inverse=True)
            values = distinct_values.tolist()
        codes.append(np.array([places.setdefault(value, len(places)) for value in values], np.int32)[inner])
    return np.array(list(places), np.object_), np.concatenate(codes)


def _read(path: Path, columns: tuple[str, ...], where: tuple[tuple[str, object], ...]) -> list[Coded]:
    """Some columns of the rows that `where` chooses."""
    coded = {name: _column(path, name) for name in dict.fromkeys((*columns, *(name for name, _ in where)))}
    keep = np.ones(len(coded[columns[0]][1]), bool)
    for name, value in where:
        values, codes = coded[name]
        place = np.flatnonzero(values == value)
        keep &= codes == place[0] if len(place) else False
    return [(coded[name][0], coded[name][1][keep]) for name in columns]


@lru_cache(maxsize=256)
def rows(path: Path, columns: tuple[str, ...], where: tuple[tuple[str, object], ...]) -> Columns:
    """`columns` of the rows whose other columns have the values in `where`."""
    coded = zip(columns, _read(path, columns, where), strict=True)
    return {name: np.asarray(values[codes].tolist()) for name, (values, codes) in coded}


@lru_cache(maxsize=256)
def distinct(
    path: Path, columns: tuple[str, ...], where: tuple[tuple[str, object], ...]
) -> tuple[tuple[Any, ...], ...]:
    """The combinations of `columns` that occur, sorted."""
    coded = _read(path, columns, where)
    shape = tuple(len(values) for values, _ in coded)
    place = np.zeros(len(coded[0][1]), np.int64)  # of each row among all combinations: 200,000 rows have some 100
    for values, codes in coded:
        place = place * len(values) + codes
    kinds = np.unravel_index(np.unique(place), shape) if len(place) else ()
    columns_of = ([values[at] for at in of] for (values, _), of in zip(coded, kinds, strict=False))
    return tuple(sorted(zip(*columns_of, strict=True)))


@lru_cache(maxsize=256)
def has_column(path: Path, name: str) -> bool:
    """Whether the table has such a column."""
    import pyarrow.parquet as pq

    return name in pq.read_schema(path).names
