"""Clients folded into the batch: all tasks in the same kernels, for nets of ordinary layers.

What holds in all files of this room: tensors have the clients in their first dimension and are contiguous within a
client; weights, biases and their gradients are columns of matrices with a row per client, so that only their first
stride is free. A `precision` is "tf32" or "ieee". Block sizes and shares follow from the sizes of one client alone, and
shares are added in their order: a client's bits do not depend on its company. The kernels' files are imported only
where Triton is there. Begin with `plan.py`.
"""
