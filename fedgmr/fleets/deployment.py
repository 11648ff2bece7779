"""The recipe's section for a fleet of real nodes. A simulation does not look at it."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class DeploymentSettings:
    """When a deployed run starts, and when it waits no longer."""

    min_clients: int | None = field(
        default=None,
        metadata={"at_least": 1, "help": "number of nodes that must be there before the run starts; `null`: all"},
    )
    patience: float = field(
        default=4.0, metadata={"at_least": 1, "help": "a task is given up after this multiple of its expected time"}
    )
    shortest: float = field(default=60.0, metadata={"above": 0, "help": "seconds before which no task is given up"})
    first_task: float = field(
        default=600.0, metadata={"above": 0, "help": "seconds a task may take while the client's link is unknown"}
    )
    deadline: float | None = field(
        default=None,
        metadata={
            "above": 0,
            "help": (
                "seconds after its dispatch for which a merge that waits for clients waits for a task; `null`: as "
                "long as the task has by the three keys above. Then the merge goes on without it"
            ),
        },
    )
    identity: Literal["node", "claimed"] = field(
        default="node",
        metadata={
            "help": (
                "how a node is known again: by its node id, which belongs to its key if SuperNodes authenticate "
                "themselves; or `claimed`: if its id is new, by the client id or partition that it claims "
                "([deployment.md](deployment.md#identity-of-clients))"
            )
        },
    )
