"""Traces of real jobs as graphs, and what their stragglers cost.

One format, one importer; all give a `Trace`, and only that is explained.

    read.py             read_trace(paths) -> Trace: which importer reads a file
    operation_table/    tables of one row per op; pipeline_order.py finds what waited for what
    kineto/             PyTorch profiler traces, one rank each; file.py reads also what was cut off
    chakra/             Chakra execution traces, in wire form and as JSON
    joined.py           ranks into one Trace; matching.py: which communication ops are one; clocks.py: their clocks
    stragglers/         explain(trace) -> Explanation: what each worker, stage or kind of op costs
"""
