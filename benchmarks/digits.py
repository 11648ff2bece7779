"""A task for the benchmark of real links: the images of mnist5k, and Conv-2, the net of the paper's bandwidths."""

from dataclasses import replace

from fedgmr import Task
from fedgmr.tasks.mnist5k import mnist5k
from fedgmr.tasks.models.conv2 import Conv2


def digits(seed: int = 0) -> Task:
    """Ten digits with a net of 6,603,710 parameters, 26.4 MB on the wire."""
    return replace(mnist5k(seed), name="digits", title="MNIST-5k (5,000 images, Conv-2)", model=Conv2)
