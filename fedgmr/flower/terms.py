"""The terms that both sides of a deployed run agree on before the first task, and checksums to see that they do."""

import hashlib
from dataclasses import dataclass

from fedgmr.exchange import ClientTask
from fedgmr.submodels.layout import Layout
from fedgmr.wire import ValueType


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of one run."""

    run: int  # stamped on every object; another one each time the server's app starts
    recipe: str  # resolved, as JSON
    layout: str  # checksum
    ims: bool
    per_width: bool = False  # the model's buffers travel once per level
    classes: int = 0  # how many there are, where clients are asked which they have
    value_type: ValueType = ValueType.FP32

    @property
    def checksum(self) -> str:
        """The checksum of the recipe."""
        return checksum(self.recipe)

    def update_buffers(self, task: ClientTask) -> int:
        """The number of buffer entries in the update of a task."""
        if not self.per_width:
            return len(task.buffers)
        return len(task.buffers) // len(task.levels.ladder) * (task.level + 1)


def checksum(text: str) -> str:
    """A short name for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def layout_checksum(layout: Layout) -> str:
    """A checksum that is the same for two models exactly if their flat vectors mean the same."""
    places = [(p.name, p.shape, p.prunable) for p in (*layout.parameters, *layout.buffers)]
    return checksum(repr((places, str(layout.dtype))))
