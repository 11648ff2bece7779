"""Your own callback: a Watcher that logs what slow clients gain and ends the run. No download, a few seconds.

Run it with `python examples/own_callback.py`. Early stopping needs no callback: it is the recipe's `evaluation.stop`.
"""

from collections.abc import Mapping
from typing import Any

from own_task import two_moons

import fedgmr


class SlowClients(fedgmr.Watcher):
    """Prints when the slowest client has moved up, and ends the run when all of them have the whole model."""

    def __init__(self, most_bytes: float) -> None:
        self.most_bytes = most_bytes
        self.smallest = 0.0

    def after_tick(self, state: Mapping[str, float]) -> fedgmr.Stop | None:
        """End a run that has sent too much."""
        sent = state["bytes_up"] + state["bytes_down"]
        return fedgmr.Stop(f"{sent / 1e6:.1f} MB were sent") if sent > self.most_bytes else None

    def after_evaluation(self, row: Mapping[str, Any]) -> fedgmr.Stop | None:
        """Print a line where the smallest density has grown."""
        smallest = min(row["density"])
        if smallest > self.smallest:
            self.smallest = smallest
            print(f"{row['seconds']:8.0f} s  smallest density {smallest:.2f}  accuracy {row['accuracy']:.3f}")
        return fedgmr.Stop("every client has the whole model") if smallest == 1.0 else None


def main() -> None:
    """Simulate ten clients until the slowest of them has the whole model, and say who ended the run."""
    result = fedgmr.simulate(
        two_moons(),
        method=fedgmr.named_method("fedgmr", {"interval": 5, "restoration": {"patience": 1}}),
        fleet=fedgmr.FleetSettings(name="high", scale="model"),
        seconds=5000,
        partition={"kind": "dirichlet", "alpha": 0.5},
        watcher=SlowClients(most_bytes=20e6),
        progress=False,
    )
    print(f"Stopped by {result.stopped['by']} at {result.stopped['seconds']:.0f} s: {result.stopped['reason']}.")
    slowest = result.model_for(9)
    print(f"Client 9 is handed {result.view_for(9)}: {sum(p.numel() for p in slowest.parameters())} parameters.")


if __name__ == "__main__":
    main()
