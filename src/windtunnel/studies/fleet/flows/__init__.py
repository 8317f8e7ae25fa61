"""Coflows: groups of flows that are done when the last is, and who goes first on shared ports."""

from windtunnel.studies.fleet.flows.study import POLICIES, FlowsAnswer, policy_named, run_flows
from windtunnel.studies.fleet.flows.trace import Shuffle, Trace, Transfer, on_switch, read_trace

__all__ = [
    "POLICIES",
    "FlowsAnswer",
    "Shuffle",
    "Trace",
    "Transfer",
    "on_switch",
    "policy_named",
    "read_trace",
    "run_flows",
]
