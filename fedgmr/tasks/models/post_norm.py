"""A Transformer of two post-norm blocks, as the paper's released code has it for StackOverflow: 2,175,760 parameters.

Embeddings start at a standard deviation of 1, feed-forward weights at 0.02, everything else as PyTorch's linear layers
do. The token table has one row more than there are words to predict. The paper's text describes `transformer.py`.
"""

import torch
from torch import Tensor, nn

from fedgmr.tasks.words import WORDS

_WIDTH, _HEADS, _HIDDEN = 96, 4, 384
_FEED_STD = 0.02


class PostNormTransformer(nn.Module):
    """Predicts the next token at every position of [batch, at most `positions`] tokens."""

    def __init__(self, vocabulary: int = WORDS, *, positions: int = 128, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary + 1, _WIDTH)
        self.positions = nn.Embedding(positions, _WIDTH)
        self.norm = nn.LayerNorm(_WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Block(dropout) for _ in range(2))
        self.decoder = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.LayerNorm(_WIDTH))
        self.head = nn.Linear(_WIDTH, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, length, vocabulary]."""
        length, device = tokens.shape[1], tokens.device
        future = torch.ones((length, length), dtype=torch.bool, device=device).triu(1)
        x = self.dropout(self.norm(self.tokens(tokens) + self.positions(torch.arange(length, device=device))))
        for block in self.blocks:
            x = block(x, future)
        logits: Tensor = self.head(self.decoder(x))
        return logits


class _Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each added to the stream, which is then normalised."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True)
        self.attention_norm = nn.LayerNorm(_WIDTH)
        self.feed = nn.Sequential(
            nn.Linear(_WIDTH, _HIDDEN), nn.GELU(), nn.Dropout(dropout), nn.Linear(_HIDDEN, _WIDTH)
        )
        self.feed_norm = nn.LayerNorm(_WIDTH)
        self.dropout = nn.Dropout(dropout)
        assert self.attention.in_proj_weight is not None
        bound = _WIDTH**-0.5
        for tensor in (self.attention.in_proj_weight, self.attention.in_proj_bias, self.attention.out_proj.bias):
            nn.init.uniform_(tensor, -bound, bound)
        for layer in self.feed:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=_FEED_STD)

    def forward(self, x: Tensor, future: Tensor) -> Tensor:
        """The stream [batch, length, width] after the block; `future` [length, length] is what must not be seen."""
        attended, _ = self.attention(x, x, x, attn_mask=future, need_weights=False, is_causal=True)
        x = self.attention_norm(x + self.dropout(attended))
        fed: Tensor = self.feed_norm(x + self.dropout(self.feed(x)))
        return fed
