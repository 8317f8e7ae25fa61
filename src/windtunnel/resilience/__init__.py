"""Resilience: what failures cost a training job at any scale, under each way to live with them."""
