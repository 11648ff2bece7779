"""Fleets: clients in virtual time, their links, and everything that a fleet of real nodes shares with them."""
