"""ONE FILE PER METHOD: short compositions of ranking, aggregation, restoration, coordination and local rule."""

from fedgmr.methods.method import Method
from fedgmr.methods.named import BUILT_IN, PAPER, PLUGGED, named_method

__all__ = ["BUILT_IN", "PAPER", "PLUGGED", "Method", "named_method"]
