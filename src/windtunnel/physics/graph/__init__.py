"""The execution graph of a step: flat arrays, a builder for small ones, the allocator replay."""

from windtunnel.physics.graph.allocator import AllocatorResult, replay_allocator
from windtunnel.physics.graph.builder import GraphBuilder
from windtunnel.physics.graph.program import Graph, OpKind

__all__ = ["AllocatorResult", "Graph", "GraphBuilder", "OpKind", "replay_allocator"]
