"""Configurations of RL frameworks, read as questions: their own files, and a table of names each."""
