"""Advice on a plan: single changes that were predicted, and the fewest of them that are worth making."""
