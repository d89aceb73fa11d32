"""Execution contract: static buffers, CUDA graphs, kernel selection, capsules."""
