"""`windtunnel fleet flows TRACE --policy ...`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from windtunnel.errors import SpecError
from windtunnel.faces.cli.output import note, print_answer, stdout, working
from windtunnel.files.write import write_csv
from windtunnel.units import parse_bandwidth

if TYPE_CHECKING:
    from windtunnel.studies.fleet.flows import FlowsAnswer


def flows(
    trace: Path,
    /,
    *,
    policy: Annotated[
        str, Parameter(help="One or more of sebf, scf, ncf, lcf, fifo, fair, d-clas (aalo), fai, with commas between.")
    ] = "sebf",
    clock: Annotated[str | None, Parameter(show=False)] = None,
    port: Annotated[str, Parameter(help="What each port sends and receives, such as 10Gb/s (128 MiB/s).")] = "",
    out: Annotated[
        Path | None, Parameter(help="Start and end of every coflow as CSV; with several policies, one after the other.")
    ] = None,
    json: Annotated[bool, Parameter(negative="", help="Print the aggregates as JSON.")] = False,
) -> None:
    """Coflows that share the ports of one switch: when each ends under a policy.

    Parameters
    ----------
    trace
        A text file of coflow-benchmark's layout, such as FB2010-1Hr-150-0.txt.
    """
    from windtunnel.studies.fleet.flows import policy_named, read_trace, run_flows
    from windtunnel.studies.fleet.flows.study import PORT_BYTES_PER_S

    if clock is not None:
        raise SpecError("--clock", clock, "leave it out: CoflowSim's clock is validation/oracles/coflowsim")
    names = [policy_named(word.strip()) for word in policy.split(",")]
    if len(set(names)) < len(names):
        raise SpecError("policy", policy, "name each policy once")
    if port.replace(".", "").strip().isdigit():  # as likely meant in Gb/s as in bytes per second
        raise SpecError("--port", port, f"say the unit: {port.strip()}Gb/s or {port.strip()}MB/s")
    rate = parse_bandwidth(port, "--port") if port else PORT_BYTES_PER_S
    read = read_trace(trace)
    with working("moving flows"):
        answers = [run_flows(read, name, rate) for name in names]
    if out is not None:
        _write(out, answers)
    none = answers[0].ignored
    ignored = [f"{len(none)} coflows have no mapper and were ignored: {', '.join(none[:20])}"] if none else []
    if json:
        own = {"trace": str(trace), "ports": read.n_ports, "policies": {a.policy: a.to_dict() for a in answers}}
        print_answer("fleet flows", own, provenance={"flows": str(trace)}, warnings=ignored)
    else:
        _print(answers)
    for text in ignored:
        note(text)
    if out is not None:
        note(f"wrote {out}")


def _write(out: Path, answers: list[FlowsAnswer]) -> None:
    several = len(answers) > 1
    rows = []
    for answer in answers:
        for name, start, finish in zip(answer.coflow, answer.start_s.tolist(), answer.finish_s.tolist(), strict=True):
            words = [name, "", ""] if start != start else [name, f"{start:.9f}", f"{finish:.9f}"]  # ignored: no number
            rows.append([*([answer.policy] if several else []), *words])
    write_csv(out, [*(["policy"] if several else []), "coflow", "start_s", "finish_s"], rows)


def _print(answers: list[FlowsAnswer]) -> None:
    import numpy as np
    from rich.table import Table

    table = Table(title="Coflow completion time, seconds", title_justify="left")
    for column in ("policy", "mean", "p50", "p95", "p99", "last end"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for answer in answers:
        cct = answer.cct_s
        if not len(cct):
            table.add_row(answer.policy, *["-"] * 5)
            continue
        values = [cct.mean(), *np.percentile(cct, [50, 95, 99]), np.nanmax(answer.finish_s)]
        table.add_row(answer.policy, *(f"{value:,.3f}" for value in values))
    stdout().print(table)
