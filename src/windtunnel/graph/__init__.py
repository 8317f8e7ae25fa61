"""The execution graph of a step: flat arrays, a builder for small ones, memory from lifetimes, the allocator replay."""

from windtunnel.graph.allocator import AllocatorResult, replay_allocator
from windtunnel.graph.builder import GraphBuilder
from windtunnel.graph.memory import MemoryProfile, peak
from windtunnel.graph.program import Graph, OpKind

__all__ = ["AllocatorResult", "Graph", "GraphBuilder", "MemoryProfile", "OpKind", "peak", "replay_allocator"]
