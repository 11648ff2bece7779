"""The channels of narrow clients, by Triton's interpreter or on a GPU, against a plain search."""

import torch
from torch import Tensor

from fedgmr.training.execution import TRITON
from training.folded_clients import DEVICE, RUNS

if TRITON:
    from fedgmr.training.folded.spans import Spans

AT = {
    "table": (0, torch.Size((70, 5))),
    "bias": (352, torch.Size((5,))),
    "conv": (368, torch.Size((33, 3, 3, 130))),
}
ROW = 368 + 33 * 9 * 130 + 6


def ends(there: Tensor) -> tuple[int, int]:
    """The first that is true, and the one behind the last; (0, 0) where there is none."""
    places = there.nonzero().flatten().tolist()
    return (places[0], places[-1] + 1) if places else (0, 0)


@RUNS
def test_ranges_are_those_of_the_levels() -> None:
    made = torch.Generator().manual_seed(1)
    levels = torch.full((4, ROW), 255, dtype=torch.uint8)
    for client in range(3):  # the fourth has nothing
        for begin, shape in (AT["table"], AT["conv"]):
            before, behind = (torch.randint(0, 5, (n,), generator=made) for n in (shape[-1], shape[0]))
            both = torch.maximum(behind[:, None], before[None, :])
            both = torch.where(both > 3, 255, both)
            taps = both if len(shape) == 2 else both[:, None, None].expand(shape)
            levels[client, begin : begin + shape.numel()] = taps.flatten().to(torch.uint8)
    spans = Spans(AT, most=6, device=torch.device(DEVICE))
    spans.look(levels.to(DEVICE), 4)
    for limits in ((0, 1, 3, 2), (2, 0, 1, 3)):
        spans.find(torch.tensor(limits, dtype=torch.int32, device=DEVICE), 4)
        for name in ("table", "conv"):
            begin, shape = AT[name]
            found = spans.of(name)
            assert found.narrow
            for client, limit in enumerate(limits):
                held = levels[client, begin : begin + shape.numel()].view(shape) <= limit
                before, behind = held.flatten(0, -2).any(0), held.flatten(1).any(1)
                for ranges, there in ((found.given, before), (found.wanted, behind)):
                    flat = ranges.flatten()
                    assert (int(flat[client]), int(flat[client + found.stride])) == ends(there)
