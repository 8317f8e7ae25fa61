"""What stands where in the arrays of Slurm's compiled loops, which `slurm_kernels.py` lists."""

from __future__ import annotations

import numpy as np

NEVER = np.iinfo(np.int64).max
BITS = 62
S_NS = 1_000_000_000
DONE, TICK = 0, 1
# Rows of `jobs`: AFTER is the rank by submission, KIND equal where GPUs, EACH and partition are, START -1 before it
# starts, CPUS 0: as many as GPUs, EACH: GPUs on each of its nodes but the last
SUBMIT, LASTS, LIMIT, GPUS, BAND, AFTER, PARTITION, LINE, USER, KIND, GROUP, START, FIRST, CPUS, EACH = range(15)
# Places of `now`
NOW, WAKE, NEXT, WAITING, RUNNING, GIVEN, COMPLETING, CHANGED, SEEN, CALCULATED, STAMP, TICKED = range(12)
# Places of `site`: times in ns; NODE_CPUS of the node with the most, EVERY between calculations of priorities, 0: never
INTERVAL, STEP, WINDOW, BATCH, COMPLETES, RESERVED_AFTER, EVERY = range(7)
MAIN_DEPTH, DEPTH, DEPTH_USER, DEPTH_LINE, DEFERRED, PARTITIONS, USERS, LINES, NODE_CPUS = range(7, 16)
# Rows of `lists`: running by the end of their limit, running with the first to end on top, ended since the last
# decision, ended with nodes that are not free yet, and when these are
BY_LIMIT, HEAP, ENDED, ENDING, FREED = range(5)
# Rows of `sets` behind partitions
ALL, AMONG, TAKEN, BUSY, SCRATCH = range(5)
