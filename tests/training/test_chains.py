"""Image nets with channels last and pooling first: the same values and gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedgmr.submodels.channels.follow import follow_channels
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import LevelMap
from fedgmr.tasks.models.conv2 import Conv2
from fedgmr.tasks.models.resnet18 import ResNet18
from fedgmr.tasks.models.vgg11 import VGG11
from fedgmr.training.chains import Chain
from fedgmr.training.submodel.sliced_cut import SlicedCutter


def small() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 6, 3),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(24, 2),
    )


def arranged(net: nn.Module) -> bool:
    """Arrange `net` where it is a chain; whether its images lie channels last from now on."""
    chain = Chain.of(net)
    if chain is not None:
        chain.arrange()
    return bool(net._forward_pre_hooks)


def channels_last(images: Tensor) -> Tensor:
    """The images as an arranged chain hands them to its first layer."""
    net, seen = nn.Sequential(nn.Conv2d(images.shape[1], 1, 1)), []
    assert arranged(net)
    net[0].register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
    net(images)
    return seen[0]


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_is_the_same_picture(channels: int) -> None:
    images = torch.randn(5, channels, 4, 6)
    for given in (images, images.transpose(2, 3).contiguous().transpose(2, 3)):
        found = channels_last(given)
        assert torch.equal(found, images)
        assert found.stride() == (24 * channels, 1, 6 * channels, channels)


def test_layers_go_by_the_strides() -> None:
    """What a layer makes of one channel lies channels last, too; from there on all do."""
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.ReLU())
    assert net(channels_last(torch.randn(2, 1, 8, 8))).is_contiguous(memory_format=torch.channels_last)
    assert not net(torch.randn(2, 1, 8, 8)).is_contiguous(memory_format=torch.channels_last)


def passes(net: nn.Module, images: Tensor) -> list[Tensor]:
    outputs = net(images)
    return [outputs, *torch.autograd.grad(outputs.square().sum(), list(net.parameters()))]


def test_values_and_gradients_stay() -> None:
    torch.manual_seed(0)
    net = small().double()
    images = torch.randn(7, 3, 10, 10, dtype=torch.float64)
    wanted = passes(net, images)
    assert arranged(net)
    inner = net[0]
    assert isinstance(inner, nn.Sequential)
    assert [type(layer).__name__ for layer in inner] == ["Conv2d", "MaxPool2d", "ReLU"]
    for found, expected in zip(passes(net, images), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_pooling_first_changes_no_bit() -> None:
    torch.manual_seed(1)
    images = torch.randn(6, 5, 8, 8)
    images[0] = -1.0  # a window without anything above zero
    images[1] = 2.0  # and one in which all are the same
    results = []
    for layers in ([nn.ReLU(), nn.MaxPool2d(2)], [nn.MaxPool2d(2), nn.ReLU()]):
        inputs = channels_last(images).requires_grad_()
        outputs = nn.Sequential(*layers)(inputs)
        (gradient,) = torch.autograd.grad((outputs * torch.arange(outputs.numel()).view_as(outputs)).sum(), [inputs])
        results.append((outputs, gradient))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


class Own(nn.Sequential):
    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = super().forward(images)
        return outputs.view(len(images), -1)  # which would not do with channels last


@pytest.mark.parametrize(
    ("make", "possible"),
    [
        (Conv2, True),
        (VGG11, True),
        (ResNet18, False),
        (lambda: Own(nn.Conv2d(1, 2, 3), nn.ReLU()), False),
        (lambda: nn.Sequential(Own(nn.Conv2d(1, 2, 3)), nn.ReLU()), False),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()), False),
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.TransformerEncoderLayer(4, 1)), False),
    ],
)
def test_only_chains_of_known_layers(make: Callable[[], nn.Module], possible: bool) -> None:
    assert arranged(make()) is possible


def test_indices_of_pooling_stay_where_they_are() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2, return_indices=True))
    assert arranged(net)
    assert [type(layer).__name__ for layer in net] == ["Conv2d", "ReLU", "MaxPool2d"]


@pytest.mark.parametrize(
    ("net", "gains"),
    [
        (nn.Sequential(nn.Conv2d(1, 64, 3), nn.ReLU()), True),
        (nn.Sequential(nn.Conv2d(1, 65, 3), nn.ReLU()), False),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)), False),
        (nn.Sequential(nn.Linear(3, 2)), False),
    ],
)
def test_what_is_arranged_for_training(net: nn.Module, gains: bool) -> None:
    chain = Chain.of(net)
    assert chain is not None
    chain.arrange_for_training()
    assert bool(net._forward_pre_hooks) is gains


@pytest.mark.parametrize(("device", "gains"), [("cpu", True), ("meta", False)])
def test_narrow_chains_are_arranged_on_a_cpu_alone(device: str, gains: bool) -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))
    plan, layout = follow_channels(net, torch.zeros(2, 1, 4, 4)), Layout.of(net)
    cutter = SlicedCutter(net, layout, plan, (0.5, 1.0), torch.device(device))
    levels = LevelMap(torch.zeros(layout.size, dtype=torch.uint8), (0.5, 1.0))
    assert bool(cutter.cut(levels, 1).module.module._forward_pre_hooks) is gains


def test_a_chain_that_is_called_by_name() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2))
    images = torch.randn(2, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    expected = net(images)
    chain = Chain.of(net)
    assert chain is not None
    chain.arrange()
    assert torch.equal(net(input=images), expected)
