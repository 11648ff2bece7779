"""WHAT a client does: local training, its executors, and evaluation; shared by both fleets."""
