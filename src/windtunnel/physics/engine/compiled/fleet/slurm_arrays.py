"""What stands where in the arrays of Slurm's compiled loops, which `slurm_kernels.py` lists."""

from __future__ import annotations

import numpy as np

NEVER = np.iinfo(np.int64).max
BITS = 62
S_NS = 1_000_000_000
DONE, TICK = 0, 1
# Rows of `jobs`: AFTER is the rank by submission, KIND equal where GPUs and partition are, START -1 before it starts,
# CPUS 0: as many as GPUs
SUBMIT, LASTS, LIMIT, GPUS, BAND, AFTER, PARTITION, LINE, USER, KIND, GROUP, START, FIRST, CPUS = range(14)
# Places of `now`
NOW, WAKE, NEXT, WAITING, RUNNING, GIVEN, COMPLETING, CHANGED, SEEN, CALCULATED, STAMP, TICKED = range(12)
# Places of `site`: times in ns; EVERY is between calculations of priorities, 0: never
PER_NODE, INTERVAL, STEP, WINDOW, BATCH, COMPLETES, RESERVED_AFTER, EVERY = range(8)
MAIN_DEPTH, DEPTH, DEPTH_USER, DEPTH_LINE, DEFERRED, PARTITIONS, USERS, LINES, NODE_CPUS = range(8, 17)
# Rows of `lists`: running by the end of their limit, running with the first to end on top, ended since the last
# decision, ended with nodes that are not free yet, and when these are
BY_LIMIT, HEAP, ENDED, ENDING, FREED = range(5)
# Rows of `sets` behind partitions
ALL, AMONG, TAKEN, BUSY, SCRATCH = range(5)
