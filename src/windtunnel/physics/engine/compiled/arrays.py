"""The array of the compiled loops."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[
    Any
]  # which dtype is in a comment beside each: the checker need not follow how ints and elements mix
