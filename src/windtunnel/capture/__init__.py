"""Traces of real jobs as graphs, and what their stragglers cost.

One format, one importer; all give a `Trace`, and only that is explained.

    read.py             read_trace(paths) -> Trace: which importer reads a file
    table_trace.py      operation tables; operation_table.py reads them, pipeline_order.py finds what waited for what
    kineto_rank.py      PyTorch profiler traces, one rank; kineto_file.py reads also what was cut off
    chakra.py           Chakra execution traces; chakra_wire.py and chakra_json.py read them
    joined.py           ranks into one Trace; matching.py: which communication ops are one; clocks.py: their clocks
    whatif.py           explain(trace) -> Explanation
"""

from __future__ import annotations
