"""WHAT is learned: tasks, the data they load, and how it is dealt out to clients."""

from fedgmr.tasks.metrics import Metric, top1
from fedgmr.tasks.task import Task, named_task

# The built-in tasks: each is a function in the module of the same name.
BUILT_IN = ("mnist5k", "femnist", "cifar10", "imagenet100", "stackoverflow", "fashion_mnist", "shakespeare")

__all__ = ["BUILT_IN", "Metric", "Task", "named_task", "top1"]
