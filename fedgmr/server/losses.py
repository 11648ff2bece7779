"""The losses of merged updates, and who has diverged; a device may still compute them.

Nobody waits for a device here: losses are asked for at every look at the model, and judged at the next one. So when
they are judged depends on the run alone, and not on how fast the device is or when a row or a checkpoint is written.
Where training has diverged the update has changed nothing.
"""

import logging
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedgmr.exchange import DIVERGED, Verdict
from fedgmr.transfer import Fetched

_MOST = 256  # losses that a device keeps before they are asked for
_log = logging.getLogger(__name__)
_Noted = tuple[int, int, float | Tensor]  # client, tick, loss


class Losses:
    """What is known of the clients' losses."""

    def __init__(self) -> None:
        """Nobody has trained yet."""
        self.known: dict[int, float] = {}  # by client: of its last update that had not diverged
        self.lost: set[int] = set()  # clients whose last update had
        self._verdicts: list[Verdict] = []  # that nobody has heard
        self._noted: list[_Noted] = []
        self._asked: tuple[list[_Noted], Fetched | None] = ([], None)

    def note(self, client: int, tick: int, loss: float | Tensor) -> None:
        """Note the loss of an update; one that a device computes is looked at later."""
        self._noted.append((client, tick, loss))
        on_host = not isinstance(loss, Tensor)
        if on_host or len(self._noted) >= _MOST:
            self.look(wait=on_host)

    def look(self, *, wait: bool) -> None:
        """Judge the losses that were asked for and ask for the newest; with `wait` these are judged, too."""
        self._judge()
        kept = [loss for _, _, loss in self._noted if isinstance(loss, Tensor)]
        self._asked, self._noted = (self._noted, Fetched(torch.stack(kept)) if kept else None), []
        if wait:
            self._judge()

    def verdicts(self) -> list[Verdict]:
        """The verdicts since the last call."""
        verdicts, self._verdicts = self._verdicts, []
        return verdicts

    def forgive(self) -> None:
        """Begin anew: the model that came of these losses is gone."""
        self.look(wait=True)
        self.lost.clear()

    def state(self) -> dict[str, Any]:
        """All of it as JSON-ready data; a loss that is no number is None."""
        return {
            "losses": sorted(self.known.items()),
            "lost": sorted(self.lost),
            "verdicts": [verdict.client for verdict in self._verdicts],
            "asked_losses": [(client, tick, _number(loss)) for client, tick, loss in self._fetched()],
            "noted_losses": [(client, tick, _number(float(loss))) for client, tick, loss in self._noted],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state()` has returned; older files have less."""
        self.known, self.lost = dict(state.get("losses", ())), set(state.get("lost", ()))
        self._verdicts = [_diverged(client) for client in state.get("verdicts", ())]
        asked, self._noted = (
            [(client, tick, math.nan if loss is None else loss) for client, tick, loss in state.get(name, ())]
            for name in ("asked_losses", "noted_losses")
        )
        self._asked = asked, None

    def _judge(self) -> None:
        """Judge the losses that were asked for."""
        asked, self._asked = self._fetched(), ([], None)
        for client, tick, loss in asked:
            if math.isfinite(loss):
                self.known[client] = loss
                self.lost.discard(client)
                continue
            _log.warning("Tick %d: the training of client %d diverged; it changes nothing.", tick, client)
            self._verdicts.append(_diverged(client))
            self.lost.add(client)

    def _fetched(self) -> list[tuple[int, int, float]]:
        """The losses that were asked for; those of a resumed run are numbers."""
        asked, fetched = self._asked
        known = iter(() if fetched is None else fetched.values)
        return [(client, tick, next(known) if isinstance(loss, Tensor) else loss) for client, tick, loss in asked]


def _diverged(client: int) -> Verdict:
    return Verdict(client=client, reason=DIVERGED, merged=True)


def _number(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None
