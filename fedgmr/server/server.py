"""The server: tasks(), merge() and learn(). It knows no fleet, and no clock but the seconds it is told.

One merge is section 3.3: buffer the arrivals, aggregate, and every `interval` ticks check restoration and refresh
the level map. Read next: `rules.py`, what a method decides; `state.py`, what a checkpoint stores;
`fedgmr/federation.py`, the loop around it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from fedgmr.exchange import ClientProfile, ClientTask, Diverged, News, Update, Verdict
from fedgmr.server.admission import Admission, ReportRange
from fedgmr.server.aggregation import Merge, ZeroPadded
from fedgmr.server.buffer import Contribution
from fedgmr.server.holds import Holds
from fedgmr.server.label_aware import Labels
from fedgmr.server.losses import Losses
from fedgmr.server.participation import Known, Participation, Uniform
from fedgmr.server.recovery import Good, Recovery, strike, watch
from fedgmr.server.restoration import Check, Memory
from fedgmr.server.retreat import step_back
from fedgmr.server.rules import ServerRules
from fedgmr.server.validation import CheckMetrics, measure_update
from fedgmr.server.weights import Weights
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import LevelMap
from fedgmr.submodels.rankings import RankingInputs

if TYPE_CHECKING:
    from fedgmr.submodels.channels.plan import ChannelPlan

_SHORTEST = 1e-9  # seconds of a task; they are divided by
# (flat model, buffers) -> metric, higher is better: a device may still measure it, and whoever asks for it waits
Validate = Callable[[Tensor, Tensor], Callable[[], float]]


class Server:
    """State and decisions of one federated run."""

    def __init__(
        self,
        *,
        rules: ServerRules,
        layout: Layout,
        model: Tensor,
        buffers: Tensor,
        clients: Sequence[ClientProfile],
        steps: int,
        learning_rate: Callable[[float], float],
        seconds: float,
        seed: int = 0,
        participation: Participation | None = None,
        validate: Validate | None = None,
        plan: "ChannelPlan | None" = None,
        labels: Labels | None = None,
        reports: ReportRange | None = None,
    ) -> None:
        """A server before its first task.

        A task has so many `steps`; `learning_rate` gives the rate by schedule tick; `validate` is None where clients
        report the metric themselves, and `reports` says which reports are possible.
        """
        self.rules, self.layout, self.steps, self.learning_rate = rules, layout, steps, learning_rate
        self.seconds, self.seed, self.validate = seconds, seed, validate
        self.participation = participation or Participation()
        self.plan, self.labels = plan, labels
        self.profiles = list(clients)
        self.weights = Weights(rules, self.profiles)
        possible = reports or ReportRange()
        self.admission = Admission(rules.admission, possible, clients=len(self.profiles), size=len(model))
        self.holds = Holds(rules.admission.strikes, rules.admission.pause)
        good = Good(tick=0, model=model, buffers=buffers)
        self.recovery = Recovery(rules.recovery, rules.interval, (possible.lowest, possible.highest), good)
        self.ladder = rules.ranking.ladder(rules.ladder)

        self.tick = 0
        self.model, self.buffers = model, buffers
        self.previous: Tensor | None = None
        self.client_levels = [rules.level_of(p.density) for p in clients]
        self.presets = list(self.client_levels)  # levels without restoration: by link, or as measured last
        self.memory = Memory()  # of the restoration rule
        self.own_metrics: dict[int, float] = {}  # by client: of the last of its updates that was measured
        self.buffer: dict[int, Contribution] = {}
        self.dispatched: dict[int, ClientTask] = {}
        self.batches = [0] * len(clients)
        self.updates = [0] * len(clients)
        self.staleness: list[int | None] = [None] * len(clients)
        self.reports: dict[int, tuple[float, int]] = {}
        # For the policy of participation, by client: see `Known`.
        self.seconds_of = {client: p.seconds for client, p in enumerate(clients) if p.seconds is not None}
        self.losses = Losses()
        self.asked: dict[int, int] = {}
        self.restored: dict[int, int] = {}  # by client: the level that restoration has moved it to
        self.map_version = 0
        self.levels: LevelMap = rules.ranking.rank(self._ranking_inputs(None))

    def tasks(self, free: Sequence[int], now: float) -> list[ClientTask]:
        """A task for each free client that takes part now; the server remembers what it sent."""
        chosen = self.participation.draw(
            self.holds.allowed(free, self.tick, idle=not self.dispatched),
            self._known(),
            in_flight=len(self.dispatched),
            always=self.rules.coordination.always,
        )
        for client in chosen:
            self.asked.pop(client, None)
            self.asked[client] = self.tick  # at the end: the order is that of asking
        rate = self.learning_rate(self.rules.coordination.schedule_tick(self.tick, now))
        tasks = []
        for client in sorted(chosen):
            task = ClientTask(
                client=client,
                version=self.tick,
                level=self.client_levels[client],
                levels=self.levels,
                map_version=self.map_version,
                model=self.model,
                buffers=self.buffers,
                learning_rate=rate,
                first_batch=self.batches[client],
            )
            self.batches[client] += self.steps
            self.dispatched[client] = task
            tasks.append(task)
        return tasks

    def merge(self, updates: Sequence[Update], now: float) -> list[Verdict]:
        """One tick: buffer the arrivals, aggregate, and when due restore clients and refresh the level map.

        Returns the verdicts on the updates that were not merged as they came, on those of a device when their losses
        have been looked at; the task of a refused one is given up.
        """
        starts, fresh = {}, []
        everybody_whole = self.levels.whole(min(self.client_levels))
        arrived, undone = self.recovery.without_undone(sorted(updates, key=lambda update: update.client))
        admitted, verdicts = self.admission.judge(arrived, self.dispatched, self.profiles)
        verdicts += undone
        for update in admitted:
            task = self.dispatched.pop(update.client)
            self._accept(update, task)
            self.holds.clear(update.client)
            self.recovery.note(update, self.tick + 1)
            fresh.append(Contribution.of(update, task, natural=everybody_whole))
            starts[update.client] = task.model
            self.weights.on_arrival[update.client] = self.tick - task.version
            measure_update(self, fresh[-1])
        for verdict in verdicts:
            if not verdict.merged:
                self._forget_task(verdict.client)
        fresh, held = self.rules.buffer.take(fresh, self.buffer, self.tick)
        self.previous = self.model
        rule, inputs = self.rules.aggregation, self.inputs(self.tick, held, fresh, starts)
        self.model, self.buffers = rule.merge(inputs)
        for c in inputs.taken(getattr(rule, "over", "buffer")):
            self.staleness[c.client] = self.tick - c.version
        self.tick += 1
        try:
            watch(self, verdicts)
        except Diverged as error:
            error.verdicts = [*verdicts, *self.settle()]
            raise
        self._restore_and_refresh(now)
        return [*verdicts, *self.losses.verdicts()]

    def sub_model(self, level: int) -> Tensor:
        """The flat model with zero outside the sub-model of a level."""
        return self.model if self.levels.whole(level) else self.model * self.levels.mask(level)

    def padded(self) -> tuple[Tensor, Tensor] | None:
        """(flat model, buffers): the mean of the buffered updates, zero where a client holds nothing.

        Without a buffer it is over the updates of the last merge that had any. The weights are those of the last merge.
        None while there is no update.
        """
        held = [self.buffer[client] for client in sorted(self.buffer)]
        if not held:
            return None
        return ZeroPadded().merge(self.inputs(self.tick - 1, held, [], {}))

    def inputs(
        self, tick: int, held: Sequence[Contribution], fresh: Sequence[Contribution], starts: Mapping[int, Tensor]
    ) -> Merge:
        """The inputs of a merge, with the weights of the one after `tick` others."""
        return Merge(
            model=self.model,
            buffers=self.buffers,
            fresh=fresh,
            held=held,
            starts=starts,
            weights={c.client: self.weights.of(c, tick) for c in (*fresh, *held)},
            clients=len(self.profiles),
            fleet_weight=self.weights.fleet,
            labels=self.labels,
        )

    def settle(self) -> list[Verdict]:
        """Look at all losses that a device has kept; the verdicts on clients that have diverged."""
        self.losses.look(wait=True)
        return self.losses.verdicts()

    def end(self) -> list[Verdict]:
        """Settle for the last time, judge what a device still measures, and go back if the model has collapsed."""
        verdicts = self.settle()
        try:
            watch(self, (), last=True)
        except Diverged as error:
            error.verdicts = verdicts
            raise
        return verdicts

    @property
    def diverged(self) -> bool:
        """Whether the last updates of most clients, and of at least three, have diverged."""
        lost = len(self.losses.lost)
        return lost > 0 and self.admission.most(lost, sum(map(bool, self.updates)))

    def learn(self, news: Iterable[News]) -> None:
        """Take in what the fleet tells about its clients."""
        for item in news:
            if item.lost:
                self._forget_task(item.client)
            if item.refused:
                strike(self, item.client)
            if item.samples is not None:
                self._note_samples(item.client, item.samples, item.classes)
            if item.seconds is not None:
                self.seconds_of[item.client] = max(item.seconds, _SHORTEST)
                step_back(self, item.client, item.seconds)
            if item.level is not None:
                self._assign(item.client, item.level)

    def density(self, client: int) -> float:
        """The density of the client's current level."""
        return self.ladder[self.client_levels[client]]

    def _known(self) -> Known:
        """The knowledge that participation decides by."""
        if not isinstance(self.participation.policy, Uniform):  # which looks at no loss, and need not wait for a device
            self.losses.look(wait=True)
        return Known(
            clients=len(self.profiles),
            seed=self.seed,
            tick=self.tick,
            samples=self.weights.counted,
            seconds=self.seconds_of,
            losses=self.losses.known,
            asked=self.asked,
        )

    def _forget_task(self, client: int) -> None:
        """Give up a task; the client's next one has the same mini-batches again."""
        task = self.dispatched.pop(client, None)
        self.recovery.undone.discard(client)
        if task is not None:
            self.batches[client] = task.first_batch

    def _note_samples(self, client: int, samples: int, classes: Sequence[int]) -> None:
        """Note what a client has joined with; before that it weighs as much as the average."""
        self.profiles[client] = replace(self.profiles[client], samples=samples, declared=True)
        self.weights.weigh(self.profiles)
        if self.labels is not None:
            self.labels.owned[client] = False
            self.labels.owned[client, list(classes)] = True

    def _assign(self, client: int, level: int) -> None:
        """Give a client a level; what restoration has added, only a retreat takes back."""
        self.presets[client] = level
        level = max(level, self.restored.get(client, 0))
        if level != self.client_levels[client]:
            self.client_levels[client] = level
            self.memory.clients.pop(client, None)  # it watched another sub-model

    def _accept(self, update: Update, task: ClientTask) -> None:
        assert update.version == task.version, "a fleet hands over only updates of the task in flight"
        self.losses.note(update.client, self.tick + 1, update.loss)
        self.updates[update.client] += 1
        if update.report is not None:
            total, samples = self.reports.get(task.level, (0.0, 0))
            # A node that declares a thousand times the others' samples decides no more than ten times as much.
            more = int(min(update.report.samples, self.admission.reports.most(self.weights.counted[update.client])))
            self.reports[task.level] = (total + update.report.metric * more, samples + more)

    def _restore_and_refresh(self, now: float) -> None:
        due = self.rules.ranking.due(self.tick, self.rules.interval)
        held = frozenset(self.client_levels)
        rule = self.rules.restoration
        if rule is not None and self.tick % self.rules.interval == 0:
            check = Check(
                ladder=self.ladder,
                levels=dict(enumerate(self.client_levels)),
                memory=self.memory,
                metrics=CheckMetrics(self),
                now=now,
                seconds=self.seconds,
                sizes=self.levels.sizes if rule.retreat else (),
                period=self.rules.coordination.period,
            )
            for client, level in rule.restore(check).items():
                self.client_levels[client] = self.restored[client] = level
        if due:
            self.levels = self.rules.ranking.rank(self._ranking_inputs(self.levels, held))
            self.map_version += 1

    @property
    def outlook(self) -> dict[str, list[int | None]]:
        """For a row: after how many checks without improvement each client would move up; nothing where none counts."""
        rule, top = self.rules.restoration, len(self.ladder) - 1
        if rule is None:
            return {}
        left = [
            rule.checks_left(client, self.memory) if level < top else None
            for client, level in enumerate(self.client_levels)
        ]
        return {"checks_left": left} if rule.checks_left(0, self.memory) is not None else {}

    def _ranking_inputs(self, current: LevelMap | None, held: frozenset[int] = frozenset()) -> RankingInputs:
        return RankingInputs(
            layout=self.layout,
            ladder=self.ladder,
            model=self.model,
            previous=self.previous,
            tick=self.tick,
            seed=self.seed,
            current=current,
            held=held,
            plan=self.plan,
        )
