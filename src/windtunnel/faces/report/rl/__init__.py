"""A step of RL post-training as views."""
