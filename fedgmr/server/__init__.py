"""WHAT the server knows and does: aggregation, staleness, restoration, coordination, composed in one server."""

from fedgmr.server.rules import ServerRules, Workload
from fedgmr.server.server import Server

__all__ = ["Server", "ServerRules", "Workload"]
