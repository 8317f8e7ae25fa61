"""`windtunnel serve --real tiny-llama`: the policies on a real engine, predicted beside measured."""

from __future__ import annotations

from windtunnel.cli.output import print_answer, stdout, working


def answer_real(requests: int | None, rate: float | None, cv: float, seed: int, json: bool) -> None:
    """Run it and print it."""
    from windtunnel.serving.real.compare import REQUESTS, compare

    with working("serving for real"):
        found = compare(requests=REQUESTS if requests is None else requests, rate=rate, cv=cv, seed=seed).to_dict()
    if json:
        print_answer("serve --real", found)
    else:
        from windtunnel.report.serving.real import print_real

        print_real(found, stdout())
