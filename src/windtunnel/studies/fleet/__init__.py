"""A study: many jobs on one cluster, and the schedulers that share it among them.

`windtunnel.fleet` is the name of this package and of the study's one function: the package is callable.
"""

from __future__ import annotations

from windtunnel.lazy import called_as

called_as(__name__, "study")
