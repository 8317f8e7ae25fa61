"""Published runs, predicted and held against what was measured."""
