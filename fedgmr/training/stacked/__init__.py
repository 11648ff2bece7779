"""All tasks in the same Triton kernels."""
