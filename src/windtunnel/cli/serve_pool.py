"""`windtunnel serve pool.yaml`: several models on groups of machines, on one clock."""

from __future__ import annotations

from pathlib import Path


def answer_pool(path: Path, page: Path | None, json: bool) -> None:
    """Run the pool and print it."""
    from windtunnel.cli.output import note, print_answer, stdout, working
    from windtunnel.serving.shared_pool.result import serve_pool

    with working("serving"):
        found = serve_pool(path).to_dict()
    if page is not None:
        from windtunnel.report.serving.pool_page import write_pool_page

        write_pool_page(found, path.name, page)
        note(f"wrote {page}")
    if json:
        print_answer("serve pool", found)
    else:
        from windtunnel.report.serving.pool_console import print_pool

        print_pool(found, stdout())
