"""Clusters of several kinds of GPU: how fast jobs are on each, and the programs that choose between them."""
