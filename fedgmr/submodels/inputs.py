"""The inputs of a model: one tensor, several in a tuple (given in their order), or a mapping (given by name).

The first dimension of every tensor is the sample. Read next: `fedgmr/tasks/samples.py`, where they come from.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

Inputs = Any  # Tensor | tuple[Tensor, ...] | dict[str, Tensor]


def each(change: Callable[[Tensor], Any], inputs: Inputs) -> Any:
    """Change every tensor of the inputs; what is no tensor stays."""
    if isinstance(inputs, Tensor):
        return change(inputs)
    return tree_map(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, inputs)


def leaves(inputs: Inputs) -> list[Tensor]:
    """All tensors of the inputs."""
    return [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]


def arguments(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """The inputs as a call has them: by their place, and by name."""
    if isinstance(inputs, dict):
        return (), inputs
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def outputs_of(model: nn.Module, inputs: Inputs) -> Tensor:
    """Call the model; of an output with `logits`, as Hugging Face's models have it, these."""
    by_place, by_name = arguments(inputs)
    outputs = model(*by_place, **by_name)
    if not isinstance(outputs, Tensor) and hasattr(outputs, "logits"):
        outputs = outputs.logits
    return outputs  # type: ignore[no-any-return]


def as_written(module: nn.Module) -> bool:
    """Whether calling a module computes what its class says, and nothing before, behind or in place of it."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


@contextmanager
def replaced_forward(layer: nn.Module, forward: Any) -> Iterator[None]:
    """Let `forward` compute in place of a layer's own; the layer keeps its attributes."""
    layer.forward = forward
    try:
        yield
    finally:
        del layer.forward
