"""Fleets of real machines: starts, watches and stops the programs of Flower. The apps are in `fedgmr/flower`."""
