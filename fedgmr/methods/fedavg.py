"""FedAvg: the full model to every client, wait for all, average.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data, AISTATS 2017. All clients count the same here, as in the paper's comparison (A33); with
`weighting: samples` they count by their data.
"""

from fedgmr.methods.method import Method
from fedgmr.server.aggregation import MaskAware
from fedgmr.server.buffer import BufferRule
from fedgmr.server.coordination import Synchronous
from fedgmr.submodels.rankings import FullModel

FEDAVG = Method(
    name="fedavg",
    title="FedAvg",
    ranking=FullModel(),
    aggregation=MaskAware(),
    coordination=Synchronous(),
    buffer=BufferRule(keep=False),
)
