"""Ordinary architectures in small: what people bring along. Images are [3, 8, 8], texts have six of eleven words."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES, WORDS, LENGTH = 4, 11, 6
IMAGE = (3, 8, 8)


class ResNet(nn.Module):
    """Two residual blocks, the second with a strided shortcut."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), norm(16), nn.ReLU())
        self.same = nn.Sequential(*self._convolutions(16, 16, 1, norm))
        self.down = nn.Sequential(*self._convolutions(16, 24, 2, norm))
        self.shortcut = nn.Sequential(nn.Conv2d(16, 24, 1, 2, bias=False), norm(24))
        self.head = nn.Linear(24, CLASSES)

    @staticmethod
    def _convolutions(before: int, width: int, stride: int, norm: Callable[[int], nn.Module]) -> Sequence[nn.Module]:
        first = (nn.Conv2d(before, width, 3, stride, 1, bias=False), norm(width), nn.ReLU())
        return *first, nn.Conv2d(width, width, 3, padding=1, bias=False), norm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = functional.relu(x + self.same(x))
        x = functional.relu(self.shortcut(x) + self.down(x))
        return self.head(x.mean((2, 3)))


class DenseNet(nn.Module):
    """A dense block of three layers and a transition: every layer reads all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        widths = (12, 20, 28)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width) for width in widths])
        self.layers = nn.ModuleList([nn.Conv2d(width, 8, 3, padding=1, bias=False) for width in widths])
        self.transition = nn.Sequential(nn.BatchNorm2d(36), nn.ReLU(), nn.Conv2d(36, 16, 1), nn.AvgPool2d(2))
        self.head = nn.Linear(16 * 4 * 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for norm, layer in zip(self.norms, self.layers, strict=True):
            features.append(layer(torch.relu(norm(torch.cat(features, 1)))))
        return self.head(torch.flatten(self.transition(torch.cat(features, 1)), 1))


class ResNeXt(nn.Module):
    """A bottleneck whose convolution has eight groups."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.bottleneck = nn.Sequential(
            *(nn.Conv2d(16, 32, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.Conv2d(32, 32, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.Conv2d(32, 16, 1, bias=False), nn.BatchNorm2d(16)),
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(torch.relu(x + self.bottleneck(x)))


class MobileNet(nn.Module):
    """An inverted residual: wide, depthwise, narrow."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.Hardswish())
        self.inverted = nn.Sequential(
            *(nn.Conv2d(12, 48, 1, bias=False), nn.BatchNorm2d(48), nn.ReLU6()),
            *(nn.Conv2d(48, 48, 3, padding=1, groups=48, bias=False), nn.BatchNorm2d(48), nn.ReLU6()),
            *(nn.Conv2d(48, 12, 1, bias=False), nn.BatchNorm2d(12)),
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(12, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(x + self.inverted(x))


class SqueezeExcite(nn.Module):
    """A convolution whose channels are weighed by two small layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, padding=1)
        self.squeeze, self.excite = nn.Linear(24, 8), nn.Linear(8, 24)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        batch, channels, _, _ = x.size()
        weights = functional.adaptive_avg_pool2d(x, 1).view(batch, channels)
        weights = torch.sigmoid(self.excite(torch.relu(self.squeeze(weights)))).view(batch, channels, 1, 1)
        return self.head((x * weights).mean((2, 3)))


class UNet(nn.Module):
    """Down, up by a transposed convolution, and the skip beside it; a class for every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.down = self._convolution(3, 12), self._convolution(12, 24)
        self.up, self.after = nn.ConvTranspose2d(24, 12, 2, stride=2), self._convolution(24, 12)
        self.head = nn.Conv2d(12, CLASSES, 1)

    @staticmethod
    def _convolution(before: int, width: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        skip = self.before(x)
        x = self.up(self.down(functional.max_pool2d(skip, 2)))
        return self.head(self.after(torch.cat([skip, x], dim=1)))


class Recurrent(nn.Module):
    """Words through two recurrent layers to a class."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU], *, bidirectional: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 12)
        self.body = kind(12, 16, num_layers=2, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(32 if bidirectional else 16, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.body(self.words(words))[0][:, -1])


class Encoder(nn.Module):
    """`nn.TransformerEncoder` behind an embedding, in the pre-norm form."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, 16), nn.Parameter(0.1 * torch.randn(1, LENGTH, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1], dtype=self.positions.dtype)
        x = self.words(words) * math.sqrt(16) + self.positions[:, : words.shape[1]]
        return self.head(self.body(x, mask=mask, is_causal=True)).transpose(1, 2)


class GPT2(nn.Module):
    """A GPT-2 block: queries, keys and values from one layer, heads by view and transpose, sizes written out."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.width = 2, 16
        self.wte, self.wpe = nn.Embedding(WORDS, 16), nn.Embedding(LENGTH, 16)
        self.ln_1, self.ln_2, self.ln_f = nn.LayerNorm(16), nn.LayerNorm(16), nn.LayerNorm(16)
        self.c_attn, self.c_proj = nn.Linear(16, 48), nn.Linear(16, 16)
        self.c_fc, self.c_out = nn.Linear(16, 64), nn.Linear(64, 16)
        self.lm_head = nn.Linear(16, WORDS, bias=False)
        self.lm_head.weight = self.wte.weight
        self.register_buffer("ahead", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), persistent=False)

    def attend(self, x: Tensor) -> Tensor:
        batch, length, _ = x.size()
        q, k, v = self.c_attn(x).split(self.width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, self.width // self.heads).transpose(1, 2) for part in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.ahead[:length, :length], float("-inf")).softmax(-1)
        return self.c_proj((scores @ v).transpose(1, 2).contiguous().view(batch, length, self.width))

    def forward(self, words: Tensor) -> Tensor:
        x = self.wte(words) + self.wpe(torch.arange(words.shape[1], device=words.device))
        x = x + self.attend(self.ln_1(x))
        x = x + self.c_out(functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))
        return self.lm_head(self.ln_f(x)).transpose(1, 2)


class BERT(nn.Module):
    """A BERT block as Hugging Face has it: query, key, value and output layers, `view(*shape, -1, head_dim)`."""

    def __init__(self) -> None:
        super().__init__()
        self.head_dim, self.scaling = 8, 8**-0.5
        self.words, self.positions, self.norm = nn.Embedding(WORDS, 16), nn.Embedding(LENGTH, 16), nn.LayerNorm(16)
        self.query, self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.output, self.output_norm = nn.Linear(16, 16), nn.LayerNorm(16)
        self.inner, self.outer, self.outer_norm = nn.Linear(16, 48), nn.Linear(48, 16), nn.LayerNorm(16)
        self.pooler, self.classifier = nn.Linear(16, 16), nn.Linear(16, CLASSES)

    def attend(self, x: Tensor) -> Tensor:
        shape = x.shape[:-1]
        q, k, v = (
            layer(x).view(*shape, -1, self.head_dim).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, scale=self.scaling)
        return self.output(mixed.transpose(1, 2).reshape(*shape, -1).contiguous())

    def forward(self, words: Tensor) -> Tensor:
        x = self.norm(self.words(words) + self.positions.weight[: words.shape[1]])
        x = self.output_norm(x + self.attend(x))
        x = self.outer_norm(x + self.outer(functional.gelu(self.inner(x))))
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


IMAGES: dict[str, Callable[[], nn.Module]] = {
    "resnet": lambda: ResNet(nn.BatchNorm2d),
    "resnet_group_norm": lambda: ResNet(partial(nn.GroupNorm, 4)),
    "densenet": DenseNet,
    "resnext": ResNeXt,
    "mobilenet": MobileNet,
    "squeeze_excite": SqueezeExcite,
    "unet": UNet,
}
TEXTS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU, bidirectional=True),
    "transformer_encoder": Encoder,
    "tied_embeddings": lambda: Encoder(tied=True),
    "gpt2": GPT2,
    "bert": BERT,
}
ZOO = IMAGES | TEXTS
