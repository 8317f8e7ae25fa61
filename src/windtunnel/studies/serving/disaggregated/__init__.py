"""Prompts and answers on GPUs of their own, and the KV cache that moves between them."""
