"""FedAvg: the full model to every client, wait for all, average.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data, AISTATS 2017. Clients count the same here, as in the paper's comparison (A33); `weighting:
samples` weighs by data.
"""

from fedgmr.methods.method import Method
from fedgmr.server.aggregation import MaskAware
from fedgmr.server.buffer import BufferRule
from fedgmr.server.coordination import Synchronous
from fedgmr.submodels.rankings import FullModel


def fedavg() -> Method:
    """Synchronous averaging of full models."""
    return Method(
        name="fedavg",
        title="FedAvg",
        ranking=FullModel(),
        aggregation=MaskAware(),
        coordination=Synchronous(),
        buffer=BufferRule(keep=False),
    )
