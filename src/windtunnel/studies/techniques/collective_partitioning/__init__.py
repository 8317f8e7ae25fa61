"""Centauri-style partitioned collectives: pricing in `price`; the real ones are in `windtunnel.real.techniques`."""
