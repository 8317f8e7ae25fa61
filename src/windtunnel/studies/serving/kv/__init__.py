"""The KV cache of a replica: how large it is, who holds its blocks, and which prefixes it still knows."""
