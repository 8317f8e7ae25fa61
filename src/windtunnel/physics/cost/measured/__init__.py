"""Measured tables: compacted once, interpolated in log space."""
