"""The server: aggregation, staleness, restoration and coordination, composed in one."""

from fedgmr.server.rules import ServerRules
from fedgmr.server.server import Server

__all__ = ["Server", "ServerRules"]
