"""Alpa's outer level: layers into stages, from tables of prices."""
