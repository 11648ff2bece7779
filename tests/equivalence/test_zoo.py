"""The zoo: ordinary architectures under all seven methods, cut to any width, and measured as anybody would."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedgmr
from equivalence import zoo
from fedgmr.submodels.channels.follow import follow_channels
from fedgmr.submodels.channels.plan import ChannelPlan
from fedgmr.submodels.channels.slicing import slice_module
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.widths import kept_mask, width_levels

METHODS = ("fedgmr", "fedavg", "fedasync", "heterofl", "fjord", "fedrolex", "fiarse")
LADDER = (0.2, 0.5, 1.0)
LINKS = [{"down": 20, "up": 20 * density, "density": density} for density in LADDER]
# Where a small network computes something else than the whole one with zeros, and why.
DIFFERENT = {
    "resnet_group_norm": "a group norm divides the kept channels into as many groups as all of them",
    "transformer_encoder": "a layer norm averages over the kept channels",
    "tied_embeddings": "a layer norm averages over the kept channels",
    "gpt2": "a layer norm averages over the kept channels, and the scores are scaled by the kept head dimension",
    "bert": "a layer norm averages over the kept channels",
}


def inputs(name: str, count: int, *, dtype: torch.dtype = torch.float64) -> Tensor:
    draws = torch.Generator().manual_seed(count)
    if name in zoo.IMAGES:
        return torch.randn(count, *zoo.IMAGE, dtype=dtype, generator=draws)
    return torch.randint(zoo.WORDS, (count, zoo.LENGTH), generator=draws)


def targets(name: str, x: Tensor) -> Tensor:
    """A class for every sample, for every pixel, or the next word."""
    if name == "unet":
        return (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0)
    if name in zoo.IMAGES:
        means = x.mean((2, 3))
        return (means[:, 0] > 0).long() + 2 * (means[:, 1] > 0)
    return x[:, 0] % zoo.CLASSES if name in ("lstm", "gru", "bert") else (x + 1) % zoo.WORDS


def prepared(name: str) -> tuple[nn.Module, ChannelPlan, Layout]:
    torch.manual_seed(5)
    model = zoo.ZOO[name]().double()
    return model, follow_channels(model, inputs(name, 2)), Layout.of(model)


def computed(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs in evaluation; the gradient of a step of training."""
    with torch.no_grad():
        outputs = model.eval()(x)
    torch.manual_seed(1)
    slopes = torch.autograd.grad(cross_entropy(model.train()(x), y), list(model.parameters()))
    return outputs, torch.cat([slope.reshape(-1) for slope in slopes])


@pytest.mark.parametrize("name", zoo.ZOO)
def test_masked_is_sliced(name: str) -> None:
    model, plan, layout = prepared(name)
    for module in model.modules():  # which draws another number of zeros where there are fewer channels
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    assert plan.whole == ()
    x = inputs(name, 3)
    for width, shift in ((0.5, 0), (0.3, 5)):
        small = slice_module(model, plan, kept_mask(plan, width, shift))
        kept = width_levels(plan, layout, [width], shift).mask(0)
        assert torch.equal(Layout.of(small).flatten(small), layout.flatten(model)[kept])
        assert kept.double().mean() < width
        whole = copy.deepcopy(model)
        layout.bind(whole, layout.flatten(model) * kept, layout.flatten_buffers(model))
        outputs, slopes = computed(small, x, targets(name, x))
        wanted, whole_slopes = computed(whole, x, targets(name, x))
        apart = max(float((outputs - wanted).abs().max()), float((slopes - whole_slopes[kept]).abs().max()))
        assert apart > 1e-4 if name in DIFFERENT else apart < 1e-9


def task(name: str) -> fedgmr.Task:
    train, test = (inputs(name, count, dtype=torch.float32) for count in (60, 24))
    samples = {"train": (train, targets(name, train)), "test": (test, targets(name, test))}
    return fedgmr.Task(name=name, model=zoo.ZOO[name], **samples, metric=hits, holdout=0.1)  # type: ignore[arg-type]


def hits(outputs: Tensor, wanted: Tensor) -> tuple[Tensor, int]:
    """The classes are in the second dimension."""
    return (outputs.argmax(1) == wanted).sum(), wanted.numel()


@pytest.mark.parametrize("name", zoo.ZOO)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_it_and_reports_what_the_model_does(name: str, method: str) -> None:
    ladder = {} if method in ("fedavg", "fedasync") else {"ladder": LADDER}
    run = task(name)
    result = fedgmr.simulate(
        run,
        method=fedgmr.named_method(method, ladder),
        fleet={"name": "custom", "links": LINKS},
        seconds=3.0,
        training={"learning_rate": 0.05, "batch_size": 8, "steps": 2},
        evaluation={"every_seconds": 3.0},
        device="cpu",
    )
    last = result.history[-1]
    assert last["tick"] >= 2
    state = result.views.state("merged")
    initial = run.initial_model(0).state_dict()
    assert any(not torch.equal(values, initial[key]) for key, values in state.items() if values.is_floating_point())
    model = zoo.ZOO[name]().eval()
    model.load_state_dict(state, strict=False)
    with torch.no_grad():
        outputs = model(run.test.inputs)
    assert last["loss"] == pytest.approx(float(cross_entropy(outputs, run.test.targets)), abs=1e-6)
    right = (outputs.argmax(1) == run.test.targets).double().mean()
    assert last["accuracy"] == pytest.approx(float(right), abs=1e-6)
