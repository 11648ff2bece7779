"""FIARSE: sub-models by the magnitude of the current model, trained with a threshold-aware gradient.

Wu, Wang, Wang, Liu, Su, Gao: FIARSE: Model-Heterogeneous Federated Learning via Importance-Aware Submodel Extraction,
NeurIPS 2024. Each round's level map ranks |w| of the current global model, biases with the weights; only weights
above the threshold take part in local steps, and the threshold's derivative scales their gradient; the server
averages over the clients that hold a coordinate.
"""

from fedgmr.methods.method import Method
from fedgmr.server.aggregation import MaskAware
from fedgmr.server.buffer import BufferRule
from fedgmr.server.coordination import Synchronous
from fedgmr.submodels.rankings import Threshold
from fedgmr.training.rules import ThresholdedSGD


def fiarse() -> Method:
    """Magnitude sub-models with one global threshold, synchronous."""
    return Method(
        name="fiarse",
        title="FIARSE",
        ranking=Threshold(scope="global"),
        local=ThresholdedSGD(scope="global"),
        aggregation=MaskAware(),
        coordination=Synchronous(),
        buffer=BufferRule(keep=False),
    )
