"""Recipes in Python (Megatron-Bridge, NeMo 2, xtuner), followed on their text."""
