"""Coflows: groups of flows that are done when the last is, and who goes first on shared ports."""

from windtunnel.fleet.flows.study import CLOCKS, POLICIES, FlowsAnswer, policy_named, run_flows
from windtunnel.fleet.flows.trace import Shuffle, Trace, read_trace
from windtunnel.fleet.flows.traffic import Transfer, on_switch

__all__ = [
    "CLOCKS",
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
