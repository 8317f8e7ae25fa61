"""Reading a Result: one screen, one HTML file, one trace, one folder, or two results side by side.

    console.py     print_result(result, console)       what a person wants on one screen
    document.py    to_document(result)                 the versioned JSON form, and its JSON Schema
    notebook.py    notebook_html(result)               what a notebook shows of a result
    run_folder.py  save(result), load(path)            folders named by content hash
    run_list.py    RunList(root)                       what folders there are: search, tags, delete
    html.py        write_html(result, path)            one offline HTML file with pictures
    trace.py       write_trace(result, path)           gzipped Chrome JSON, opens in Perfetto
    compare.py     compare(a, b)                       where two results differ, and what explains it

Everything here works from `windtunnel.result.Result` alone and computes no physics. The names below are loaded on
first use, so that `windtunnel --help` pays for none of them. `compare` is both a module and its function, so it is
imported from where it lives: `from windtunnel.report.comparison.compare import compare`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.lazy import lazily

if TYPE_CHECKING:
    from windtunnel.report.comparison.compare import Comparison as Comparison
    from windtunnel.report.comparison.console import print_comparison as print_comparison
    from windtunnel.report.comparison.console import render_comparison as render_comparison
    from windtunnel.report.prediction.console import print_result as print_result
    from windtunnel.report.prediction.console import render_console as render_console
    from windtunnel.report.prediction.document import json_schema as json_schema
    from windtunnel.report.prediction.document import to_document as to_document
    from windtunnel.report.prediction.html import render_html as render_html
    from windtunnel.report.prediction.html import write_html as write_html
    from windtunnel.report.prediction.trace import write_trace as write_trace
    from windtunnel.report.run_folder import load as load
    from windtunnel.report.run_folder import save as save

_HOME = {
    "Comparison": "comparison.compare",
    "print_comparison": "comparison.console",
    "render_comparison": "comparison.console",
    "print_result": "prediction.console",
    "render_console": "prediction.console",
    "json_schema": "prediction.document",
    "to_document": "prediction.document",
    "render_html": "prediction.html",
    "write_html": "prediction.html",
    "load": "run_folder",
    "save": "run_folder",
    "write_trace": "prediction.trace",
}
__all__ = sorted(_HOME)
__getattr__ = lazily(__name__, _HOME)
