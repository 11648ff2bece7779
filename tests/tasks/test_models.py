"""The paper's nets: sizes, initial weights, channels, and their losses with numbers computed by hand."""

import math
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from fedgmr.settings.refusals import SettingError
from fedgmr.submodels.channels.follow import follow_channels
from fedgmr.submodels.channels.slicing import slice_module
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.widths import kept_mask, solve_widths, width_levels
from fedgmr.tasks import cifar10, femnist, imagenet100, stackoverflow
from fedgmr.tasks.losses import one_hot_bce, token_cross_entropy
from fedgmr.tasks.metrics import Among
from fedgmr.tasks.models.conv2 import Conv2
from fedgmr.tasks.models.post_norm import PostNormTransformer
from fedgmr.tasks.models.resnet18 import SHORTCUTS, ResNet18
from fedgmr.tasks.models.transformer import EMBEDDING_STD, Transformer2L
from fedgmr.tasks.models.vgg11 import VGG11


def bound(weight: Tensor) -> float:
    """The largest magnitude, which is close to the bound of a uniform distribution where there are many."""
    return float(weight.detach().abs().max())


@pytest.mark.parametrize(
    ("build", "keep", "size", "prunable", "buffers"),
    [
        (Conv2, (), 6_603_710, 6_601_504, 0),
        (VGG11, (), 9_750_922, 9_747_136, 0),
        (ResNet18, (SHORTCUTS,), 11_227_812, 11_046_080, 9_600),
        (Transformer2L, (), 2_156_928, 2_154_240, 0),
        (PostNormTransformer, (), 2_175_760, 2_162_784, 0),
    ],
)
def test_sizes(build: Callable[[], nn.Module], keep: tuple[str, ...], size: int, prunable: int, buffers: int) -> None:
    layout = Layout.of(build(), keep=keep)
    assert (layout.size, layout.prunable_size, layout.buffer_size) == (size, prunable, buffers)


CONV2 = {"0": (32, 1, 5, 5), "3": (64, 32, 5, 5), "7": (2048, 3136), "9": (62, 2048)}
VGG = {
    **{"0": (64, 3, 3, 3), "3": (128, 64, 3, 3), "6": (256, 128, 3, 3), "8": (256, 256, 3, 3), "11": (512, 256, 3, 3)},
    **{"13": (512, 512, 3, 3), "16": (512, 512, 3, 3), "18": (512, 512, 3, 3)},
    **{"22": (512, 512), "24": (512, 512), "26": (10, 512)},
}


@pytest.mark.parametrize(("build", "layers"), [(Conv2, CONV2), (VGG11, VGG)])
def test_shapes_of_conv2_and_vgg11(build: Callable[[], nn.Module], layers: dict[str, tuple[int, ...]]) -> None:
    shapes = {name: tuple(parameter.shape) for name, parameter in build().named_parameters()}
    weights = {f"{name}.weight": shape for name, shape in layers.items()}
    assert shapes == weights | {f"{name}.bias": shape[:1] for name, shape in layers.items()}  # no batch norm


def test_shapes_of_resnet18() -> None:
    shapes = {name: tuple(parameter.shape) for name, parameter in ResNet18().named_parameters()}
    expected: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7), "fc.weight": (100, 512), "fc.bias": (100,)}
    expected |= {"bn1.weight": (64,), "bn1.bias": (64,)}
    for stage, (inputs, width) in enumerate(((64, 64), (64, 128), (128, 256), (256, 512)), 1):
        for block, first in ((0, inputs), (1, width)):
            path = f"layer{stage}.{block}"
            expected |= {f"{path}.conv1.weight": (width, first, 3, 3), f"{path}.conv2.weight": (width, width, 3, 3)}
            expected |= {f"{path}.{norm}.{part}": (width,) for norm in ("bn1", "bn2") for part in ("weight", "bias")}
        if inputs != width:
            path = f"layer{stage}.0.downsample"
            expected |= {
                f"{path}.0.weight": (width, inputs, 1, 1),
                f"{path}.1.weight": (width,),
                f"{path}.1.bias": (width,),
            }
    assert shapes == expected


def test_shapes_of_the_transformer() -> None:
    shapes = {name: tuple(parameter.shape) for name, parameter in Transformer2L().named_parameters()}
    expected: dict[str, tuple[int, ...]] = {"tokens.weight": (10_004, 96), "positions.weight": (128, 96)}
    expected |= {"norm.weight": (96,), "norm.bias": (96,), "head.weight": (10_004, 96)}  # untied, without bias
    for block in ("blocks.0", "blocks.1"):
        expected |= {
            f"{block}.{norm}.{part}": (96,) for norm in ("attention_norm", "feed_norm") for part in ("weight", "bias")
        }
        expected |= {f"{block}.attention.in_proj_weight": (288, 96), f"{block}.attention.in_proj_bias": (288,)}
        expected |= {f"{block}.attention.out_proj.weight": (96, 96), f"{block}.attention.out_proj.bias": (96,)}
        expected |= {f"{block}.feed.0.weight": (384, 96), f"{block}.feed.0.bias": (384,)}
        expected |= {f"{block}.feed.2.weight": (96, 384), f"{block}.feed.2.bias": (96,)}
    assert shapes == expected


@pytest.mark.parametrize(
    ("build", "inputs", "outputs"),
    [(Conv2, (2, 1, 28, 28), (2, 62)), (VGG11, (2, 3, 32, 32), (2, 10)), (ResNet18, (2, 3, 64, 64), (2, 100))],
)
def test_outputs(build: Callable[[], nn.Module], inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
    with torch.no_grad():
        assert tuple(build()(torch.zeros(inputs)).shape) == outputs


def test_initial_weights_of_conv2_and_vgg11() -> None:
    torch.manual_seed(0)
    conv2, vgg11 = dict(Conv2().named_parameters()), dict(VGG11().named_parameters())
    for name, expected in (("0", 0.2), ("3", 0.0354), ("7", 0.0541), ("9", 0.311)):
        assert bound(conv2[f"{name}.weight"]) == pytest.approx(expected, rel=0.01)
    expected_of = {0: 0.192, 3: 0.0417, 6: 0.0295, 8: 0.0208, 11: 0.0208, 13: 0.0147, 16: 0.0147, 18: 0.0147}
    for index, expected in (expected_of | {22: 0.108, 24: 0.108, 26: 0.430}).items():
        assert bound(vgg11[f"{index}.weight"]) == pytest.approx(expected, rel=0.01)
    for name in (22, 24, 26):  # biases as PyTorch has them: 1 / sqrt(512)
        assert bound(vgg11[f"{name}.bias"]) <= 512**-0.5


def test_initial_weights_of_resnet18() -> None:
    torch.manual_seed(0)
    net = ResNet18()
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            expected = math.sqrt(2 / (module.out_channels * math.prod(module.kernel_size)))
            assert float(module.weight.detach().std()) == pytest.approx(expected, rel=0.03)
        if isinstance(module, nn.BatchNorm2d):
            assert bool((module.weight == 1).all() and (module.bias == 0).all())
    assert bound(net.fc.weight) == pytest.approx(0.0442, rel=0.01)


def test_initial_weights_of_the_transformer() -> None:
    torch.manual_seed(0)
    net = Transformer2L()
    for embedding in (net.tokens, net.positions):
        assert float(embedding.weight.detach().std()) == pytest.approx(EMBEDDING_STD, rel=0.03)
    assert bound(net.head.weight) == pytest.approx(96**-0.5, rel=0.01)


def test_heads_by_fan_in() -> None:
    torch.manual_seed(0)
    narrow, usual = VGG11(head_init="fan_in"), VGG11()
    assert bound(narrow.get_parameter("26.weight")) == pytest.approx((6 / (1 + 1.5**2) / 512) ** 0.5, rel=0.01)  # 0.060
    assert bound(usual.get_parameter("26.weight")) == pytest.approx((6 / (1 + 1.5**2) / 10) ** 0.5, rel=0.01)  # 0.430
    assert bound(ResNet18(head_init="fan_in").fc.weight) == pytest.approx(0.06005, rel=0.01)
    assert bound(ResNet18().fc.weight) == pytest.approx(512**-0.5, rel=0.01)  # 0.044
    torch.manual_seed(1)
    one = VGG11(head_init="fan_in").state_dict()
    torch.manual_seed(1)
    other = VGG11().state_dict()
    assert [name for name in one if not torch.equal(one[name], other[name])] == ["26.weight"]


@pytest.mark.parametrize(
    ("task", "options", "prunable"),
    [
        (femnist, {"head": "whole"}, 6_474_528),
        (cifar10, {"head": "whole", "head_init": "fan_in"}, 9_742_016),
        (imagenet100, {"norm": "group", "head_init": "fan_in"}, 11_046_080),
        (stackoverflow, {"head": "whole"}, 2_154_240 - 960_384),
    ],
)
def test_whole_heads_are_kept(task: ModuleType, options: dict[str, str], prunable: int) -> None:
    fields = task.model_fields(**options)
    assert Layout.of(fields["model"](), keep=fields["keep"]).prunable_size == prunable
    with pytest.raises(SettingError, match=r"task\.options\.head.* is 'hole'"):
        task.model_fields(**dict.fromkeys(options, "hole") | {k: v for k, v in options.items() if k == "norm"})


def test_shortcuts_of_resnet18_are_kept() -> None:
    layout = Layout.of(ResNet18(), keep=(SHORTCUTS,))
    kept = [place for place in layout.parameters if len(place.shape) == 4 and not place.prunable]
    assert [place.name for place in kept] == [f"layer{stage}.0.downsample.0.weight" for stage in (2, 3, 4)]
    assert sum(place.size for place in kept) == 172_032


@pytest.mark.parametrize(("build", "side"), [(VGG11, 32), (ResNet18, 32)])
def test_sliced_convolutional_nets_compute_what_masked_ones_do(build: Callable[[], nn.Module], side: int) -> None:
    torch.manual_seed(0)
    model = build().eval()
    plan, layout = follow_channels(model, torch.zeros(2, 3, side, side)), Layout.of(model)
    (width,) = solve_widths(plan, layout, [0.05])
    small = slice_module(model, plan, kept_mask(plan, width)).eval()
    kept = sum(parameter.numel() for parameter in small.parameters())
    assert kept / layout.size == pytest.approx(0.05, rel=0.02)
    flat = layout.flatten(model)
    flat[width_levels(plan, layout, [width, 1.0], ladder=[0.05, 1.0]).levels > 0] = 0
    layout.bind(model, flat, layout.flatten_buffers(model))
    inputs = torch.randn(2, 3, side, side)
    with torch.no_grad():
        assert torch.allclose(small(inputs), model(inputs), atol=1e-5)


def test_resnet18_with_group_norms_is_sliced_to_multiples_of_four() -> None:
    model = ResNet18(norm="group")
    assert Layout.of(model).buffers == ()
    assert Layout.of(model).size == Layout.of(ResNet18()).size
    plan = follow_channels(model, torch.zeros(2, 3, 64, 64))
    small = slice_module(model, plan, kept_mask(plan, 0.05**0.5))
    norms = [module for module in small.modules() if isinstance(module, nn.GroupNorm)]
    assert {norm.num_groups for norm in norms} == {4}
    # 0.2236 of 64, 128, 256 and 512 channels, rounded down.
    assert sorted({norm.num_channels for norm in norms}) == [12, 28, 56, 112]
    assert small(torch.randn(2, 3, 64, 64)).shape == (2, 100)


def test_channels_of_the_transformer() -> None:
    model = Transformer2L()
    plan = follow_channels(model, torch.zeros(2, 5, dtype=torch.int64))
    # The stream, and in each block the positions in four heads and the feed-forward layer; words are never sliced.
    assert [group.size for group in plan.groups] == [96, 24, 384, 24, 384]
    assert (list(plan.heads), plan.whole, plan.calls) == (["head.weight"], (), ())
    small = slice_module(model, plan, kept_mask(plan, 0.5))
    assert small.get_submodule("tokens").weight.shape == (10_004, 48)
    assert small.get_submodule("blocks.1.attention").in_proj_weight.shape == (144, 48)
    assert small(torch.randint(10_004, (2, 5))).shape == (2, 5, 10_004)


def test_the_post_norm_transformer() -> None:
    torch.manual_seed(0)
    model = PostNormTransformer()
    for table in (model.tokens, model.positions):
        assert float(table.weight.detach().std()) == pytest.approx(1, rel=0.02)
    parameters = dict(model.named_parameters())
    for block in ("blocks.0", "blocks.1"):
        for feed in ("feed.0", "feed.3"):
            assert float(parameters[f"{block}.{feed}.weight"].detach().std()) == pytest.approx(0.02, rel=0.02)
        for projection in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"):
            assert bound(parameters[f"{block}.attention.{projection}"]) == pytest.approx(96**-0.5, rel=0.05)
    assert model.head.bias.shape == (10_000,)
    # Post-norm: what the decoder gets has mean 0 and variance 1 at every position.
    seen: list[Tensor] = []
    model.decoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model.eval()(torch.randint(10_001, (2, 5)))
    assert torch.allclose(seen[0].mean(-1), torch.zeros(2, 5), atol=1e-5)
    assert torch.allclose(seen[0].var(-1, correction=0), torch.ones(2, 5), atol=1e-2)


def test_channels_of_the_post_norm_transformer() -> None:
    model = PostNormTransformer()
    plan = follow_channels(model, torch.zeros(2, 5, dtype=torch.int64))
    # The stream, in each block the positions in four heads and the feed-forward layer, the decoder; no words.
    assert [group.size for group in plan.groups] == [96, 24, 384, 24, 384, 96]
    assert (list(plan.heads), plan.whole, plan.calls) == (["head.weight", "head.bias"], (), ())
    small = slice_module(model, plan, kept_mask(plan, 0.05**0.5))
    # 0.2236 of 96 and 384 channels, and of 24 in each of four heads, rounded up.
    assert small.get_submodule("tokens").weight.shape == (10_001, 22)
    assert small.get_submodule("blocks.1.attention").in_proj_weight.shape == (3 * 24, 22)
    assert small.get_submodule("blocks.0.feed.0").weight.shape == (86, 22)
    assert small(torch.randint(10_001, (2, 5))).shape == (2, 5, 10_000)


@pytest.mark.parametrize("net", [Transformer2L, PostNormTransformer])
def test_the_transformer_sees_no_future(net: type[Transformer2L | PostNormTransformer]) -> None:
    torch.manual_seed(0)
    model = net(50, positions=8).eval()
    tokens = torch.randint(50, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = (tokens[0, 5] + 1) % 50
    with torch.no_grad():
        before, after = model(tokens), model(changed)
        assert torch.allclose(before[:, :5], after[:, :5], atol=1e-6)
        assert (before[:, 5:] - after[:, 5:]).abs().amax(-1).min() > 1e-4
        # A shorter sequence gives the same, and so does the code path of training once dropout is off.
        assert torch.allclose(model(tokens[:, :3]), before[:, :3], atol=1e-6)
        model.train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
        assert torch.allclose(model(tokens), before, atol=1e-5)


def test_dropout_is_on_in_training() -> None:
    torch.manual_seed(0)
    model = Transformer2L(50, positions=8)
    tokens = torch.randint(50, (1, 8))
    assert not torch.equal(model(tokens), model(tokens))


def test_binary_cross_entropy_on_one_hot_labels() -> None:
    outputs = torch.tensor([[0.0, math.log(3.0)], [0.0, math.log(3.0)]])
    # sigmoid: 1/2 and 3/4. Label 1: -ln(1/2) - ln(3/4); label 0: -ln(1/2) - ln(1/4); over 2 samples x 2 classes.
    expected = (2 * math.log(2) - math.log(3 / 4) + math.log(4)) / 4
    assert float(one_hot_bce(outputs, torch.tensor([1, 0]))) == pytest.approx(expected)
    outputs = torch.zeros(3, 62, requires_grad=True)
    one_hot_bce(outputs, torch.tensor([0, 7, 61])).backward()
    assert outputs.grad is not None
    # The mean over classes is what makes a rate of 0.25 usable: (1/2 - 1) / (3 · 62) at the label.
    assert float(outputs.grad[1, 7]) == pytest.approx(-0.5 / (3 * 62))
    assert float(outputs.grad[1, 8]) == pytest.approx(0.5 / (3 * 62))


def test_padding_is_neither_trained_nor_counted() -> None:
    outputs = torch.zeros(2, 3, 4)
    outputs[0, 0, 2] = outputs[0, 1, 3] = outputs[1, 0, 0] = math.log(5.0)
    targets = torch.tensor([[2, 1, 0], [1, 0, 0]])
    # Three targets are real: 5/8 for the first; 1/8 for the other two.
    expected = -(math.log(5 / 8) + 2 * math.log(1 / 8)) / 3
    assert float(token_cross_entropy(outputs, targets)) == pytest.approx(expected)
    hits, count = Among(ignore=0)(outputs, targets)
    assert (int(hits), count) == (1, 3)
