"""Traces of real jobs as graphs, and what their stragglers cost.

table_trace.py   operation tables (Parquet)       -> Trace
whatif.py        explain(trace)                   -> Explanation
"""

from __future__ import annotations
