"""FedGMR: gradual model restoration for bandwidth-constrained clients.

Breaking the Capacity Bottleneck in Model-Heterogeneous Federated Learning via Gradual Model Restoration. Slow
clients start with a small nested sub-model; when the validation metric of their sub-model saturates they move one
level up; updates are merged mask-aware and semi-asynchronously from a buffer with staleness weights; increments are
multicast (IMS).
"""

from dataclasses import replace

from fedgmr.methods.method import Method
from fedgmr.server.aggregation import MaskAware
from fedgmr.server.coordination import SemiAsynchronous
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
    """The ablation without GMR: every client keeps its preset density."""
    return replace(fedgmr(), name="fedgmr_without_restoration", title="FedGMR w/o restoration", restoration=None)
