"""TensorBoard event files, one folder per run. Rows that a resume drops are purged as TensorBoard itself does it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from fedgmr.reporting.run_files import RunFiles
from fedgmr.trackers.tracker import Values

_OURS = ".fedgmr"


class TensorBoard:
    """Scalars in single precision, as TensorBoard has them; the step is the row's number, the time the run's."""

    takes_back = True

    def __init__(self, exported: Path, output: Path | None) -> None:
        self.folder = output or exported / "tensorboard"
        self.writers: dict[str, EventFileWriter] = {}

    def begin(self, run: RunFiles) -> None:
        """Open an event file in place of earlier ones; the recipe is a text."""
        place = self.folder / run.name
        for earlier in place.glob(f"events.out.tfevents.*{_OURS}"):
            earlier.unlink()
        self.writers[run.name] = EventFileWriter(str(place), filename_suffix=_OURS)
        self._write_start(run, 0)
        self._write_text(run, "recipe", f"```yaml\n{run.recipe_text}\n```")

    def add(self, run: RunFiles, first: int, rows: Sequence[Values]) -> None:
        """Write scalars."""
        for step, values in enumerate(rows, start=first):
            summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
            self.writers[run.name].add_event(Event(wall_time=values["seconds"], step=step, summary=summary))

    def flush(self) -> None:
        """Let TensorBoard see what was added."""
        for writer in self.writers.values():
            writer.flush()

    def take_back(self, run: RunFiles, first: int) -> None:
        """Say that the run starts again at a step: readers drop what they had from there on."""
        if first == 0:  # with the recipe
            self.writers.pop(run.name).close()
            self.begin(run)
            return
        self._write_start(run, first)

    def end(self, run: RunFiles, summary: Mapping[str, Any]) -> None:
        """Write the summary as a text and close the file."""
        if summary:
            self._write_text(run, "summary", f"```json\n{json.dumps(summary, indent=2)}\n```")
        self.writers.pop(run.name).close()

    def close(self) -> str:
        """Close what is open."""
        for writer in self.writers.values():
            writer.close()
        return f"{self.folder} (tensorboard --logdir {self.folder})"

    def _write_start(self, run: RunFiles, step: int) -> None:
        """The second start of a file and later ones purge; the first must be there too."""
        start = Event(step=step, session_log=SessionLog(status=SessionLog.START))
        self.writers[run.name].add_event(start)

    def _write_text(self, run: RunFiles, tag: str, text: str) -> None:
        metadata: SummaryMetadata = create_summary_metadata("", "")
        summary = Summary()
        summary.value.add(tag=tag, metadata=metadata, tensor=make_tensor_proto([text.encode()]))
        self.writers[run.name].add_event(Event(step=0, summary=summary))
