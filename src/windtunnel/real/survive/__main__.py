"""`python -m windtunnel.survive --nproc-per-node 4 --standby 1 train.py [arguments]`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from windtunnel.errors import UserError
from windtunnel.process import terminated_is_an_end


def _rank_at_step(text: str) -> tuple[int, int]:
    rank, at, step = text.partition("@")
    if not (at and rank.isdecimal() and step.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r}: write RANK@STEP, e.g. 1@100")
    return int(rank), int(step)


def main(words: list[str] | None = None) -> int:
    """Parse, launch, tell."""
    parser = argparse.ArgumentParser(prog="python -m windtunnel.survive", description=__doc__)
    parser.add_argument("--nproc-per-node", type=int, default=1, help="ranks of the job, on each host (1, as torchrun)")
    parser.add_argument("--nnodes", type=int, default=1, help="hosts, each with an agent of its own (1)")
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="COMMAND",
        help="what starts an agent on a host, such as 'ip netns exec a'; once for each (all here)",
    )
    parser.add_argument("--address", default="127.0.0.1", help="where hosts reach this process (127.0.0.1)")
    parser.add_argument("--standby", type=int, default=1, help="warm processes beside them (1)")
    parser.add_argument(
        "--patience", type=float, default=10.0, help="seconds without a beat until a rank is killed (10)"
    )
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds that a collective may take (300)")
    parser.add_argument(
        "--end-timeout", type=float, default=300.0, help="seconds that the script may go on after the last step (300)"
    )
    parser.add_argument(
        "--give-up", type=float, default=600.0, help="seconds in which processes die and no step is done (600)"
    )
    parser.add_argument(
        "--replace",
        action="append",
        default=[],
        type=_rank_at_step,
        metavar="RANK@STEP",
        help="replace a rank as planned, once so many steps are done and a standby is warm; repeatable",
    )
    parser.add_argument("--afresh", action="store_true", help="start each process by itself: no forks")
    parser.add_argument(
        "--preload",
        action="append",
        default=[],
        metavar="MODULE",
        help="what is imported once for all processes, such as transformers",
    )
    parser.add_argument("--report-json", type=Path, help="write what happened here")
    parser.add_argument(
        "script",
        type=Path,
        help="a script that calls windtunnel.survive.standby (or .train); any other begins again when a rank dies",
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    options = parser.parse_args(words)
    if not options.script.is_file():
        parser.error(f"{options.script}: there is no such script")
    if find_spec("torch") is None:  # it is imported later, while the fork server does so
        parser.error("torch is not installed: pip install 'windtunnel[torch]'")
    if options.nnodes < 1 or (options.host and len(options.host) != options.nnodes):
        parser.error(f"--nnodes {options.nnodes}: give 1 or more, and --host for each of them or for none")
    if options.report_json is not None and not os.access(options.report_json.parent, os.W_OK):
        parser.error(f"--report-json {options.report_json}: there is no such folder that can be written to")
    from windtunnel.real.survive.live.launcher import launch

    command = [sys.executable, str(options.script), *options.arguments]
    try:
        with terminated_is_an_end():
            report = launch(
                command,
                options.nproc_per_node * options.nnodes,
                options.standby,
                hosts=options.host or [""] * (options.nnodes if options.nnodes > 1 else 0),
                address=options.address,
                patience_s=options.patience,
                timeout_s=options.timeout,
                end_s=options.end_timeout,
                give_up_s=options.give_up,
                replace=options.replace,
                afresh=options.afresh,
                preload=options.preload,
            )
    except KeyboardInterrupt:
        return 130
    except UserError as error:
        parser.error(str(error))
    if options.report_json is not None:
        options.report_json.write_text(json.dumps(report.to_dict(), indent=1) + "\n")
    for replacement in report.replacements:
        what = "planned change" if replacement.planned else f"{', '.join(replacement.dead)} died"
        paused = "not measured" if replacement.downtime_s is None else f"{replacement.downtime_s:.2f} s"
        print(f"windtunnel: {what}: {paused} until the next step", file=sys.stderr)
    for rank, step in report.not_replaced:
        print(f"windtunnel: rank {rank} was not replaced after step {step}: the job ended before", file=sys.stderr)
    if report.start_s is not None:
        print(f"windtunnel: starting the job took {report.start_s:.1f} s", file=sys.stderr)
    if report.reason:
        print(f"windtunnel: error: {report.reason}", file=sys.stderr)
    return report.status


if __name__ == "__main__":
    sys.exit(main())
