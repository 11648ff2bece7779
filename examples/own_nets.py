"""Your own ResNet and Transformer, of PyTorch's ordinary layers: a GPU trains all clients in the same kernels.

Run it with `python examples/own_nets.py`; made-up data, no download. On a GPU `execution.executor` is left to `auto`,
which finds that both nets can be stacked and says so in the run's recipe; on a CPU the same runs take a minute or two.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

import fedgmr

CLASSES, TOKENS, LENGTH = 4, 24, 16


class Block(nn.Module):
    """Two convolutions with batch norm, and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Images of half the size where the stride is 2."""
        y = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(y)) + self.shortcut(x))


def small_resnet() -> nn.Module:
    """A stem, two blocks and a linear layer."""
    stem = (nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
    blocks = (Block(16, 32, stride=2), Block(32, 64, stride=2))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


class SmallTransformer(nn.Module):
    """Two of PyTorch's encoder layers that see the past alone."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=96, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(width, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token at every place."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        scores: Tensor = self.head(self.layers(self.tokens(tokens) + self.places(places), mask=mask, is_causal=True))
        return scores


def stripes(samples: int = 3000, seed: int = 0) -> fedgmr.Task:
    """Noisy images of stripes: level, upright, or along a diagonal."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (samples,), generator=draw)
    rows, columns = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    directions = torch.stack([rows, columns, (rows + columns) * 0.7, (rows - columns) * 0.7])
    shifts = 6.28 * torch.rand((samples, 1, 1), generator=draw)
    images = torch.sin(1.5 * directions[labels] + shifts) + torch.randn((samples, 16, 16), generator=draw)
    images = images.unsqueeze(1)
    return fedgmr.Task(
        name="stripes",
        title="Stripes (a small ResNet)",
        model=small_resnet,
        train=(images[:-500], labels[:-500]),
        test=(images[-500:], labels[-500:]),
    )


def every_token(scores: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of every token."""
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def right_tokens(scores: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """Tokens that were predicted, and how many there are."""
    return (scores.argmax(-1) == targets).sum(), targets.numel()


def counting(samples: int = 3000, seed: int = 0) -> fedgmr.Task:
    """Sequences that go on by a step of their own, which the first two tokens tell."""
    draw = torch.Generator().manual_seed(seed)
    starts, steps = torch.randint(TOKENS, (2, samples, 1), generator=draw)
    sequences = (starts + steps * torch.arange(LENGTH + 1)) % TOKENS
    inputs, targets = sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()
    return fedgmr.Task(
        name="counting",
        title="Counting (a small Transformer)",
        model=SmallTransformer,
        train=(inputs[:-500], targets[:-500]),
        test=(inputs[-500:], targets[-500:]),
        loss=every_token,
        metric=right_tokens,
    )


def main(seconds: float = 300) -> None:
    """Simulate ten clients with each net, and print what trained it and what it has learned."""
    adam = {"optimizer": "adam", "learning_rate": 0.01, "batch_size": 32, "steps": 10}
    for task, training in ((stripes(), {"learning_rate": 0.1}), (counting(), adam)):
        result = fedgmr.simulate(
            task,
            method=fedgmr.named_method("fedgmr", {"interval": 10, "restoration": {"patience": 2}}),
            fleet=fedgmr.FleetSettings(name="high", scale="model"),
            seconds=seconds,
            partition="iid",
            training=training,
            device="cuda" if torch.cuda.is_available() else "cpu",
            progress=False,
        )
        last = result.history[-1]
        trained_by = result.recipe.execution.executor
        print(f"{task.title}: trained by {trained_by}; accuracy {last['accuracy']:.3f} after {last['updates']} updates")


if __name__ == "__main__":
    main()
