"""Triton kernels, each beside its plain reference. Imports torch and triton only."""
