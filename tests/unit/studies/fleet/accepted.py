"""What `simulate` makes of every policy and option: a table of texts, recorded before policies had traits.

python tests/unit/studies/fleet/accepted.py      writes the recorded table anew
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from windtunnel.errors import UserError
from windtunnel.studies.fleet.capacity import Changes
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.outcome import STATES
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import Site, parse_site
from windtunnel.studies.fleet.speeds.tables import speeds_by

RECORDED = Path(__file__).parent / "accepted.json"
POLICIES = (
    *(
        "fifo",
        "fifo-skip",
        "sjf",
        "sjf-skip",
        "easy",
        "backfill",
        "current",
        "slurm",
        "tiresias",
        "gittins",
        "srtf",
        "themis",
    ),
    *("themis-auction", "optimus", "pollux", "gavel", "sia", "edf", "edf-elastic", "gandiva", "elasticflow"),
    *("elasticflow-paper", "elasticflow-artifact", "lyra-none", "lyra-loan", "lyra-elastic", "lyra"),
    *("hybrid-cost", "hybrid-time", "hybrid-locality", "hybrid-privacy", "starburst", "spot"),
    *("requested", "rose", "rose-qos", "fastest"),
)
SITE = parse_site("gpu:2x4")
OPTIONS = {
    "plain": {},
    "restart": {"restart_s": 5.0},
    "pool": {"pool": True},
    "fails": {"changes": Changes(mtbf_s=1e9)},
    "unpredicted": {"speeds": None},
}


def jobs() -> Jobs:
    """Jobs that run, and one for each reason why a job is left out."""
    nan = np.nan
    #        submit, gpus, duration, deadline, iterations, batch, start, ended
    rows = [
        (0.0, 2, 50.0, 900.0, 40.0, 8.0, 0.0, "completed"),
        (5.0, 4, 70.0, 900.0, 40.0, 8.0, 6.0, "failed"),
        (6.0, 12, 10.0, 900.0, 40.0, 8.0, 7.0, "completed"),  # more than there are
        (7.0, 0, 10.0, 900.0, 40.0, 8.0, 8.0, "completed"),
        (8.0, 1, nan, 900.0, 40.0, 8.0, 9.0, "completed"),
        (9.0, 1, 10.0, nan, 40.0, 8.0, nan, "completed"),
        (9.0, 3, nan, 900.0, 40.0, 8.0, nan, "cancelled"),  # before it started
        (9.0, 1, 10.0, 20.0, 4000.0, 8.0, 9.0, "completed"),  # late on any GPUs
    ]
    columns = [np.array(column) for column in zip(*(row[:-1] for row in rows), strict=True)]
    submit, gpus, duration, deadline, iterations, batch, start = (column.astype(float) for column in columns)
    blank = [""] * len(rows)
    return Jobs(
        "t.csv",
        [f"job-{at}" for at in range(len(rows))],
        np.arange(len(rows)) + 2,
        submit,
        gpus.astype(np.int64),
        duration,
        deadline,
        iterations,
        batch,
        start,
        blank,
        blank,
        {"ended": [row[-1] for row in rows]},
    )


def sites(folder: Path) -> dict[str, Site]:
    """One kind of node, two kinds, and own nodes beside clouds."""
    (folder / "site.yaml").write_text(
        "gpu: gpu\ngpus: 8\ngpus_per_node: 4\npools: [{name: east, price_per_gpu_hour: 3.0}]\n"
    )
    return {
        "one kind": SITE,
        "two kinds": parse_site("v100:1x4+k80:1x4"),
        "clouds": parse_site(str(folder / "site.yaml")),
    }


def answer(rows: Jobs, site: Site, policy: str, options: Options) -> str:
    """The state of each job and why it was left out, or the message."""
    try:
        outcome = simulate(rows, site, policy, options)
    except UserError as error:
        return f"refused: {error}"
    why = outcome.why or {}
    return "; ".join(
        f"{at} {STATES[state]}" + (f" ({why[at]})" if at in why else "") for at, state in enumerate(outcome.state)
    )


def table() -> dict[str, list[str]]:
    """Questions by their answer."""
    by_gpus = speeds_by(lambda model, batch, gpus: 1.0 / gpus**0.9)
    every = jobs()
    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, site in sites(Path(folder)).items():
            for policy in POLICIES:
                for name, given in OPTIONS.items() if kind == "one kind" else (("plain", {}),):
                    options = replace(Options(speeds=by_gpus, until_s=1e6), **given)
                    text = answer(every, site, policy, options).replace(folder, "")
                    found.setdefault(text, []).append(f"{kind}, {policy}, {name}")
    return found


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(table(), indent=1) + "\n")
