"""Reading a Result: one screen, one HTML file, one trace, one folder, or two results side by side.

    console.py     print_result(result, console)       what a person wants on one screen
    document.py    to_document(result)                 the versioned JSON form, and its JSON Schema
    run_folder.py  save(result), load(path)            folders named by content hash
    html.py        write_html(result, path)            one offline HTML file with pictures
    trace.py       write_trace(result, path)           gzipped Chrome JSON, opens in Perfetto
    compare.py     compare(a, b)                       where two results differ, and what explains it

Everything here works from `windtunnel.result.Result` alone and computes no physics. The names below are loaded on
first use, so that `windtunnel --help` pays for none of them. `compare` is both a module and its function, so it is
imported from where it lives: `from windtunnel.report.compare import compare`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windtunnel.report.compare import Comparison as Comparison
    from windtunnel.report.compare_console import print_comparison as print_comparison
    from windtunnel.report.compare_console import render_comparison as render_comparison
    from windtunnel.report.console import print_result as print_result
    from windtunnel.report.console import render_console as render_console
    from windtunnel.report.document import json_schema as json_schema
    from windtunnel.report.document import to_document as to_document
    from windtunnel.report.html import render_html as render_html
    from windtunnel.report.html import write_html as write_html
    from windtunnel.report.run_folder import load as load
    from windtunnel.report.run_folder import save as save
    from windtunnel.report.trace import write_trace as write_trace

_HOME = {
    "Comparison": "compare",
    "print_comparison": "compare_console",
    "render_comparison": "compare_console",
    "print_result": "console",
    "render_console": "console",
    "json_schema": "document",
    "to_document": "document",
    "render_html": "html",
    "write_html": "html",
    "load": "run_folder",
    "save": "run_folder",
    "write_trace": "trace",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
