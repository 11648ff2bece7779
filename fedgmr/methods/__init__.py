"""ONE FILE PER METHOD: short compositions of ranking, aggregation, restoration, coordination and local rule."""

from fedgmr.methods.method import BUILT_IN, Method, named_method

__all__ = ["BUILT_IN", "Method", "named_method"]
