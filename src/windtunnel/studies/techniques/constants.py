"""The few constants of techniques: what they need to know of hosts and kernels beyond the catalogue, with sources."""

# Of the raw rate, pinned copies: 12.3 to 12.5 of 16 GB/s on PCIe 3.0 x16 (bandwidthTest, CUDA samples).
PCIE_EFFICIENCY = 0.78
# Memory traffic of an eager optimizer per hardware thread; STRONGHOLD's artifact (github strongh2/sc22-ae f184275),
# 12 threads.
HOST_BYTES_PER_S_PER_THREAD = 1.55e9
HOST_THREADS_PER_GPU = 12  # the artifact's machine, and a cloud's usual share of a V100
EAGER_ADAM_BYTES = 72  # per parameter in fp32: PyTorch's Adam tensor by tensor reads or writes 18 times 4 bytes
# Per parameter in fp32: one pass, gradient, parameter and two moments read, three of them written.
FUSED_ADAM_BYTES = 28
# As predicted; buffers that come and go leave gaps: 7 runs of the artifact have 1.33 to 1.45.
RESERVED_OVER_ALLOCATED = 1.36
WINDOW_HEADROOM = 1.04  # kept free beyond that when a window is chosen
NVME_BYTES_PER_S = 3.0e9  # one PCIe 3.0 x4 drive, sequential, the slower of reading and writing
# Times a gradient's bytes move to choose, pack and unpack its chunks: gradient and residual read, residual and norms
# written, chunks copied out and back.
SELECT_PASSES = 6
CUT_LAUNCH_S = 20.0e-6  # a kernel that is cut is launched once for each piece, with a wait on an event
