"""Machines sold by what is requested, and filled up with what is not used: speculative tasks, node agents, eviction."""
