"""HeteroFL: every client trains the first channels of every layer.

Diao, Ding, Tarokh: HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients,
ICLR 2021. A sub-model is a prefix of the channels of each layer. Training divides hidden activations by the width
(scaler) and zeroes the logits of classes that the client does not have (masked loss). Batch norm has no running
statistics in training. The server averages a class's row of the output layer over the clients that have the class.
"""

from fedgmr.methods.method import Method
from fedgmr.server.buffer import BufferRule
from fedgmr.server.coordination import Synchronous
from fedgmr.server.label_aware import LabelAware
from fedgmr.submodels.widths import WidthPrefix
from fedgmr.training.rules import WidthSGD

HETEROFL = Method(
    name="heterofl",
    title="HeteroFL",
    ranking=WidthPrefix(),
    local=WidthSGD(),
    aggregation=LabelAware(),
    coordination=Synchronous(),
    buffer=BufferRule(keep=False),
)
