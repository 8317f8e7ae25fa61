"""Chakra execution traces."""
