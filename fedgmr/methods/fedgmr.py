"""FedGMR: gradual model restoration for bandwidth-constrained clients.

Breaking the Capacity Bottleneck in Model-Heterogeneous Federated Learning via Gradual Model Restoration. Slow
clients start with a small nested sub-model; when the validation metric of their sub-model saturates they move one
level up; updates are merged mask-aware and semi-asynchronously from a buffer with staleness weights; increments are
multicast (IMS).
"""

from dataclasses import replace
from typing import Any

from fedgmr.methods.method import Method
from fedgmr.server.aggregation import MaskAware
from fedgmr.server.buffer import BufferRule
from fedgmr.server.coordination import SemiAsynchronous, Synchronous
from fedgmr.server.restoration import Saturation
from fedgmr.server.staleness import Polynomial
from fedgmr.submodels.rankings import Taylor


def fedgmr() -> Method:
    """The whole method, with the paper's settings."""
    return Method(
        name="fedgmr",
        title="FedGMR",
        ranking=Taylor(),
        aggregation=MaskAware(),
        coordination=SemiAsynchronous(),
        restoration=Saturation(),
        staleness=Polynomial(alpha=0.5),
        ims=True,
    )


def fedgmr_without_restoration() -> Method:
    """Without GMR: every client keeps its preset density."""
    return _ablation("restoration", restoration=None)


def fedgmr_without_asynchrony() -> Method:
    """Without asynchrony: every merge waits for all clients."""
    return _ablation("asynchrony", coordination=Synchronous())


def fedgmr_without_buffer() -> Method:
    """Without the buffer: every update is merged once."""
    return _ablation("buffer", buffer=BufferRule(keep=False))


def fedgmr_without_ims() -> Method:
    """Without IMS: every client's sub-model crosses the server's uplink separately."""
    return _ablation("IMS", ims=False)


def fedgmr_without_buffer_and_ims() -> Method:
    """Without buffer and IMS."""
    return _ablation("buffer and IMS", buffer=BufferRule(keep=False), ims=False)


def _ablation(missing: str, **changes: Any) -> Method:
    return replace(fedgmr(), title=f"FedGMR w/o {missing}", **changes)
