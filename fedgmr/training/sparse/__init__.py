"""Sparse linear layers for small unstructured sub-models on a CPU."""
