"""Policies that give jobs the GPUs that they ask for, now, later, or by turns."""
