"""Arguments of Megatron-LM and what descends from it: read, written, and read off a log."""
