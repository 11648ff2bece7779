"""HeteroFL: every client trains the first channels of every layer.

Diao, Ding, Tarokh: HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients,
ICLR 2021. A sub-model is a prefix of the channels of each layer; hidden activations are divided by the width in
training (scaler), logits of classes a client has not are zeroed (masked loss), batch norm is static, and a class's
row of the output layer is averaged over the clients that have the class.
"""

from fedgmr.methods.method import Method
from fedgmr.server.buffer import BufferRule
from fedgmr.server.coordination import Synchronous
from fedgmr.server.label_aware import LabelAware
from fedgmr.submodels.widths import WidthPrefix
from fedgmr.training.rules import WidthSGD


def heterofl() -> Method:
    """Width prefixes with scaler, masked loss and label-aware averaging, synchronous."""
    return Method(
        name="heterofl",
        title="HeteroFL",
        ranking=WidthPrefix(),
        local=WidthSGD(norm="static"),
        aggregation=LabelAware(),
        coordination=Synchronous(),
        buffer=BufferRule(keep=False),
    )
