"""FedRolex: HeteroFL's sub-models, but the window of channels rolls on by one each round.

Alam, Liu, Yan, Zhang: FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction, NeurIPS
2022. All clients use the same roll, each layer modulo its own size; under semi-asynchronous coordination it rolls
with the tick. Batch norm uses batch statistics in the test too.
"""

from fedgmr.methods.method import Method
from fedgmr.server.coordination import Synchronous
from fedgmr.server.label_aware import LabelAware
from fedgmr.submodels.widths import RollingWindow
from fedgmr.training.rules import WidthSGD


def fedrolex() -> Method:
    """Rolling width windows with masked loss and label-aware averaging, synchronous."""
    return Method(
        name="fedrolex",
        title="FedRolex",
        ranking=RollingWindow(),
        local=WidthSGD(norm="batch"),
        aggregation=LabelAware(),
        coordination=Synchronous(),
    )
