"""WHAT is learned: tasks, the data they load, and how it is dealt out to clients."""

from fedgmr.tasks.task import Task, named_task, top1

# name of a built-in task -> module of this package with a function of that name
BUILT_IN = {
    "mnist5k": "mnist5k",
    "femnist": "femnist",
    "cifar10": "cifar10",
    "imagenet100": "imagenet100",
    "stackoverflow": "stackoverflow",
    "fashion_mnist": "fashion_mnist",
}

__all__ = ["BUILT_IN", "Task", "named_task", "top1"]
