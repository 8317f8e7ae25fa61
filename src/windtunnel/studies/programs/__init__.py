"""Recorded programs of a few ranks become one step of the whole job. Knows no torch."""
