"""Captured CUDA graphs on parallel streams."""
