"""WHAT the server knows and does: aggregation, staleness, restoration, coordination, and the server that composes them."""

from fedgmr.server.server import Server, ServerRules, Workload

__all__ = ["Server", "ServerRules", "Workload"]
