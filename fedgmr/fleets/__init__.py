"""WHERE the clients are: a simulated fleet in virtual time, or real nodes."""
