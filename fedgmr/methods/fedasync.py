"""FedAsync: the server mixes every update in as it arrives; the staler it is, the less it counts.

Xie, Koyejo, Gupta: Asynchronous Federated Optimization, 2019. W ← (1 - a)·W + a·w with a = 0.6·(1 + s)^-0.5, and the
client receives the new model at once. The proximal term (`local.proximal`) is off by default: over a few steps it is
negligible.
"""

from fedgmr.methods.method import Method
from fedgmr.server.aggregation import Mixing
from fedgmr.server.buffer import BufferRule
from fedgmr.server.coordination import Asynchronous
from fedgmr.staleness import Polynomial
from fedgmr.submodels.rankings import FullModel

FEDASYNC = Method(
    name="fedasync",
    title="FedAsync",
    ranking=FullModel(),
    aggregation=Mixing(rate=0.6),
    coordination=Asynchronous(),
    staleness=Polynomial(alpha=0.5),
    buffer=BufferRule(keep=False),
)
