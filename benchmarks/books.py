"""The books of a deployed run, from its journal and metrics: has every task an end, is every update in the model?"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from fedgmr.files import METRICS, UPDATES, last_row


def count_events(run: Path) -> Counter[str]:
    """How often each event happened, by its reason too; the journal begins with the counts of what was put aside."""
    counts: Counter[str] = Counter()
    for line in (run / UPDATES).read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "earlier":
            counts.update(event["counts"])
            continue
        counts[f"{event['event']} {event['reason']}" if "reason" in event else event["event"]] += 1
        counts["interrupted"] += len(event["lost"]) if event["event"] == "resumed" else 0
    return counts


def balance(run: Path) -> dict[str, Any]:
    """The accounts of a run that has ended; in order, the last two are 0."""
    counts, last = count_events(run), last_row(run / METRICS)
    assert last is not None, "the run has ended"
    refused, given_up = (
        {name.removeprefix(f"{kind} "): n for name, n in sorted(counts.items()) if name.startswith(f"{kind} ")}
        for kind in ("refused", "lost")
    )
    ended = counts["accepted"] + counts["unmerged"] + counts["interrupted"] + sum(given_up.values())
    ended += sum(refused.values()) - refused.get("stale", 0)  # whose tasks had been given up before
    return {
        "tasks": counts["dispatched"],
        "updates accepted": counts["accepted"],
        "arrived after the last merge": counts["unmerged"],
        "refused": sum(refused.values()),
        **{f"- {reason}": count for reason, count in refused.items()},
        "given up": sum(given_up.values()),
        **{f"- {reason}": count for reason, count in given_up.items()},
        "interrupted with the server's app": counts["interrupted"],
        "in flight at the end": last["in_flight"],
        "tasks without an end": counts["dispatched"] - ended - last["in_flight"],
        "accepted and lost": counts["accepted"] - sum(last["updates"]),
    }
