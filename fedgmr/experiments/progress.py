"""A run in progress: through the loop to its result, with a row per evaluation, and checkpoints.

Evaluations are on a grid in time. A GPU may still measure while the loop goes on; a row is written when its scores are
there, and before a checkpoint counts it. Read next: `run.py`, which starts it; `views.py`, the models that are tested.
"""

import math
import time
import warnings
from pathlib import Path
from statistics import fmean
from typing import Any

from fedgmr.exchange import Diverged
from fedgmr.experiments.allocation import reused_memory
from fedgmr.experiments.assembly import Assembly
from fedgmr.experiments.checkpoint import Checkpoint, CheckpointWriter
from fedgmr.experiments.client_scores import ClientScores, client_figures
from fedgmr.experiments.period import advice
from fedgmr.experiments.result import Result, save_models
from fedgmr.experiments.rundir import provenance, write_summary
from fedgmr.experiments.seal import checkpoint_seal, recipe_digest
from fedgmr.experiments.shares import Shares
from fedgmr.experiments.time_use import time_use
from fedgmr.experiments.views import MERGED, PADDED, Views, best_view, compared, level_names, view_of, views_due
from fedgmr.experiments.watching import Watchers, Watching
from fedgmr.federation import federate
from fedgmr.reporting.history import History
from fedgmr.reporting.recorder import Recorder
from fedgmr.training.evaluation.evaluator import Measurement

_FIRST_TICKS = 3
Scores = dict[str, tuple[Measurement, Measurement | None]]  # by view: on the test set, and on validation samples


class RunInProgress:
    """One pass through the loop: evaluates on the time grid, records, checkpoints."""

    def __init__(
        self,
        assembly: Assembly[Any],
        recorder: Recorder,
        directory: Path | None,
        watcher: Watchers,
        recipe_text: str,
    ) -> None:
        self.assembly, self.recorder, self.directory, self.recipe_text = assembly, recorder, directory, recipe_text
        self.watching = Watching(watcher, assembly.recipe, assembly.task.metrics[0], recorder.rows)
        self.recipe_digest = None if directory is None else recipe_digest(directory)  # of the file, as it begins
        last = recorder.rows[-1] if recorder.rows else {"wall": 0.0, "seconds": 0.0}
        # A resumed run's wall time and evaluation grid go on where they were cut.
        self.began = time.perf_counter() - last["wall"]
        self.grid = self._grid(last["seconds"])
        self.client_scores = ClientScores(assembly)
        # The newest row, while a GPU measures its views and clients.
        self.unscored: tuple[dict[str, Any], Scores, list[Measurement], Shares] | None = None
        keep = assembly.recipe.checkpoint.keep
        self.checkpoints = None if directory is None else CheckpointWriter(directory, keep=keep)
        self.saved = time.perf_counter()  # the last checkpoint, or the start
        self.advised = False  # of the period

    def finish(self, *, resumed: bool) -> Result:
        """Run to the time budget; what was recorded stays whatever happens."""
        server, fleet, recipe = self.assembly.server, self.assembly.fleet, self.assembly.recipe
        try:
            if not resumed:
                self.watching.preparing("testing the first model")
                self._record(0.0)
                self._complete()
            self.watching.preparing("training the first tasks")
            with reused_memory():
                federate(
                    server,
                    fleet,
                    seconds=recipe.seconds,
                    after_tick=self._after_tick,
                    stop=lambda: self.watching.stopped is not None,
                    # Real nodes' tasks are lost with the server that sent them.
                    resumed=resumed and fleet.in_flight > 0,
                )
            fleet.told(server.end())
            self._complete()
            stopped, self.watching.ended = self.watching.stopped, True
            if fleet.clock == "virtual" and stopped is None and not any(server.updates):
                warnings.warn(
                    f"Nothing was learned: no update was merged in {recipe.seconds:g} seconds. Give more seconds, "
                    "faster links, or clients that are there.",
                    stacklevel=2,
                )
            end = recipe.seconds if stopped is None else stopped["seconds"]
            if self.recorder.rows[-1]["seconds"] < end:
                self._record(end)
                self._complete()
        except Diverged as error:
            fleet.told(error.verdicts)
            self._complete()
            if self.directory is not None:
                write_summary(self.directory, self._summary("diverged") | {"problem": str(error)})
            raise
        finally:
            self._close()
        result = self._result()
        self.watching.at_end(result)
        return result

    def _close(self) -> None:
        """End what writes rows and checkpoints."""
        try:
            self.recorder.close()
        finally:
            if self.checkpoints is not None:
                self.checkpoints.close()

    def _result(self) -> Result:
        """The result of a run that has ended, in its directory too."""
        server, evaluator = self.assembly.server, self.assembly.evaluator
        # Of the final merged model; None where clients validate.
        validated = None if server.validate is None else evaluator.validate(*view_of(server, MERGED)).accuracy
        summary = self._summary("finished", validated) | self.watching.outcome | self._emptiness()
        summary |= advice(server, self.assembly.fleet) | self.client_scores.personal()
        result = Result(
            path=self.directory,
            recipe_text=self.recipe_text,
            recipe=self.assembly.recipe,
            history=History.of(self.recorder.rows),
            views=Views.of(server, evaluator),
            summary=summary,
            task=self.assembly.task,
        )
        if self.directory is not None:
            models = save_models(self.directory, result)
            # Last, because a finished summary says that everything else is there.
            write_summary(self.directory, summary | {"models": models})
        return result

    def _advise(self) -> None:
        """Warn once, and not of the first tasks, of a fleet that cannot keep its period."""
        server, fleet = self.assembly.server, self.assembly.fleet
        if not self.advised and server.tick > _FIRST_TICKS and (found := advice(server, fleet)):
            self.advised = True
            warnings.warn(found["advice"], stacklevel=2)

    def _emptiness(self) -> dict[str, str]:
        """What the summary says of a deployed run whose nodes came to nothing; a simulated fleet does what is asked."""
        server, fleet = self.assembly.server, self.assembly.fleet
        if fleet.clock == "virtual" or any(server.updates):
            return {}
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(fleet.refused.items())) or "no task ended"
        text = f"No update was accepted in the whole run ({reasons}): see updates.jsonl and the logs of the nodes."
        return {"status": "empty", "problem": text}

    def _grid(self, seconds: float) -> int:
        every = self.assembly.recipe.evaluation.every_seconds
        assert every is not None, "resolved before a run"
        return int(seconds / every + 1e-9)

    def _checkpoint_due(self, tick: int) -> bool:
        settings = self.assembly.recipe.checkpoint
        if settings.every is not None:
            return tick % settings.every == 0
        return time.perf_counter() - self.saved >= settings.seconds

    def _after_tick(self) -> None:
        server, fleet = self.assembly.server, self.assembly.fleet
        self._complete(at_once=False)
        self._advise()
        if self._grid(fleet.now) > self.grid:
            self.grid = self._grid(fleet.now)
            self._record(fleet.now)
        if self.checkpoints is not None and self._checkpoint_due(server.tick):
            self._complete()
            self.recorder.sync()
            seal = checkpoint_seal(self.recipe_digest, self.recorder)
            rows = len(self.recorder.rows)
            self.checkpoints.begin(lambda: Checkpoint.of(server, fleet, recorded=rows, seal=seal))
            self.saved = time.perf_counter()
        if self.watching.watchers:
            levels = server.client_levels
            self.watching.after_tick(
                {
                    "seconds": fleet.now,
                    "tick": server.tick,
                    "accuracy": self.recorder.rows[-1]["accuracy"],
                    "density": sum(map(server.ladder.__getitem__, levels)) / len(levels),
                    "bytes_up": sum(fleet.bytes_up),
                    "bytes_down": sum(fleet.bytes_down),
                    **self._read_as,
                }
            )

    def _record(self, seconds: float) -> None:
        server, fleet = self.assembly.server, self.assembly.fleet
        self._complete()
        row = {
            "seconds": seconds,
            "tick": server.tick,
            "accuracy": None,
            "loss": None,
            "density": [server.density(client) for client in range(fleet.clients)],
            "level": list(server.client_levels),
            "staleness": list(server.staleness),
            "updates": list(server.updates),
            "bytes_down": list(fleet.bytes_down),
            "bytes_up": list(fleet.bytes_up),
            "bytes_server": fleet.bytes_server,
            "in_flight": fleet.in_flight,
            "wall": round(time.perf_counter() - self.began, 3),
        }
        rows = self.recorder.rows
        row |= server.outlook | fleet.record(rows[-1]["seconds"] if rows else 0.0, seconds)
        last = self.watching.ended or seconds >= self.assembly.recipe.seconds
        due = self.client_scores.due(len(self.recorder.rows), last=last)
        shares = Shares(server)
        self.unscored = row, self._measure(seconds, shares), self.client_scores.measure() if due else [], shares
        self._complete(at_once=self.watching.evaluations)

    def _measure(self, seconds: float, shares: Shares) -> Scores:
        """Start to test the views that are due, and to validate them where there are several to choose from."""
        server, evaluator, recipe = self.assembly.server, self.assembly.evaluator, self.assembly.recipe
        settings = recipe.evaluation
        several = bool(level_names(server.ladder)) and len(settings.views) > 1
        chosen = settings.validation == "server" and (several or settings.stop is not None)
        scores: Scores = {}
        for name in views_due(server, recipe, len(self.recorder.rows), seconds):
            view = view_of(server, name)
            if name == PADDED:
                shares.compare(view[0])
            scores[name] = evaluator.test(*view), evaluator.validate(*view) if chosen else None
        return scores

    def _complete(self, *, at_once: bool = True) -> None:
        """Record the newest row if its score was not there yet; `at_once`: wait for it."""
        if self.unscored is None:
            return
        row, scores, clients, shares = self.unscored
        tests = (*(test for pair in scores.values() for test in pair if test is not None), *clients)
        if not (at_once or (shares.ready and all(test.ready for test in tests))):
            return
        self.unscored = None
        measured = {name: self._fields(test, validation) for name, (test, validation) in scores.items()}
        if PADDED in measured:
            measured[PADDED] |= shares.distance
        merged = measured.pop(MERGED)
        told: dict[str, Any] = {"views": measured} if measured else {}
        if clients:
            told["clients"] = client_figures(clients, self.assembly.task.metrics[0])
        self.recorder.record(row | merged | told | shares.fields | self._read_as)
        self.watching.after_evaluation(self.recorder.rows[-1])

    def _fields(self, test: Measurement, validation: Measurement | None) -> dict[str, Any]:
        """What a row says about one view; null where a number is not finite, because JSON has no other word for it."""
        names = [metric.name for metric in self.assembly.task.metrics[1:]]
        fields: dict[str, Any] = {"accuracy": _finite(test.accuracy), "loss": _finite(test.loss)}
        if names:
            fields["metrics"] = dict(zip(names, map(_finite, test.values[1:-1]), strict=True))
        return fields if validation is None else fields | {"validation": _finite(validation.accuracy)}

    @property
    def _readings(self) -> list[dict[str, Any]]:
        """How the values of the metrics are read, the leading one first."""
        return [metric.data for metric in self.assembly.task.metrics]

    @property
    def _read_as(self) -> dict[str, Any]:
        """The same for a row, unless an accuracy leads, which readers take for granted."""
        return {} if self.assembly.task.metrics[0].accuracy else {"readings": self._readings}

    def _summary(self, status: str, validated: float | None = None) -> dict[str, Any]:
        recipe, task, rows = self.assembly.recipe, self.assembly.task, self.recorder.rows
        metric, scores = task.metrics[0], compared(rows)
        means = {name: _finite(fmean(values)) for name, values in scores.items()}
        last = rows[-1]
        views = {
            name: {"accuracy": view["accuracy"], "loss": view["loss"], "validation": means.get(name)}
            for name, view in ((MERGED, last), *last.get("views", {}).items())
        }
        on_test = recipe.evaluation.validation == "test"
        validation = self.assembly.evaluator.validation
        best = best_view(scores, metric, 0 if validation is None else len(validation))
        return {
            "schema_version": 1,
            "status": status,
            "name": recipe.name,
            "method": recipe.method.name,
            "method_title": recipe.method.title or recipe.method.name,
            "task": task.name,
            "task_title": task.title or task.name,
            "stand_in": task.stand_in,
            "short": recipe.short,
            "fleet": recipe.fleet.name,
            "clients": self.assembly.fleet.clients,
            "seed": recipe.seed,
            "seconds": recipe.seconds,
            "clock": self.assembly.fleet.clock,
            "ticks": self.assembly.server.tick,
            "metric": metric.name,
            "readings": self._readings,
            "final_accuracy": last["accuracy"],
            "final_loss": last["loss"],
            "final_metrics": {metric.name: last["accuracy"], **last.get("metrics", {})},
            "validation_accuracy": None if validated is None else _finite(validated),
            "decides_on_test": on_test,
            "best_view": None if on_test else best,
            "views": views,
            "refused": dict(self.assembly.fleet.refused),
            "events": self.assembly.server.recovery.events,
            "recipe_digest": self.recipe_digest,
            "rows": len(rows),
            "rows_digest": self.recorder.digest,
            "wall_seconds": round(time.perf_counter() - self.began, 3),
            **provenance(recipe.device),
            **time_use(rows, resumes=recipe.fleet.on_leaving == "resume"),
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
