"""FjORD: ordered dropout. Every mini-batch trains one width, drawn from those up to the client's own.

Horváth, Laskaridis, Almeida, Leontiadis, Venieris, Lane: FjORD: Fair and Accurate Federated Learning under
Heterogeneous Targets with Ordered Dropout, NeurIPS 2021. Sub-models are prefixes of channels, and batch-norm statistics
are kept per width. The server averages a coordinate over the clients that hold it. Distillation from the client's own
width to the drawn one is off by default.
"""

from fedgmr.methods.method import Method
from fedgmr.server.aggregation import MaskAware
from fedgmr.server.buffer import BufferRule
from fedgmr.server.coordination import Synchronous
from fedgmr.submodels.widths import WidthPrefix
from fedgmr.training.rules import OrderedDropout

FJORD = Method(
    name="fjord",
    title="FjORD",
    ranking=WidthPrefix(),
    local=OrderedDropout(),
    aggregation=MaskAware(),
    coordination=Synchronous(),
    buffer=BufferRule(keep=False),
)
