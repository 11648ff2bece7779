"""FIARSE: sub-models by the magnitude of the current model, trained with a threshold-aware gradient.

Wu, Wang, Wang, Liu, Su, Gao: FIARSE: Model-Heterogeneous Federated Learning via Importance-Aware Submodel Extraction,
NeurIPS 2024. Each round's level map ranks |w| of the current global model, biases together with weights. Only weights
above the threshold take part in local steps, and the threshold's derivative scales their gradient. The server averages
a coordinate over the clients that hold it.
"""

from fedgmr.methods.method import Method
from fedgmr.server.aggregation import MaskAware
from fedgmr.server.buffer import BufferRule
from fedgmr.server.coordination import Synchronous
from fedgmr.submodels.threshold import Threshold
from fedgmr.training.rules import ThresholdedSGD

FIARSE = Method(
    name="fiarse",
    title="FIARSE",
    ranking=Threshold(scope="global"),
    local=ThresholdedSGD(scope="global"),
    aggregation=MaskAware(),
    coordination=Synchronous(),
    buffer=BufferRule(keep=False),
)
