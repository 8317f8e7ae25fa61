"""Everything that runs PyTorch: capture, emulation, calibration, real twins of studies."""
