"""Alpa's two levels: layers into stages, and operators into shardings, from tables of prices."""
