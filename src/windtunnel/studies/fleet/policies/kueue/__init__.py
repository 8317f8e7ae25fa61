"""Kueue: quotas in a tree of cohorts, cycles of admission, preemption."""
