"""What an operator of PyTorch is called with."""

from __future__ import annotations

from typing import Any

Arguments = tuple[Any, ...]  # by position: tensors, numbers, lists of them; the operator's schema says which
Keywords = dict[str, Any]  # by name
