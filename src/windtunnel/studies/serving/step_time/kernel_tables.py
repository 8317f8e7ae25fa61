"""Prices from one's own kernel tables, in the layout of LLMServingSim's profiler, joined to one file per table.

    attention   gpu, model, tp, prefill_chunk, kv_prefill, n_decode, kv_decode, time_us          one layer
    layers      gpu, model, tp, table, layer, size, time_us    dense: size = tokens; per_sequence: size = sequences
    skew        n, nb, ratio, skew, pc, kp, kvs, kv_big, kv_mean, t_mean_us, t_max_us, t_skew_us   optional

Decode attention is read at (n_decode, mean context), prompts at (prefill_chunk, kv_prefill). A step that holds both
takes as long as their sum times the ratio that the table's own mixed rows show (the kernels overlap in part). Contexts
that differ cost more than the mean context does: the ratio of `t_skew_us` to `t_mean_us`, by whether prompts are in the
step. Sums over GPUs are not in the tables; they come from the cluster's links.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputFileError
from windtunnel.files.bytes import path_of
from windtunnel.files.table import read_table
from windtunnel.physics.cost.inference import inference_kernels
from windtunnel.physics.cost.inference.surface import Curve, Surface, curve, surface
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.architecture import Model
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.step_time.times import Prices

Array = NDArray[np.float64]
ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
LAYERS = ("table", "layer", "size", "time_us")
TWICE = ("layernorm",)  # layers that a transformer layer runs twice
OUTSIDE = ("embedding", "final_layernorm")  # once per step


@dataclass(frozen=True, eq=False)
class TablePrices(Prices):
    """Seconds from measured kernels; pipelines and exchanges are not in the tables, experts are part of the layers."""

    layers: int
    hidden: int
    tp: int
    all_reduce: Callable[[float, int], float]
    per_layer: tuple[tuple[Curve, int], ...]  # over tokens, times in a layer
    once: tuple[Curve, ...]
    per_sequence: tuple[Curve, ...]
    decode_table: Surface
    prompt_table: Surface  # over (past, chunk)
    together: float  # time of a mixed step's attention over the sum of its parts
    skewed: tuple[float, float]  # decode alone, beside prompts: time over that at the mean context
    timed_on: str = ""  # a table of one GPU only stands for the machine, whatever that is called

    def dense(self, tokens: float) -> float:
        """All layers, and what a step does once."""
        inside = sum(times * line.at(tokens) for line, times in self.per_layer)
        inside += 2 * self.all_reduce(2.0 * tokens * self.hidden, self.tp)
        return self.layers * inside + sum(line.at(tokens) for line in self.once)

    def decode_surface(self, queries: int = 1) -> Callable[[float, float], float]:
        """Decode attention, all layers."""
        factor = self.layers * self.skewed[0]
        return lambda sequences, context: factor * self.decode_table.at(sequences, context)

    def decode_nodes(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Between which the table is straight."""
        contexts = sorted({node for line in self.decode_table.curves for node in line.nodes})
        return self.decode_table.batches, tuple(contexts)

    def prefill(self, chunk: int, past: int) -> float:
        """A prompt's chunk, all layers."""
        return self.layers * self.together * self.prompt_table.at(float(max(1, past)), float(chunk))

    def head(self, sequences: float) -> float:
        """Output matrix and sampler."""
        return sum(line.at(sequences) for line in self.per_sequence)


def table_prices(
    path: Path, model: Model, deployment: Deployment, cluster: Cluster, framework: str = "vllm", release: str = ""
) -> TablePrices:
    """Read the tables of a folder, or those beside a file: any CSV with the columns above is recognised by them.

    Rows of other GPUs, models or tensor-parallel sizes are passed over where such columns are there.
    Raises InputFileError.
    """
    tables = [(file, _read(file)) for file in _files(path)]
    attention = _chosen(
        path, [t for t in tables if set(ATTENTION) <= set(t[1])], "attention", model, deployment, cluster
    )
    layers = _chosen(path, [t for t in tables if set(LAYERS) <= set(t[1])], "layers", model, deployment, cluster)
    skews = [t for t in tables if {"t_mean_us", "t_skew_us", "pc"} <= set(t[1])]
    skew = _chosen(path, skews, "skew", model, deployment, cluster) if skews else None
    lines = _lines(layers, model)
    dense = {name: line for (table, name), line in lines.items() if table == "dense"}
    others = tuple(line for (table, _), line in lines.items() if table not in ("dense", "moe"))
    inside = tuple((line, 2 if name in TWICE else 1) for name, line in dense.items() if name not in OUTSIDE)
    experts = tuple((line, 1) for (table, _), line in lines.items() if table == "moe")
    decode, prompt, together = _attention(path, attention)
    kernels = inference_kernels(cluster, framework, release)
    return TablePrices(
        model.n_layers,
        model.hidden_size,
        deployment.tp,
        kernels.all_reduce_s,
        inside + experts,
        tuple(line for name, line in dense.items() if name in OUTSIDE),
        others,
        decode,
        prompt,
        together,
        _skew(skew),
        f", timed on {attention['gpu'][0]}" if "gpu" in attention else "",
    )


def _files(path: Path) -> list[Path]:
    folder = path if path_of(path).is_dir() else path.parent
    paths = sorted(folder.glob("*.csv")) if path.is_dir() else [path, *sorted(folder.glob("*kernels*.csv"))]
    unique = list({file.resolve(): file for file in reversed(paths)}.values())[::-1]  # by the names as they are given
    if not unique or not path.exists():
        raise InputFileError(path, "holds no table", "give a kernel table in CSV, or the folder that holds them")
    return unique


def _read(path: Path) -> dict[str, list[str]]:
    table = read_table(path, "give a readable CSV")
    return {name: table.texts(name) for name in table.columns if table.has("time_us") or table.has("t_skew_us")}


def _chosen(
    path: Path,
    tables: list[tuple[Path, dict[str, list[str]]]],
    what: str,
    model: Model,
    deployment: Deployment,
    cluster: Cluster,
) -> dict[str, NDArray[Any]]:
    for _, table in tables:
        arrays = {name: np.array(values) for name, values in table.items()}
        keep = np.ones(len(next(iter(arrays.values()))), dtype=bool)
        for name, wanted in (("tp", str(deployment.tp)), ("model", model.name), ("gpu", cluster.gpu.name)):
            if name not in arrays:
                continue
            here = np.array([_same(value, wanted) for value in arrays[name].tolist()])
            only = len(set(arrays[name].tolist())) == 1 and name == "gpu"  # one's own machine, whatever it is called
            keep &= here | only
        if keep.any():
            return {name: values[keep] for name, values in arrays.items()}
    remedy = "the tables must hold this model, GPU and --tp"
    raise InputFileError(path, f"has no {what} rows of {model.name}, {cluster.gpu.name}, tp {deployment.tp}", remedy)


def _same(value: str, wanted: str) -> bool:
    """Names that differ only in case, organisation and punctuation are the same."""

    def plain(text: str) -> str:
        return "".join(letter for letter in text.rpartition("/")[2].lower() if letter.isalnum())

    name, other = plain(value), plain(wanted)
    return name == other or (name.isdigit() is False and (name in other or other in name))


def _lines(table: dict[str, NDArray[Any]], model: Model) -> dict[tuple[str, str], Curve]:
    """One curve per layer; of a mixture, timed by how many experts are reached, at as many as its tokens reach."""
    sizes, seconds = table["size"].astype(float), table["time_us"].astype(float) * 1e-6
    routed = [layer.feed_forward for layer in model.layers if layer.feed_forward.kind == "moe"]
    curves = {}
    for key in sorted(set(zip(table["table"].tolist(), table["layer"].tolist(), strict=True))):
        mine = (table["table"] == key[0]) & (table["layer"] == key[1])
        times = seconds[mine]
        texts = table["activated_experts"][mine].tolist() if "activated_experts" in table else [""]
        if routed and all(texts):
            block, reached = routed[0], np.array(texts, dtype=float)
            nodes = np.unique(sizes[mine])
            picked = []
            for node in nodes:
                here = np.flatnonzero(sizes[mine] == node)
                here = here[np.argsort(reached[here])]
                share = block.experts_per_token / block.experts
                expected = block.experts * -np.expm1(node * np.log1p(-share))
                picked.append(float(np.interp(expected, reached[here], times[here])))
            curves[key] = curve(nodes, np.array(picked))
        else:
            curves[key] = curve(sizes[mine], times)
    return curves


def _attention(path: Path, table: dict[str, NDArray[Any]]) -> tuple[Surface, Surface, float]:
    chunk, past, n, kv, micros = (table[name].astype(float) for name in ATTENTION)
    alone, pure = (chunk == 0) & (n > 0), (n == 0) & (chunk > 0)
    if not alone.any() or not pure.any():
        raise InputFileError(path, "has no rows of decode alone, or of prompts alone", "time both")
    decode = surface(n[alone], kv[alone], micros[alone] * 1e-6)
    prompt = surface(np.maximum(past[pure], 1.0), chunk[pure], micros[pure] * 1e-6)
    both = (chunk > 0) & (n > 0)
    ratio = 1.0
    if both.any():
        parts = [
            (prompt.at(max(p, 1.0), c) + decode.at(b, k)) * 1e6
            for c, p, b, k in zip(chunk[both], past[both], n[both], kv[both], strict=True)
        ]
        ratio = float(np.median(micros[both] / np.array(parts)))
    return decode, prompt, min(1.0, ratio)


def _skew(table: dict[str, NDArray[Any]] | None) -> tuple[float, float]:
    if table is None:
        return 1.0, 1.0
    mean, real, chunk = (table[name].astype(float) for name in ("t_mean_us", "t_skew_us", "pc"))
    pure = chunk == 0
    ratios = [float(np.median(real[part] / mean[part])) if part.any() else 1.0 for part in (pure, ~pure)]
    return max(1.0, ratios[0]), max(1.0, ratios[1])
