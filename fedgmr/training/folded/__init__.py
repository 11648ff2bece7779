"""Clients folded into the batch: all tasks in the same kernels, for nets of ordinary layers."""
