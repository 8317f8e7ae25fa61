"""`windtunnel serve pool.yaml`: several models on groups of machines, or in a pool of weights, on one clock."""

from __future__ import annotations

from pathlib import Path

from windtunnel.errors import SpecError
from windtunnel.faces.cli.output import note, print_answer, show, working
from windtunnel.files.document import read_mapping


def answer_pool(path: Path, page: Path | None, json: bool) -> None:
    """Run the pool and print it."""
    from windtunnel.studies.serving.shared_pool.result import serve_pool

    if "weights" in read_mapping(path, "give a pool in YAML, with `groups:` and `models:`"):
        _answer_weights(path, page, json)
        return
    with working("serving"):
        answer = serve_pool(path)
    found = answer.to_dict()
    if page is not None:
        from windtunnel.faces.report.draw.page import write_page
        from windtunnel.faces.report.serving.views import pool_document

        write_page(pool_document(found, path.name), page)
        note(f"wrote {page}")
    if json:
        print_answer("serve pool", found, warnings=answer.warnings)
    else:
        for warning in answer.warnings:
            note(warning)
        from windtunnel.faces.report.serving.views import pool_document

        show(pool_document(found, path.name))


def _answer_weights(path: Path, page: Path | None, json: bool) -> None:
    """A pool of weights: a file with `weights:` in place of `groups:`."""
    from windtunnel.faces.report.serving.views import weight_pool_document
    from windtunnel.studies.serving.weight_pool.study import read_weight_pool, run_weight_pool

    if page is not None:
        raise SpecError("--report", str(page), "a pool of weights has none: leave it out")
    with working("serving"):
        pool = read_weight_pool(path)
        found = run_weight_pool(pool).to_dict()
    if json:
        print_answer("serve pool", found, provenance={"step times": list(pool.sources)}, warnings=pool.warnings)
        return
    for warning in pool.warnings:
        note(warning)
    show(weight_pool_document(found))
