"""FedGMR: gradual model restoration for bandwidth-constrained clients.

Breaking the Capacity Bottleneck in Model-Heterogeneous Federated Learning via Gradual Model Restoration. Slow
clients start with a small nested sub-model. When the validation metric of their sub-model saturates, they move one
level up. The server merges updates mask-aware and semi-asynchronously, from a buffer with staleness weights.
Incremental model splitting (IMS) sends each increment once for all clients that need it.
"""

from dataclasses import replace
from typing import Any

from fedgmr.methods.method import Method
from fedgmr.server.aggregation import MaskAware
from fedgmr.server.buffer import BufferRule
from fedgmr.server.coordination import SemiAsynchronous, Synchronous
from fedgmr.server.restoration import Saturation
from fedgmr.staleness import Polynomial
from fedgmr.submodels.rankings import Taylor

FEDGMR = Method(
    name="fedgmr",
    title="FedGMR",
    ranking=Taylor(),
    aggregation=MaskAware(),
    coordination=SemiAsynchronous(),
    restoration=Saturation(),
    staleness=Polynomial(alpha=0.5),
    ims=True,
)


def _without(part: str, **changes: Any) -> Method:
    return replace(FEDGMR, title=f"FedGMR w/o {part}", **changes)


_NO_BUFFER = BufferRule(keep=False)
# The paper's ablations by name, each with a line about it.
ABLATIONS = {
    "fedgmr_without_restoration": (
        _without("restoration", restoration=None),
        "Without GMR: every client keeps its preset density.",
    ),
    "fedgmr_without_asynchrony": (
        _without("asynchrony", coordination=Synchronous()),
        "Without asynchrony: every merge waits for all clients.",
    ),
    "fedgmr_without_buffer": (
        _without("buffer", buffer=_NO_BUFFER),
        "Without the buffer: every update is merged once.",
    ),
    "fedgmr_without_ims": (
        _without("IMS", ims=False),
        "Without IMS: every client's sub-model crosses the server's uplink separately.",
    ),
    "fedgmr_without_buffer_and_ims": (
        _without("buffer and IMS", buffer=_NO_BUFFER, ims=False),
        "Without buffer and IMS.",
    ),
}
