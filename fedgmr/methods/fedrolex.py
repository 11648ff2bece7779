"""FedRolex: HeteroFL's sub-models, but the window of channels rolls on by one each round.

Alam, Liu, Yan, Zhang: FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction, NeurIPS
2022. All clients use the same roll, and each layer takes it modulo its own size. Under semi-asynchronous coordination
the window rolls with the tick. Batch norm has no running statistics in training. The masked loss is off: without the
gradient clipping of the released code a moving window with zeroed logits is unstable (docs/methods/fedrolex.md).
"""

from fedgmr.methods.method import Method
from fedgmr.server.buffer import BufferRule
from fedgmr.server.coordination import Synchronous
from fedgmr.server.label_aware import LabelAware
from fedgmr.submodels.widths import RollingWindow
from fedgmr.training.rules import WidthSGD

FEDROLEX = Method(
    name="fedrolex",
    title="FedRolex",
    ranking=RollingWindow(),
    local=WidthSGD(masked_loss=False),
    aggregation=LabelAware(),
    coordination=Synchronous(),
    buffer=BufferRule(keep=False),
)
