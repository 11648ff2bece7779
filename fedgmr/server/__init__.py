"""WHAT the server knows and does: aggregation, staleness, restoration, coordination, composed in one server."""

from fedgmr.server.server import Server, ServerRules, Workload

__all__ = ["Server", "ServerRules", "Workload"]
