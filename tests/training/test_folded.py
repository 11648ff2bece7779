"""Clients folded into the batch against the plain loop; without a GPU in Triton's interpreter: `make test-kernels`."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from e2e import tiny
from equivalence.test_graphed import far, training_of
from torch import Tensor, nn
from torch.nn import functional

from fedgmr import Metric, Task, metrics
from fedgmr.exchange import Update
from fedgmr.experiments.assembly import Assembly
from fedgmr.submodels.layout import Ranks
from fedgmr.tasks.losses import padded_cross_entropy, token_cross_entropy
from fedgmr.training.rules import WidthSGD
from fedgmr.training.stacked.executor import MOST, StackedExecutor
from training.test_stacked import DEVICE, HEAVY, RUNS, distance, objects_of

if RUNS.args[0] is False:
    from fedgmr.training.folded import head, pooling
    from fedgmr.training.folded.net import FoldedNet


# With a large eps: biases before a norm have no gradient but rounding, which Adam would make steps of.
ADAM = {"optimizer": {"kind": "adam", "eps": 1e-3}, "learning_rate": 0.01}

# FIARSE with thresholds that leave something of every layer.
KEPT_LAYERS = {
    "method": "fiarse",
    "rules": {"ranking": {"ranks": "prunable", "floor": 0.02}, "local": {"ranks": "prunable"}},
}


class Residual(nn.Module):
    """A small ResNet with every kind of layer that images go through."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(1, 6, 3, padding=1, bias=False), norm(6)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.first, self.first_norm = nn.Conv2d(6, 10, 3, stride=2, padding=1), norm(10)
        self.second, self.second_norm = nn.Conv2d(10, 10, 3, padding=1), norm(10)
        self.shortcut = nn.Sequential(nn.Conv2d(6, 10, 1, stride=2, bias=False), norm(10))
        self.mean, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(10, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.stem_norm(self.stem(images))))
        y = self.second_norm(self.second(functional.relu(self.first_norm(self.first(x)))))
        scores: Tensor = self.head(torch.flatten(self.mean(torch.relu(y + self.shortcut(x))), 1))
        return scores


class Wide(nn.Module):
    """Layers of several blocks of channels, of which products leave some out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 48, 3, padding=1), nn.BatchNorm2d(48, eps=0.05)
        self.second, self.head = nn.Conv2d(48, 72, 3, stride=2), nn.Linear(72 * 4, 4)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.relu(self.second(torch.relu(self.norm(self.first(images))))).flatten(1))
        return scores


class Sequence(nn.Module):
    """A small Transformer with PyTorch's own layers."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(30, 12), nn.Embedding(6, 12)
        self.layer = nn.TransformerEncoderLayer(12, 2, 20, dropout, "gelu", batch_first=True)
        self.head = nn.Linear(12, 30, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length, device = tokens.shape[1], tokens.device
        future = torch.ones((length, length), dtype=torch.bool, device=device).triu(1)
        x = self.tokens(tokens) + self.places(torch.arange(length, device=device))
        scores: Tensor = self.head(self.layer(x, src_mask=future))
        return scores


class Mixing(nn.Module):
    """Computes something from all samples of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(36, 8), nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(images.flatten(1))
        scores: Tensor = self.head(x - x.mean(0))
        return scores


class Signals(nn.Module):
    """Batch norm of [samples, channels, places], of which there are more and fewer than channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 9), nn.BatchNorm1d(6)
        self.second, self.other = nn.Linear(9, 3), nn.BatchNorm1d(6)
        self.head = nn.Linear(18, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(images.flatten(1, 2))))
        scores: Tensor = self.head(self.other(self.second(x)).flatten(1))
        return scores


def residual(model: Callable[[], nn.Module] = Residual) -> Task:
    return replace(tiny.normed(), name="residual", model=model, loss=functional.cross_entropy)


def of_targets(change: Callable[[Tensor], Tensor]) -> Task:
    """A linear net with other targets."""
    base = residual(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 4)))
    train, test = base.train[:], base.test[:]
    surprise = Metric(measure=loss_alone, name="surprise", unit="nats", higher_is_better=False)
    return replace(base, train=(train[0], change(train[1])), test=(test[0], change(test[1])), metric=surprise)


def loss_alone(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    return functional.cross_entropy(outputs, targets, reduction="sum"), len(targets)


def own_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), label_smoothing=0.1)


def sequences(loss: Callable[[Tensor, Tensor], Tensor] = token_cross_entropy, dropout: float = 0.0) -> Task:
    draw = torch.Generator().manual_seed(0)
    numbers = torch.randint(1, 30, (240, 7), generator=draw)
    numbers[::3, 4:] = 0  # shorter ones
    inputs, targets = numbers[:, :-1].contiguous(), numbers[:, 1:].contiguous()
    train, test = (inputs[:200], targets[:200]), (inputs[200:], targets[200:])
    return Task(
        name="sequences", title="Sequences", model=lambda: Sequence(dropout), train=train, test=test, loss=loss,
        metric=metrics.accuracy(ignore=0),
    )  # fmt: skip


def folded(run: Assembly) -> StackedExecutor:
    """The run's stacked executor, also on a CPU: the interpreter runs there."""
    training = training_of(run)
    net = net_of(run)
    assert net is not None
    return StackedExecutor(training.work, net, keeps=training.settings.optimizer.memory == "kept")


def net_of(run: Assembly) -> "FoldedNet | None":
    training = training_of(run)
    model, most = run.task.initial_model(training.work.seed), training.work.execution.slots or MOST
    optimizer, small = training.settings.optimizer, training.small()
    return FoldedNet.of(training.work, model, run.server.layout, optimizer, most=most, small=small)


def trained(run: Assembly, *, folds: bool) -> list[Update]:
    executor = folded(run) if folds else run.fleet.executor
    return executor.train(run.server.tasks(range(3), 0.0))


@RUNS
@pytest.mark.parametrize(
    ("task", "more"),
    [
        (residual(), {}),
        (residual(lambda: Residual(lambda channels: nn.GroupNorm(2, channels))), {}),
        (residual(), ADAM),
        (sequences(), ADAM),
        (sequences(padded_cross_entropy), {}),
        (sequences(own_loss), {}),
        (sequences(), KEPT_LAYERS | {"learning_rate": 0.5}),
        (residual(Signals), {}),
        (of_targets(lambda labels: functional.one_hot(labels, 4) * 0.8 + 0.05), {}),
        (of_targets(lambda labels: labels.where(labels != 1, -100)), {}),
    ],
    ids=[
        "batch norm",
        "group norm",
        "adam",
        "tokens",
        "padding counts",
        "own loss",
        "thresholds",
        "places",
        "shares",
        "left out",
    ],
)
def test_folded_clients_agree_with_the_plain_loop(task: Task, more: dict[str, Any]) -> None:
    found, wanted = (trained(objects_of(task, **more), folds=folds) for folds in (True, False))
    assert distance(found, wanted) <= 2e-5
    for one, other in zip(found, wanted, strict=True):
        assert len(one.buffers) == len(other.buffers)
        assert not len(one.buffers) or far(one.buffers, other.buffers) <= 1e-5
    for update, given in zip(found, objects_of(task, **more).server.tasks(range(3), 0.0), strict=True):
        start = given.model if update.natural else given.levels.pack(given.model, given.level)
        assert far(update.values, start) > 1e-3, "it has learned something"


@RUNS
def test_kept_momentum_of_folded_clients() -> None:
    run = objects_of(residual(), optimizer=HEAVY)
    tasks, plain, executor = run.server.tasks(range(3), 0.0), run.fleet.executor, folded(run)
    brought: list[Tensor | None] = [None, None, None]
    for _ in range(2):
        jobs = [replace(task, memory=memory) for task, memory in zip(tasks, brought, strict=True)]
        found, wanted = executor.train(jobs), plain.train(jobs)
        assert distance(found, wanted) <= 2e-5
        brought = [update.memory for update in found]
    assert all(memory is not None and float(memory.abs().max()) > 1e-3 for memory in brought)


@RUNS
@pytest.mark.parametrize(
    ("ranks", "derivative", "norm", "training"),
    [("everything", True, "batch", {}), ("everything", False, "tracked", {}), ("prunable", True, "tracked", {}),
     ("prunable", False, "batch", {}), ("everything", True, "batch", ADAM), ("prunable", False, "tracked", ADAM)],
)  # fmt: skip
def test_thresholds_of_folded_clients(ranks: Ranks, derivative: bool, norm: str, training: dict[str, Any]) -> None:
    def model() -> Residual:
        net = Residual()
        for conv in (net.first, net.second):
            # Before a norm a bias has no gradient: at the threshold rounding would decide, and the statistics show it.
            conv.register_parameter("bias", None)
        return net

    local = {"ranks": ranks, "derivative": derivative, "norm": norm}
    rules = {"ranking": {"ranks": ranks, "floor": 0.02}, "local": local}
    run = objects_of(residual(model), "fiarse", rules=rules, steps=4, **training)
    tasks, executor = run.server.tasks(range(3), 0.0), folded(run)
    found, wanted = executor.train(tasks), run.fleet.executor.train(tasks)
    assert distance(found, wanted) <= 2e-5
    for one, other, task in zip(found, wanted, tasks, strict=True):
        assert far(one.buffers, other.buffers) <= 1e-5
        assert torch.equal(one.buffers, task.buffers) == (norm == "batch")

    net, ranked = executor.net, torch.zeros(run.server.layout.size, dtype=torch.bool, device=DEVICE)
    for place in run.server.layout.parameters:
        ranked[place.start : place.stop] = place.prunable if ranks == "prunable" else not place.norm
    for task, theta in zip(tasks, net.thetas, strict=False):
        assert float(theta) == float(task.model[ranked & task.levels.mask(task.level)].abs().min()) > 0
    fallen = (net.fallen[:3] != 0)[:, net.inverse.long()]
    assert bool(fallen.any() if training else fallen.any(1).all()), "with Adam's small steps not every client has some"
    assert not bool(fallen[:, ~ranked].any())
    again = executor.train(tasks)
    assert all(torch.equal(a.values, b.values) for a, b in zip(found, again, strict=True)), "they are forgotten"


@RUNS
@pytest.mark.parametrize("optimizer", [{"momentum": 0.5}, {"weight_decay": 0.1}])
def test_thresholds_are_not_folded_with_momentum_or_decay(optimizer: dict[str, Any]) -> None:
    assert net_of(objects_of(residual(), "fiarse", optimizer={"kind": "sgd", **optimizer})) is None
    assert net_of(objects_of(residual(), optimizer={"kind": "sgd", **optimizer})) is not None


@RUNS
@pytest.mark.parametrize(
    ("task", "method"),
    [(residual(), "fedgmr"), (sequences(dropout=0.2), "fedgmr"), (residual(), "fiarse")],
    ids=["residual", "sequences", "thresholds"],
)
def test_bits_do_not_depend_on_company(task: Task, method: str) -> None:
    results = [trained(objects_of(task, method, tf32=True, slots=slots), folds=True) for slots in (1, 2, None)]
    for other in results[1:]:
        for one, same in zip(results[0], other, strict=True):
            assert torch.equal(one.values, same.values)
            assert torch.equal(one.buffers, same.buffers)
            assert float(one.loss) == float(same.loss)


@RUNS
def test_dropout_draws_and_begins_anew_with_every_task() -> None:
    run = objects_of(sequences(dropout=0.5))
    tasks, executor = run.server.tasks(range(3), 0.0), folded(run)
    first, again = executor.train(tasks), executor.train(tasks)
    assert all(torch.equal(a.values, b.values) for a, b in zip(first, again, strict=True))
    later = executor.train([replace(task, first_batch=task.first_batch + 2) for task in tasks])
    without = trained(objects_of(sequences()), folds=True)
    assert distance(first, without) > 1e-3
    assert distance(first, later) > 1e-3


@RUNS
def test_a_model_that_mixes_samples_is_not_folded() -> None:
    assert net_of(objects_of(residual(Mixing))) is None
    assert net_of(objects_of(residual())) is not None


@RUNS
@pytest.mark.parametrize(
    ("more", "written"), [({}, False), (ADAM, True), ({"optimizer": HEAVY}, False)], ids=["sgd", "adam", "momentum"]
)
@pytest.mark.parametrize("method", ["heterofl", "fedrolex", "fjord"])
def test_narrow_clients_agree_with_the_plain_loop(
    method: str, more: dict[str, Any], written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "LEAST_CLASSES", 10**9 if written else 1)
    run = objects_of(sequences(), method, steps=4, **more)
    net = net_of(run)
    assert net is not None
    assert net.absent == (method == "heterofl")
    narrow_clients_agree(run)


def narrow_clients_agree(run: Assembly) -> None:
    executor, plain = folded(run), run.fleet.executor
    for first in (0, 4):  # FedRolex's window has moved on
        tasks = [replace(task, first_batch=first) for task in run.server.tasks(range(3), 0.0)]
        found, wanted = executor.train(tasks), plain.train(tasks)
        assert distance(found, wanted) <= 2e-5
        run.server.merge(found, float(first + 1))
    lengths = [len(update.values) for update in found]
    assert lengths[0] > lengths[1] > lengths[2]


@RUNS
@pytest.mark.parametrize("more", [{}, ADAM, {"optimizer": HEAVY}], ids=["sgd", "adam", "momentum"])
@pytest.mark.parametrize(
    ("method", "local"),
    [
        *((method, {"scaler": scaler}) for method in ("heterofl", "fedrolex") for scaler in (None, True, False)),
        ("heterofl", {"norm": "tracked", "scaler": False}),
        ("fjord", {}),  # which has statistics for every width
    ],
)
def test_narrow_clients_with_batch_norm_agree_with_the_plain_loop(
    method: str, local: dict[str, Any], more: dict[str, Any]
) -> None:
    task = residual(lambda: Residual(lambda channels: nn.BatchNorm2d(channels, eps=0.05)))
    run = objects_of(task, method, steps=4, rules={"local": local}, **more)
    net = net_of(run)
    assert net is not None
    # A net with batch norm has the scaler by itself.
    assert isinstance(net.eps(0.05), Tensor) == (method != "fjord" and local.get("scaler") is not False)
    narrow_clients_agree(run)


@RUNS
@pytest.mark.parametrize("method", ["fedrolex", "fjord"])
def test_narrow_clients_of_wide_layers_agree_with_the_plain_loop(method: str) -> None:
    run = objects_of(
        residual(Wide), method, steps=4, rules={"local": {"scaler": False}} if method == "fedrolex" else {}
    )
    assert net_of(run) is not None
    narrow_clients_agree(run)


@RUNS
@pytest.mark.parametrize(
    ("task", "method"),
    [
        (sequences(dropout=0.2), "heterofl"),
        (sequences(dropout=0.2), "fjord"),
        (residual(), "heterofl"),
        (residual(), "fjord"),
    ],
)
def test_bits_of_narrow_clients_do_not_depend_on_company(task: Task, method: str) -> None:
    results = [trained(objects_of(task, method, tf32=True, slots=slots, **ADAM), folds=True) for slots in (1, 2, None)]
    for other in results[1:]:
        assert all(torch.equal(one.values, same.values) for one, same in zip(results[0], other, strict=True))


class Average(nn.Module):
    """Looks at the mean of its hidden numbers, which knows how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(36, 8), nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(images.flatten(1))
        scores: Tensor = self.head(x - x.mean(1, keepdim=True))
        return scores


class Zeroed(Average):
    """Says nothing before it is trained."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)


class Attending(nn.Module):
    """Attention of its own with small weights, which at first looks everywhere alike."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside, self.head = nn.Linear(6, 48), nn.Linear(16, 16), nn.Linear(16, 4)
        for layer in (self.inside, self.outside, self.head):
            nn.init.normal_(layer.weight, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        query, key, value = self.inside(images.flatten(1, 2)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        x = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        scores: Tensor = self.head(self.outside(x).mean(1))
        return scores


class Lengths(nn.Module):
    """A root, whose slope at the zeros of a channel that is left out is no number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.second(self.first(images).relu()).square().mean((2, 3)).sqrt())
        return scores


class Scaled(nn.Module):
    """Behind its norm a layer that no norm makes right again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.second, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
        nn.init.zeros_(self.head.weight)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.second(self.norm(self.first(images)).relu().mean((2, 3))).relu())
        return scores


class SharedNorm(nn.Module):
    """Two norms with one scale."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(36, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.norm, self.other = nn.LayerNorm(8), nn.LayerNorm(8)
        self.other.weight = self.norm.weight

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.other(self.second(self.norm(self.first(images.flatten(1))).relu())))
        return scores


class Named(Average):
    """Returns its outputs in an object, as Hugging Face's models do."""

    def forward(self, images: Tensor) -> Any:
        return SimpleNamespace(logits=super().forward(images))


@RUNS
@pytest.mark.parametrize("model", [Average, Zeroed, Attending, Lengths, Scaled, SharedNorm, Named])
def test_models_whose_narrow_networks_are_not_what_zeros_make_are_not_folded_by_width(
    model: Callable[[], nn.Module],
) -> None:
    before = torch.get_rng_state()
    assert net_of(objects_of(residual(model), "heterofl", rules={"local": {"masked_loss": False}})) is None
    assert torch.equal(torch.get_rng_state(), before)


@RUNS
def test_what_counts_its_channels_is_not_folded_by_width() -> None:
    plain = {"local": {"masked_loss": False}}
    assert net_of(objects_of(residual(Average))) is not None
    assert net_of(objects_of(residual(), "heterofl", rules={"local": {"norm": "tracked"}})) is None, "divided ones"
    rolling = training_of(objects_of(residual(), "fedrolex"))
    tracked = replace(rolling, work=replace(rolling.work, rule=WidthSGD(norm="tracked", scaler=False)))
    assert rolling.small() is not None
    assert tracked.small() is None
    assert net_of(objects_of(residual(lambda: Residual(lambda channels: nn.GroupNorm(2, channels))), "fjord")) is None
    assert net_of(objects_of(sequences(), "heterofl", rules=plain)) is not None


class Tempered(nn.Module):
    """Changes its last layer's outputs in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(36, 8), nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(functional.gelu(self.first(images.flatten(1))))
        scores *= 3.0
        return scores


@RUNS
def test_a_model_that_changes_its_last_layers_outputs_in_place_is_not_folded() -> None:
    assert net_of(objects_of(residual(Tempered))) is None


@RUNS
def test_proximal_terms_and_masked_losses_without_a_last_layer_are_not_folded() -> None:
    assert net_of(objects_of(residual(), "fedgmr", rules={"local": {"kind": "sgd", "proximal": 0.1}})) is None
    assert net_of(objects_of(sequences(own_loss), "heterofl")) is None
    assert net_of(objects_of(sequences(own_loss), "heterofl", rules={"local": {"masked_loss": False}})) is not None


@RUNS
@pytest.mark.parametrize(("size", "stride", "padding"), [(3, 2, 1), (2, 2, 0), (3, 1, 1), (3, 3, 0)])
def test_maxima_of_fields(size: int, stride: int, padding: int) -> None:
    images = torch.randn((2, 5, 7, 8), device=DEVICE).round(decimals=1).requires_grad_()  # with ties
    wanted = functional.max_pool2d(images, size, stride, padding)
    slopes = torch.randn_like(wanted)
    (into,) = torch.autograd.grad(wanted, images, slopes)
    lying = images.detach().permute(0, 2, 3, 1).contiguous()
    found, codes = pooling.forward(lying, size, stride, padding)
    assert torch.equal(found.permute(0, 3, 1, 2), wanted)
    back = pooling.backward(slopes.permute(0, 2, 3, 1).contiguous(), codes, lying.shape, size, stride, padding)
    assert far(back.permute(0, 3, 1, 2).flatten(), into.flatten()) <= 1e-6
