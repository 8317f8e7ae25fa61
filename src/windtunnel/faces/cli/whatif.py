"""`windtunnel whatif RUN --set ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windtunnel.errors import UserError
from windtunnel.faces.cli.output import note, print_answer, show, working


def whatif(
    run: str,
    /,
    *,
    set: Annotated[
        tuple[str, ...],
        Parameter(
            name="--set",
            negative="",
            help="What is different: cluster.nic=800Gb/s, plan.tp=4, model.layers=64; slow.none mends everything,"
            " slow.without=gpu=1037:1.15 one thing. Repeatable.",
        ),
    ] = (),
    slow: Annotated[tuple[str, ...], Parameter(negative="", help="Something more that is slow, as in predict.")] = (),
    json: Annotated[bool, Parameter(negative="", help="Print the comparison as JSON.")] = False,
    out: Annotated[Path, Parameter(help="Where run folders are looked for and go (runs).")] = Path("runs"),
    save: Annotated[bool, Parameter(negative="--no-save", help="Save a run folder of the new answer.")] = True,
) -> None:
    """Ask a saved run again with something changed, and show what that does.

    Parameters
    ----------
    run
        A run folder, its result.json, or the first digits of its hash.
    """
    from windtunnel.faces.report.comparison.compare import compare
    from windtunnel.faces.report.comparison.views import comparison_document
    from windtunnel.faces.report.run_folder import load
    from windtunnel.faces.report.run_folder import save as save_run
    from windtunnel.studies.whatif import ask_again

    if not set and not slow:
        raise UserError("nothing is different: add --set, such as cluster.nic=800Gb/s or slow.none, or --slow")
    before = load(run, out)
    with working("predicting"):
        after = ask_again(before, *set, slow=slow, run=run)
    comparison = compare(before, after)
    made_by, now = before.spec.get("version"), after.spec["version"]
    older = f"{run} was made by version {made_by or 'unknown'}, this is {now}: not all that differs is the change"
    warnings = [older] if made_by != now else []
    for text in warnings:
        note(text)
    if json:
        print_answer(
            "whatif",
            {"run": run, "--set": set, "--slow": slow, "--out": str(out)},
            comparison.to_dict(),
            warnings=warnings,
        )
    else:
        show(comparison_document(comparison))
    if save:
        note(f"wrote {save_run(after, out)}")
