"""From the parquet tables of one system to a few grids: which measurements are believed, and what is made of them.

GEMM (three serving frameworks each timed the same 74 x 22 x 22 grid of m, n, k)
    * bf16 is `torch.nn.functional.linear`, that is cuBLAS, in all three; they still differ by 5 % (A100, H100) to 10 %
      (Blackwell) at one shape, because clocks, cuBLAS release and power state differ. The median of the three is kept:
      single frameworks have broken regions (vLLM's block-scaled fp8 on Blackwell is 10x too slow below m = 8192, its
      bf16 on GB200 2x too slow at 16384^2) that a mean would carry along and a minimum would not notice.
    * The low-precision tables time *quantise the activations + multiply*: at n = 32 an fp8 GEMM takes 3x as long as the
      bf16 one, though it moves half the bytes. Training casts once per tensor, and the caller prices that cast as the
      memory-bound kernel it is. So per (m, k) the excess of the narrowest GEMM over its memory-bound time is subtracted
      from every n, per framework, before the median.
    * odd m above 16 (1025, 1281, ...) only probe the tile edge and are dropped.

Attention (context attention, causal, no prefix, no sliding window)
    * includes appending K and V to the paged cache: at fixed work the time falls with fewer KV heads by just the time
      to read and write those bytes. Subtracted; after it the GQA ratio no longer matters.
    * Triton fallbacks are dropped where a native kernel is listed. Of the kernels (FA2, FA3, FlashInfer, TensorRT-LLM)
      the one with the fastest median is kept at each size: training runs the best of its generation.
    * batch and heads only matter by their product, so the axes are head_dim, s, and s x batch x heads.

Both then become monotone (`interpolation`). Bands are the p4-p96 of log(single measurement / grid), of every framework:
which one's kernel a run will have is not known. Once at nodes, once for shapes held out while the grid was filled from
the others (half of all (n, k) pairs, or of all head counts).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.files.document import own_document
from windtunnel.physics.cost.measured.cache import version_order
from windtunnel.physics.cost.measured.interpolation import BAND_EDGES_S, Array, as_axis, filled, monotone, quantile_pair

GEMM_DTYPES = {"bf16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
BYTES_OF_BF16 = {"fp8": 0.5, "fp8_block": 0.5, "nvfp4": 0.28}  # operand bytes against bf16, scales included
LEAST_OF_BF16 = {"fp8": 0.42, "fp8_block": 0.42, "nvfp4": 0.2}  # no GEMM takes a smaller share of the bf16 time
ATTENTION_DTYPES = {"bf16": ("bfloat16", "bfloat16", 8), "fp8": ("fp8", "fp8", 6)}  # attn, KV dtype; append bytes
HEAD_DIMS = (64, 128, 192, 256)
TOKEN_HEADS = 2.0 ** np.arange(8, 24.5, 0.5)  # nodes of s x batch x heads
SHORTEST_SEQUENCE = 128
SMALLEST_JUDGED = 256  # bands are judged on GEMMs with m, n, k of at least this
APPEND_EFFICIENCY = 0.9  # of HBM bandwidth, reached by the append of K and V

Columns = dict[str, NDArray[Any]]
Axes = tuple[Array, Array, Array]  # of m, n, k


def compact(system_folder: Path) -> dict[str, NDArray[np.generic]]:
    """All arrays of one system's cache file, by name; see `tables`."""
    arrays: dict[str, NDArray[np.generic]] = {}
    index: dict[str, dict[str, object]] = {}
    for dtype, cubes, axes in gemm_cubes(system_folder):
        log_time, bands = gemm_grid(cubes, axes)
        index[f"gemm/{dtype}"] = _entry(axes, (1.0, 1.0, 1.0), (0.0, 0.0, 0.0), bands)
        arrays[f"gemm/{dtype}/log_time"] = log_time.astype(np.float32)
        arrays[f"gemm/{dtype}/measured"] = np.zeros((0, 3), dtype=np.int64)  # the nodes themselves
    bandwidth = bandwidth_of(system_folder)
    for dtype in ATTENTION_DTYPES:
        rows = attention_rows(system_folder, dtype, bandwidth)
        if rows is None:
            continue
        log_time, head_dims, lengths, bands = attention_table(rows)
        axes = (np.log(head_dims), np.log(lengths), np.log(TOKEN_HEADS))
        # Below head_dim 64 and above 256 time goes with d^0.85: short heads use the matrix unit less well (FA2, FA3).
        index[f"attention/{dtype}"] = _entry(axes, (1.0, 1.0, 1.0), (0.85, 0.0, 0.0), bands)
        arrays[f"attention/{dtype}/log_time"] = log_time.astype(np.float32)
        shapes = np.stack([rows["head_dim"], rows["isl"], rows["token_heads"]], axis=1).astype(np.int64)
        arrays[f"attention/{dtype}/measured"] = np.unique(shapes, axis=0)
    arrays["index"] = np.frombuffer(json.dumps(index).encode(), dtype=np.uint8)
    return arrays


def _entry(
    axes: Sequence[Array], above: tuple[float, ...], below: tuple[float, ...], bands: list[list[tuple[float, float]]]
) -> dict[str, object]:
    return {"axes": [as_axis(axis) for axis in axes], "slopes_above": above, "slopes_below": below, "bands": bands}


# ---------------------------------------------------------------------------------------------------------- GEMM


def gemm_cubes(system_folder: Path) -> list[tuple[str, list[Array], Axes]]:
    """Per dtype: log seconds over (m, n, k), one cube per framework, NaN where it was not timed; and the log axes."""
    per_framework, axes = timed_gemms(system_folder)
    cubes: dict[str, list[Array]] = {}
    for times in per_framework:
        seconds = {dtype: cube_of(shape, latency, axes) for dtype, (shape, latency) in times.items()}
        for dtype, cube in seconds.items():
            if dtype != "bf16":
                if "bf16" not in seconds:
                    continue
                cube = without_quantisation(cube, seconds["bf16"], dtype)
            cubes.setdefault(dtype, []).append(np.log(cube))
    return [(dtype, cubes[dtype], logs_of(axes)) for dtype in GEMM_DTYPES if dtype in cubes]


def timed_gemms(system_folder: Path) -> tuple[list[dict[str, tuple[Array, Array]]], Axes]:
    """What each framework timed (`gemm_of`), and the sizes m, n and k of the grid."""
    gemms = [gemm_of(path) for path in _latest(system_folder / "gemm", "gemm_perf.parquet")]
    shapes = np.concatenate([shape for times in gemms for shape, _ in times.values()])
    m, n, k = (common_sizes(shapes[:, axis], axis) for axis in range(3))
    return gemms, (m, n, k)


def logs_of(axes: Axes) -> Axes:
    """The axes of a grid in logs."""
    m, n, k = axes
    return np.log(m), np.log(n), np.log(k)


def gemm_of(path: Path) -> dict[str, tuple[Array, Array]]:
    """Per dtype: the shapes (m, n, k) that one framework timed, and seconds."""
    columns = _columns(path, ("gemm_dtype", "m", "n", "k", "latency"))
    gemm = {}
    for dtype, name in GEMM_DTYPES.items():
        rows = columns["gemm_dtype"] == name
        if rows.any():
            shape = np.stack([columns[axis][rows] for axis in ("m", "n", "k")], axis=1).astype(np.float64)
            gemm[dtype] = (shape, columns["latency"][rows].astype(np.float64) * 1e-3)
    return gemm


def common_sizes(values: Array, axis: int) -> Array:
    """The nodes of an axis: sizes that many kernels were timed at, and no odd m beyond the tile-edge probes."""
    sizes, counts = np.unique(values, return_counts=True)
    keep = counts >= 0.2 * counts.max()
    if axis == 0:
        keep = (counts >= 0.02 * counts.max()) & ((sizes <= 16) | (sizes % 16 == 0))
    return np.asarray(sizes[keep], dtype=np.float64)


def cube_of(shape: Array, seconds: Array, axes: Axes) -> Array:
    """Seconds on the grid, NaN where it was not timed."""
    cube = np.full(tuple(len(axis) for axis in axes), np.nan)
    places = [np.searchsorted(axis, shape[:, i]).clip(max=len(axis) - 1) for i, axis in enumerate(axes)]
    on_grid = np.all([axis[place] == shape[:, i] for i, (axis, place) in enumerate(zip(axes, places, strict=True))], 0)
    on_grid &= seconds > 0
    cube[tuple(place[on_grid] for place in places)] = seconds[on_grid]
    return cube


def without_quantisation(cube: Array, bf16: Array, dtype: str) -> Array:
    """A low-precision cube less the time to quantise its activations; see the module's docstring."""
    timed = ~np.isnan(cube)
    narrowest = int(np.flatnonzero(timed.any(axis=(0, 2)))[0])
    excess = cube[:, narrowest, :] - BYTES_OF_BF16[dtype] * bf16[:, narrowest, :]
    quantise = np.fmax(np.nan_to_num(excess), 0.0)
    return np.asarray(np.fmax(cube - quantise[:, None, :], LEAST_OF_BF16[dtype] * bf16))


def gemm_grid(cubes: list[Array], axes: Axes) -> tuple[Array, list[list[tuple[float, float]]]]:
    """The median over frameworks, filled and monotone; and its bands: at nodes, at held-out (n, k)."""
    stack = np.stack(cubes)
    middle = _median(stack)
    grid = monotone(filled(middle, axes, along=(1, 2)))
    judged = np.ones(grid.shape, dtype=bool)
    for axis, nodes in enumerate(axes):
        large = nodes >= np.log(SMALLEST_JUDGED) - 1e-9
        judged &= large.reshape([-1 if i == axis else 1 for i in range(3)])
    held_out = np.full(grid.shape, np.nan)
    for part in (0, 1):
        hidden = checkerboard(grid.shape[1:]) == part
        estimate = gemm_without(middle, axes, hidden)
        held_out[:, hidden] = estimate[:, hidden]
    compared = judged & ~np.isnan(stack)
    return grid, [_bands(stack - reference, grid, compared) for reference in (grid, held_out)]


def median_grid(cubes: list[Array], axes: Axes) -> Array:
    """The median over frameworks, filled and monotone, without bands."""
    return monotone(filled(_median(np.stack(cubes)), axes, along=(1, 2)))


def _median(stack: Array) -> Array:
    timed = ~np.isnan(stack).all(axis=0)
    middle = np.full(stack.shape[1:], np.nan)
    middle[timed] = np.nanmedian(stack[:, timed], axis=0)
    return middle


def gemm_without(middle: Array, axes: Axes, hidden: NDArray[np.bool_]) -> Array:
    """The monotone grid as it would be had the (n, k) in `hidden` never been timed."""
    partial = middle.copy()
    partial[:, hidden] = np.nan
    return monotone(filled(partial, axes, along=(1, 2)))


def checkerboard(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """0 and 1 alternating along both axes: half of all (n, k) shapes, none beside another of its half."""
    rows, columns = np.indices(shape)
    return np.asarray((rows + columns) % 2, dtype=np.int64)


def _bands(errors: Array, grid: Array, array: NDArray[np.bool_]) -> list[tuple[float, float]]:
    size = np.digitize(grid, np.log(BAND_EDGES_S))
    return [quantile_pair(errors[array & (size == part)]) for part in range(len(BAND_EDGES_S) + 1)]


# ----------------------------------------------------------------------------------------------------- attention


def attention_rows(system_folder: Path, dtype: str, bandwidth: float) -> dict[str, Array] | None:
    """One row per (head_dim, isl, batch, heads, KV heads, framework, kernel): log seconds of the kernel alone."""
    attention_name, cache_name, append_bytes = ATTENTION_DTYPES[dtype]
    parts: list[dict[str, Array]] = []
    sizes = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
    names = ("attn_dtype", "kv_cache_dtype", "kernel_source", *sizes, "step", "window_size", "latency")
    for number, path in enumerate(_latest(system_folder / "attention", "context_attention_perf.parquet")):
        columns = _columns(path, names)
        keep = (columns["attn_dtype"] == attention_name) & (columns["kv_cache_dtype"] == cache_name)
        keep &= (columns["kernel_source"] != "triton") & np.isin(columns["head_dim"], HEAD_DIMS)
        keep &= (columns["isl"] >= SHORTEST_SEQUENCE) & (np.nan_to_num(columns["step"]) == 0)
        keep &= np.nan_to_num(columns["window_size"]) == 0
        row = {name: columns[name][keep].astype(np.float64) for name in sizes}
        kv_elements = row["batch_size"] * row["isl"] * row["num_key_value_heads"] * row["head_dim"]
        latency = columns["latency"][keep].astype(np.float64) * 1e-3
        append = append_bytes * kv_elements / (bandwidth * APPEND_EFFICIENCY)
        row["log_time"] = np.log(np.maximum(latency - append, 0.5 * latency))
        row["token_heads"] = row["batch_size"] * row["num_heads"] * row["isl"]
        _, kernel = np.unique(columns["kernel_source"][keep].astype(str), return_inverse=True)
        row["kernel"] = 100.0 * number + kernel.ravel()
        parts.append(row)
    if not parts or not sum(part["isl"].size for part in parts):
        return None
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def fastest_rows(rows: dict[str, Array]) -> dict[str, Array]:
    """The rows of one kernel per (head_dim, isl, size): that with the least median over how size splits into
    batch, heads and KV heads."""
    key = np.stack([rows["head_dim"], rows["isl"], rows["token_heads"]], axis=1)
    _, group = np.unique(key, axis=0, return_inverse=True)
    group = group.ravel()
    kernels = np.unique(rows["kernel"])
    medians = np.full((int(group.max()) + 1, len(kernels)), np.inf)
    for column, number in enumerate(kernels):
        mine = np.flatnonzero(rows["kernel"] == number)
        order = mine[np.lexsort([rows["log_time"][mine], group[mine]])]
        groups, start, count = np.unique(group[order], return_index=True, return_counts=True)
        medians[groups, column] = rows["log_time"][order][start + count // 2]
    winner = kernels[medians.argmin(axis=1)]
    keep = rows["kernel"] == winner[group]
    return {name: values[keep] for name, values in rows.items()}


def attention_grid(rows: dict[str, Array], head_dims: Array, lengths: Array) -> Array:
    """Monotone log seconds over (head_dim, isl, isl x batch x heads)."""
    grid = np.full((len(head_dims), len(lengths), len(TOKEN_HEADS)), np.nan)
    nodes = np.log(TOKEN_HEADS)
    for i, head_dim in enumerate(head_dims):
        for j, length in enumerate(lengths):
            here = np.flatnonzero((rows["head_dim"] == head_dim) & (rows["isl"] == length))
            if not here.size:
                continue
            sizes, place = np.unique(rows["token_heads"][here], return_inverse=True)
            times = [np.median(rows["log_time"][here[place == index]]) for index in range(len(sizes))]
            line = np.interp(nodes, np.log(sizes), times)
            beyond = nodes > np.log(sizes[-1])
            line[beyond] += nodes[beyond] - np.log(sizes[-1])
            grid[i, j] = line
    axes = (np.log(head_dims), np.log(lengths), nodes)
    return monotone(filled(grid, axes, along=(0, 1)))


def attention_table(rows: dict[str, Array]) -> tuple[Array, Array, Array, list[list[tuple[float, float]]]]:
    """The grid, its head_dim and length nodes, and its bands: at nodes, at held-out head counts."""
    rows = fastest_rows(rows)
    head_dims, lengths = np.unique(rows["head_dim"]), np.unique(rows["isl"])
    grid = attention_grid(rows, head_dims, lengths)
    errors = rows["log_time"] - grid_at(grid, head_dims, lengths, rows)
    held_out = np.full(errors.shape, np.nan)
    for part in (0, 1):
        hidden = head_split(rows) == part
        rest = {name: values[~hidden] for name, values in rows.items()}
        estimate = grid_at(attention_grid(rest, head_dims, lengths), head_dims, lengths, rows)
        held_out[hidden] = (rows["log_time"] - estimate)[hidden]
    everywhere = np.ones(errors.shape, dtype=bool)
    bands = [_bands(differences, rows["log_time"], everywhere) for differences in (errors, held_out)]
    return grid, head_dims, lengths, bands


def head_split(rows: dict[str, Array]) -> NDArray[np.int64]:
    """0 or 1 per row, by its number of heads: whole head configurations fall on one side."""
    heads = np.unique(rows["num_heads"])
    return np.asarray(np.searchsorted(heads, rows["num_heads"]) % 2, dtype=np.int64)


def grid_at(grid: Array, head_dims: Array, lengths: Array, rows: dict[str, Array]) -> Array:
    """The grid along its last axis at each row, whose head_dim and isl are nodes."""
    nodes = np.log(TOKEN_HEADS)
    places = list(zip(rows["head_dim"], rows["isl"], np.log(rows["token_heads"]), strict=True))
    i = {value: index for index, value in enumerate(head_dims)}
    j = {value: index for index, value in enumerate(lengths)}
    return np.array([np.interp(x, nodes, grid[i[d], j[s]]) for d, s, x in places])


# ------------------------------------------------------------------------------------------------------- reading


def _latest(folder: Path, name: str) -> list[Path]:
    """One file per framework: that of its newest version."""
    paths = []
    for framework in sorted(path for path in folder.iterdir() if path.is_dir()):
        versions = [path for path in framework.iterdir() if (path / name).is_file()]
        if versions:
            paths.append(max(versions, key=lambda path: version_order(path.name)) / name)
    return paths


def _columns(path: Path, names: Sequence[str]) -> Columns:
    """Some columns of a parquet file as numpy arrays; a column that the file lacks is all zeros."""
    import pyarrow.parquet as parquet

    stored = parquet.ParquetFile(path)
    present = [name for name in names if name in stored.schema_arrow.names]
    table = stored.read(columns=present)
    columns = {name: table.column(name).to_numpy() for name in present}
    for name in names:
        columns.setdefault(name, np.zeros(table.num_rows))
    return columns


def bandwidth_of(system_folder: Path) -> float:
    """HBM bandwidth of the measured system, from the package's own description of it."""
    description = own_document((system_folder.parent.parent / f"{system_folder.name}.yaml").read_text())
    return float(description["gpu"]["mem_bw"])
