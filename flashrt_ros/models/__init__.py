"""π0 and π0.5 in plain PyTorch: networks, checkpoints, processing. Imports no kernels."""
