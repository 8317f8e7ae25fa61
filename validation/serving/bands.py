"""Widths of the serving bands that stand for what no constant was fitted on, from published runs of just that.

    python validation/serving/bands.py TABLE... [--rows 4]
    python validation/serving/bands.py --residuals FILE...    what fit_engines.py --residuals wrote

    NEW_MODEL_BAND   families of models that no constant was fitted on
    EXPERTS_BAND     routed experts where constants were fitted on dense models alone
    SOURCE_BAND, NEW_MODEL_SOURCE_BAND, UNTIMED_SOURCE_BAND   sources that no constant was fitted on
    APART_BAND       pools on GPUs whose constants were fitted on replicas that serve both phases
    FIRST_TOKEN_BAND mean TTFT, beyond the band of step times: of all rows

Such rows informed no constant, so each is left out of the fit by what it is. What a row needs of its band is what the
rest of the band lacks to reach the published time per token; a width is what nine in ten of its rows need, each cell
(model family, GPU, engine, mode) counting once. A row counts for the first of them that it has. Printed: rows, cells,
that width, and what it is now.

With --residuals: `band` of a release on a GPU (`engines/*.yaml`), from what is left of families left out. A cell has
few families, so its scale s is drawn towards those of all cells:

    s^2 of a cell ~ scaled inverse chi^2 (nu, S);   mean square of a family's rows ~ s^2 chi^2 / 1
    band = q sqrt((nu S + sum over its families) / (nu + families));   of a cell without rows: q sqrt(S)

nu and S are the most likely of all cells, of GPUs whose kernels are timed and of others apart; q is what nine in ten
rows need of the scale of their cell's other families, each cell counting once.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import optimize, stats

from windtunnel.evidence.accuracy.serving import predict
from windtunnel.evidence.accuracy.serving.mlperf import is_mlperf
from windtunnel.evidence.accuracy.serving.rows import ServingRow, gpu_of, read_rows
from windtunnel.studies.serving import result, run
from windtunnel.studies.serving.build import Engine
from windtunnel.studies.serving.disaggregated import pools

HELD = 0.9
HOME = {"APART_BAND": pools, "FIRST_TOKEN_BAND": result}  # the others are `run`'s
Cell = tuple[str, ...]
Needs = dict[str, dict[Cell, list[float]]]  # band -> cell -> what its rows need of it
OF_SOURCES = ("UNTIMED_SOURCE_BAND", "NEW_MODEL_SOURCE_BAND", "SOURCE_BAND")
ORDER = (*OF_SOURCES, "APART_BAND", "NEW_MODEL_BAND", "EXPERTS_BAND")


def watched() -> set[str]:
    """Names of the bands that went into predictions since it was last emptied."""
    used: set[str] = set()
    own_band, run_pools = run.band_of, pools.run_pools

    def of_engine(engine: Engine, batch: float, context: float, open_loop: bool) -> float:
        routed = any(layer.feed_forward.kind == "moe" for layer in engine.model.layers)
        used.update(["EXPERTS_BAND"] * (routed and not engine.profile.experts_fitted))
        term = run.other_source_of(engine)[0]
        used.update([name for name in OF_SOURCES if term and getattr(run, name) == term])
        used.update(["NEW_MODEL_BAND"] * (not run._fitted(engine.model)))
        return own_band(engine, batch, context, open_loop)

    def of_pools(*given: object, **named: object) -> object:
        both = given[0]
        assert isinstance(both, pools.Pools)
        used.update(["APART_BAND"] * (not both.decode.measured))
        return run_pools(*given, **named)  # type: ignore[arg-type]

    run.band_of, pools.run_pools = of_engine, of_pools  # type: ignore[assignment]
    return used


def cell_of(row: ServingRow) -> Cell:
    """What is one case with other loads."""
    return tuple(row.text(name) for name in ("model_family", "gpu", "engine", "mode"))


def few(rows: list[ServingRow], most: int) -> Iterator[ServingRow]:
    """So many rows of each cell and source, evenly spread; each row once."""
    alike: dict[Cell, list[ServingRow]] = defaultdict(list)
    for row in {row.id: row for row in rows}.values():
        measured = row.number("tpot_ms") and not row.text("duplicate_of") and row.text("spec") in ("none", "")
        if measured and not is_mlperf(row):  # at the limits that all submissions hold
            alike[*cell_of(row), row.text("source")[:20]].append(row)
    for group in alike.values():
        yield from group[:: -(-len(group) // most)]


def needed(name: str, off: float, band: float) -> float:
    """What a row needs of a band that is independent of the rest."""
    width = 0.0 if name == "FIRST_TOKEN_BAND" else getattr(HOME.get(name, run), name)
    return math.sqrt(max(0.0, off**2 - max(0.0, band**2 - width**2)))


def scale_of(squares: list[list[float]]) -> tuple[float, float]:
    """(nu, S) that are most likely of cells with these mean squares of families."""
    means = np.array([np.mean(own) for own in squares])
    families = np.array([len(own) for own in squares])

    def unlikely(logs: np.ndarray) -> float:
        whole, nu = np.exp(logs)
        return float(-np.sum(stats.f.logpdf(means / whole, families, nu) - logs[0]))

    whole, nu = np.exp(optimize.minimize(unlikely, np.log([0.006, 3.0]), method="Nelder-Mead").x)
    return float(nu), float(whole)


def print_cells(files: list[Path]) -> None:
    """The band of each release and GPU."""
    rows: dict[Cell, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    now: dict[Cell, float] = {}
    for path in files:
        with path.open(newline="") as file:
            for engine, release, gpu, family, row, off, band in csv.reader(file):
                rows[engine, release, gpu][family][row] = abs(float(off))
                now[engine, release, gpu] = float(band)
    for timed in (True, False):
        cells = {cell: own for cell, own in rows.items() if (gpu_of(cell[2], 1).gpu.kernel_tables is not None) == timed}
        if not cells:
            continue
        squares = {
            cell: [float(np.mean(np.square([*of.values()]))) for of in own.values()] for cell, own in cells.items()
        }
        nu, whole = scale_of(list(squares.values()))

        def scale(of: list[float], nu: float = nu, whole: float = whole) -> float:
            return math.sqrt((nu * whole + sum(of)) / (nu + len(of)))

        needs: dict[Cell, list[float]] = {}
        for cell, own in cells.items():
            of = squares[cell]
            for place, left in enumerate(own.values()):
                needs.setdefault(cell, []).extend(off / scale(of[:place] + of[place + 1 :]) for off in left.values())
        q = nine_in_ten(needs)
        print(f"kernels {'timed' if timed else 'not timed'}: nu {nu:.1f}, q {q:.2f}, without rows {q * scale([]):.2f}")
        for cell, of in squares.items():
            print(f"    {' '.join(cell)}: {len(of)} families, band {q * scale(of):.2f}; it is {now[cell]:.2f}")
        held = [off <= now[cell] for cell, own in cells.items() for left in own.values() for off in left.values()]
        print(f"    {len(held)} rows left out, {np.mean(held):.0%} in the band as it is")


def nine_in_ten(needs: dict[Cell, list[float]]) -> float:
    """What nine in ten rows need at most, each cell counting once."""
    weighed = sorted((need, 1.0 / len(own)) for own in needs.values() for need in own)
    shares = np.cumsum([weight for _, weight in weighed]) / len(needs)
    return weighed[int(np.searchsorted(shares, HELD))][0]


def main() -> None:
    """Predict the rows and print the widths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path, nargs="*")
    parser.add_argument("--residuals", type=Path, nargs="+", default=[])
    parser.add_argument("--rows", type=int, default=4, help="of each cell and source")
    asked = parser.parse_args()
    if asked.residuals:
        print_cells(asked.residuals)
        return
    predict.MOST_REQUESTS, predict.LEAST_WAVES = 600, 3
    used, needs = watched(), Needs()
    for row in few(read_rows(asked.tables), asked.rows):
        used.clear()
        answer, measured_s = predict.predicted(row), (row.number("tpot_ms") or 0.0) / 1e3
        if answer.status == "refused":
            continue
        band = 0.5 * math.log(answer.tpot_p95_s / answer.tpot_p5_s)
        if first := row.number("ttft_ms"):
            need = needed("FIRST_TOKEN_BAND", abs(math.log(first / 1e3 / answer.ttft_s)), band)
            needs.setdefault("FIRST_TOKEN_BAND", {}).setdefault(cell_of(row), []).append(need)
        if not used:
            continue
        off = math.log(measured_s / answer.tpot_s)
        name = min(used, key=ORDER.index)
        print(f"{row.id[:40]:40s} {off:+.2f} of {band:.2f}  {', '.join(sorted(used))}", flush=True)
        needs.setdefault(name, {}).setdefault(cell_of(row), []).append(needed(name, abs(off), band))
    for name, of in sorted(needs.items()):
        now = getattr(HOME.get(name, run), name)
        rows = sum(len(own) for own in of.values())
        print(f"{name}: {rows} rows of {len(of)} cells need {nine_in_ten(of):.2f}; it is {now:.2f}")


if __name__ == "__main__":
    main()
