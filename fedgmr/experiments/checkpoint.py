"""Checkpoints: the whole state of a run in one safetensors file, and back, bit for bit.

A checkpoint holds the server's state (its model, buffer, level maps and tasks in flight), the fleet's queue, what its
clients remember from task to task, how many rows have been recorded, and what binds it to its run (`seal.py`). It holds
no generators: every draw is named by (seed, purpose, client, tick). A run waits until its state is copied, and goes on
while the file is written. A resume takes the newest file and passes over a damaged one.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedgmr.federation import Fleet
from fedgmr.files import CHECKPOINTS, write_atomic
from fedgmr.server.server import Server
from fedgmr.server.state import restore_state, save_state

SCHEMA_VERSION = 1
_MEMORY = "memory."  # and the number of a client
_UNSEALED: Mapping[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The state of a run at a tick, on the host; nothing of it changes while the run goes on."""

    tick: int
    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]

    @classmethod
    def of(cls, server: Server, fleet: Fleet, *, recorded: int, seal: Mapping[str, Any] = _UNSEALED) -> "Checkpoint":
        """Copy the state of both; `recorded` rows belong to it, and `seal` says what run it is of."""
        tensors, state = save_state(server)
        tensors = tensors | {f"{_MEMORY}{client}": memory for client, memory in fleet.memories.items()}
        whole = {"schema_version": SCHEMA_VERSION, "server": state, "fleet": fleet.state(), "recorded": recorded}
        copied = json.loads(json.dumps({**whole, **seal}))  # as the file has it
        return cls(tick=server.tick, tensors=copied_to_host(tensors), state=copied)

    def write(self, run: Path, *, keep: int) -> None:
        """Write the file and drop all but the `keep` newest."""
        folder = run / CHECKPOINTS
        folder.mkdir(exist_ok=True)
        newest = folder / f"tick-{self.tick:09d}.safetensors"
        write_checkpoint(newest, self.tensors, self.state)
        files = checkpoints_of(run)
        later = files.index(newest)  # those of later ticks are damaged: the run went on from one before them
        drafts = folder.glob(".t*")  # of processes killed while they wrote: ours (.tick-), safetensors' (.tmp)
        for old in (*files[:later], *files[later + keep :], *drafts):
            old.unlink()


class CheckpointWriter:
    """Writes the checkpoints of a run, one at a time, in a thread of its own."""

    def __init__(self, run: Path, *, keep: int) -> None:
        self.run, self.keep = run, keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def begin(self, copy: Callable[[], Checkpoint]) -> None:
        """Copy when the last one is written, so that there is one copy at a time; raises what that one has met with."""
        self.wait()
        self._writing = self._thread.submit(copy().write, self.run, keep=self.keep)

    def wait(self) -> None:
        """Until the last one is written; raises what it has met with."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Wait, and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write tensors of the host and the state as `read_checkpoint` gives them, with a digest of both."""
    # One entry, because the library writes several in any order, and equal runs leave equal files.
    metadata = {"state": json.dumps({**state, "digest": _digest(tensors, state)})}
    write_atomic(path, lambda draft: save_file(dict(tensors), draft, metadata))


def load_checkpoint(
    run: Path, server: Server, fleet: Fleet, check: Callable[[Path, Mapping[str, Any]], None] = lambda *_: None
) -> int | None:
    """Take up the newest valid checkpoint; returns the number of records at its time, None if there is none.

    `check` is called with the file and its state, and refuses one that does not belong to the run.

    Raises:
        ValueError: there are checkpoints, and none of them is valid; or the newest valid one belongs to another run.
    """
    for path, tensors, state in valid_checkpoints(run):
        check(path, state)
        try:
            return _restore(server, fleet, tensors, state)
        except (LookupError, TypeError, ValueError, RuntimeError) as error:  # files of earlier releases have no seal
            raise ValueError(f"{path} does not fit the recipe of its run ({error}): restore one of them.") from error
    return None


def valid_checkpoints(run: Path) -> Iterator[tuple[Path, dict[str, Tensor], dict[str, Any]]]:
    """File, tensors and state of every checkpoint that is not damaged, the newest first.

    Raises:
        ValueError: there are checkpoints, and all of them are damaged.
    """
    files = checkpoints_of(run)
    valid = 0
    for path in files:
        try:
            tensors, state = read_checkpoint(path)
        except (OSError, ValueError) as error:
            warnings.warn(f"{error} Falling back to the checkpoint before it.", stacklevel=3)
            continue
        valid += 1
        yield path, tensors, state
    if files and not valid:
        raise ValueError(f"None of the {len(files)} checkpoints in {run / CHECKPOINTS} is valid: start the run again.")


def _restore(server: Server, fleet: Fleet, tensors: dict[str, Tensor], state: Mapping[str, Any]) -> int:
    memories = {name: tensors.pop(name) for name in list(tensors) if name.startswith(_MEMORY)}
    restore_state(server, tensors, state["server"])
    for name, memory in memories.items():
        fleet.memories[int(name.removeprefix(_MEMORY))] = memory.to(server.model.device)
    fleet.restore(state["fleet"], server.dispatched, tick=server.tick)
    return int(state["recorded"])


def save_model(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the final model, one tensor per parameter and buffer."""
    copied = copied_to_host(tensors)
    write_atomic(path, lambda draft: save_file(copied, draft, {"format": "pt"}))


def checkpoints_of(run: Path) -> list[Path]:
    """The checkpoints of a run, the newest first."""
    return sorted((run / CHECKPOINTS).glob("tick-*.safetensors"), reverse=True)


def copied_to_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to host memory: a safetensors file cannot have tensors that share their memory, and ours may."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and state of a checkpoint; ValueError naming the file where it is damaged."""
    try:
        with safe_open(path, "pt") as file:
            state = json.loads(file.metadata()["state"])
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a mapping
        if state.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {state['schema_version']}, not {SCHEMA_VERSION}")
        if not isinstance(state["recorded"], int) or state["recorded"] < 0:
            raise ValueError("the number of records is none")
        digest = state.pop("digest", None)
        if digest not in (None, _digest(tensors, state)):  # files of earlier releases have none
            raise ValueError("the digest does not match")
        return tensors, state
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"The file {path} is damaged ({error}): restore it or remove it.") from error


def _digest(tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> str:
    """A checksum of all that a checkpoint says; the order of names in its file does not matter."""
    digest = hashlib.blake2b(json.dumps(state).encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        if tensor.numel():  # an empty one from the wire has strides that cannot be viewed as bytes
            digest.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
