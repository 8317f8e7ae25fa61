"""Planning: the best plan for a model on a cluster, and the proof that none in the space is better (`plan.py`).

Nothing is imported here: RL's trainer needs the bounds alone.
"""
