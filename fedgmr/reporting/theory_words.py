"""What the terms of a row say: every quantity in a sentence, which of them bounds progress, what a restoration changes.

The constants of the bound (smoothness, gradient and noise) are not known, so the size of a term alone says little. Each
is compared with what it would be if every client had the whole model. Read next: `theory.py`; docs/theory.md.
"""

from typing import Any

from fedgmr.reporting.theory import Terms

# By name, as `Terms.numbers` and the page's charts have it.
MEANINGS = {
    "least coverage": "Clients that train the least trained coordinates, which only the whole model has. At 0 nobody "
    "trains them and the theorems do not apply.",
    "average density": "Mean share of the model that a client trains.",
    "drift factor": "Σ |C_g| / c*_g · f²: multiplies the drift of local training in the bound, and the bias of unlike "
    "data. Coordinate by coordinate it would be 1 wherever every coordinate is trained, if all levels drift alike.",
    "variance factor": "Σ |C_g| / c*_g² · f²: multiplies the noise of mini-batches in the bound.",
    "noise factor": "The same coordinate by coordinate, Σ f² of an increment / clients that train it: the share of one "
    "client's noise that is left in the merged model. Where all coordinates are trained, every restoration lowers it.",
    "noise factor of the padded view": "The same for the mean with zeros, Σ f² · clients that train it / clients², "
    "which shrinks what few train; the price is its distance from the merged model.",
    "untrained share": "Share of a gradient that lies in coordinates that nobody trains.",
    "effective updates": "(Σ w)² / Σ w² by staleness weights: so many fresh updates would have a mean as noisy as a "
    "merge has.",
    "effective updates of the whole model": "The same over the clients at the highest level: what averages the "
    "coordinates that only they train.",
    "mean participation": "Updates of an average client while the slowest sends one. Synchronous rounds have 1.",
    "participation skew": "Variance of these numbers over the clients that train a coordinate, on average. Without a "
    "buffer the model leans to fast clients by it; synchronous rounds have 0.",
    "dilution of the slowest": "Weight of the slowest client among all arrivals, where an equal share is 1.",
    "stale drift factor": "The drift factor with every level's mean squared staleness: multiplies the error of updates "
    "that started from old models.",
    "distance of padded and merged": "Squared distance between padded view and merged model over the squared norm of "
    "the latter: what zeros in place of untrained weights take away.",
}
_POWERS = {"drift": 1, "variance": 2}  # of the coverage in the terms of the bound


def account(terms: Terms) -> dict[str, Any]:
    """The terms of a row as plain data for a page: numbers, sentences, levels and possible restorations."""
    numbers = terms.numbers()
    goals = {f"{name} factor": value for name, value in terms.coverage.whole.factors(terms.energy).items()}
    told = [
        {"name": name, "value": numbers[name], "whole": goals.get(name), "meaning": meaning}
        for name, meaning in MEANINGS.items()
        if name in numbers
    ]
    return {
        "terms": told,
        "levels": _levels_of(terms),
        "moves": _moves_of(terms),
        "measured": terms.measured,
        "bound": bounding(terms)[1],
        "advice": advice(terms),
    }


def _levels_of(terms: Terms) -> list[dict[str, Any]]:
    """What is known of each level."""
    sent = terms.participation
    return [
        {
            "density": density,
            "clients": terms.coverage.groups[level],
            "coverage": terms.coverage.covered[level],
            "f²": terms.energy[level],
            "skew": None if sent is None else sent.skew[level],
            "staleness": terms.staleness[level],
        }
        for level, density in enumerate(terms.ladder)
    ]


def _moves_of(terms: Terms) -> list[dict[str, Any]]:
    """For each level whose clients can move up: the change of every factor if one of them did, by one level."""
    coverage, found = terms.coverage, []
    now = coverage.factors(terms.energy)
    for level, clients in enumerate(coverage.groups[:-1]):
        if clients:
            raised = coverage.raised(level).factors(terms.energy)
            changes = {name: raised[name] - value for name, value in now.items()}
            found.append({"clients": clients, "from": terms.ladder[level], "to": terms.ladder[level + 1], **changes})
    return found


def bounding(terms: Terms) -> tuple[str, str]:
    """The factor that is furthest from what whole models would make of it (or none), and a sentence about it."""
    coverage, energy = terms.coverage, terms.energy
    if coverage.least == 0:
        share = coverage.untrained(energy)
        return "", f"Nobody has the whole model: {share:.0%} of a gradient lies in coordinates that nobody trains."
    if coverage == coverage.whole:
        return "", "Every client is at the highest level: the variance factor is as small as these clients can make it."
    now, goal = coverage.factors(energy), coverage.whole.factors(energy)
    name = max(_POWERS, key=lambda each: now[each] / goal[each])
    parts = coverage.parts(energy, power=_POWERS[name])
    level = max(range(len(parts)), key=parts.__getitem__)
    return name, (
        f"The {name} factor is {now[name] / goal[name]:.1f} times what it would be with whole models everywhere; "
        f"{parts[level] / now[name]:.0%} of it comes from {_counted(coverage.groups[level])} at density "
        f"{terms.ladder[level]:g}, some of whose coordinates are trained by {_counted(coverage.covered[level])} only."
    )


def advice(terms: Terms) -> str:
    """What restoring one client by one level would change, in a sentence."""
    moves = _moves_of(terms)
    if not moves:
        return "There is nobody left to restore."
    name = bounding(terms)[0]
    if not name:
        return "The first client with the whole model would train what nobody trains."
    best = min(moves, key=lambda move: float(move[name]))
    if best[name] >= 0:
        return f"No single restoration by one level lowers the {name} factor."
    share = -best[name] / terms.coverage.factors(terms.energy)[name]
    return (
        f"Restoring a client from density {best['from']:g} to {best['to']:g} would lower the {name} factor most, by "
        f"{share:.0%}."
    )


def _counted(clients: int) -> str:
    return "1 client" if clients == 1 else f"{clients} clients"
