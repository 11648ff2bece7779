"""FedAsync: the server mixes every update in as it arrives, the less the staler it is.

Xie, Koyejo, Gupta: Asynchronous Federated Optimization, 2019. W ← (1 - a)·W + a·w with a = 0.6·(1 + s)^-0.5; the
client at once receives the new model. The proximal term is off by default (negligible over a few steps):
`local.proximal`.
"""

from fedgmr.methods.method import Method
from fedgmr.server.aggregation import Mixing
from fedgmr.server.buffer import BufferRule
from fedgmr.server.coordination import Asynchronous
from fedgmr.server.staleness import Polynomial
from fedgmr.submodels.rankings import FullModel


def fedasync() -> Method:
    """Asynchronous mixing of full models with polynomial staleness."""
    return Method(
        name="fedasync",
        title="FedAsync",
        ranking=FullModel(),
        aggregation=Mixing(rate=0.6),
        coordination=Asynchronous(),
        staleness=Polynomial(alpha=0.5),
        buffer=BufferRule(keep=False),
    )
