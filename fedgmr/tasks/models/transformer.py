"""Transformer-2L, the paper's StackOverflow net (tab:arch, A41): pre-norm blocks, causal, 2.16M parameters.

Token and position embeddings start at a standard deviation of 0.02, everything else as PyTorch has it. Words and
special tokens are numbered in `fedgmr/tasks/words.py`.
"""

import torch
from torch import Tensor, nn

from fedgmr.tasks.words import TOKENS

HEAD = "head.weight"
EMBEDDING_STD = 0.02
_WIDTH, _HEADS, _HIDDEN = 96, 4, 384


class Transformer2L(nn.Module):
    """Predicts the next token at every position of [batch, at most `positions`] tokens."""

    def __init__(self, vocabulary: int = TOKENS, *, positions: int = 128, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, _WIDTH)
        self.positions = nn.Embedding(positions, _WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Block(dropout) for _ in range(2))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, vocabulary, bias=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=EMBEDDING_STD)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, length, vocabulary]."""
        length, device = tokens.shape[1], tokens.device
        future = torch.ones((length, length), dtype=torch.bool, device=device).triu(1)
        x = self.dropout(self.tokens(tokens) + self.positions(torch.arange(length, device=device)))
        for block in self.blocks:
            x = block(x, future)
        logits: Tensor = self.head(self.norm(x))
        return logits


class _Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each normalised before and added to the stream after."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(_WIDTH)
        self.attention = nn.MultiheadAttention(_WIDTH, _HEADS, dropout=dropout, batch_first=True)
        self.feed_norm = nn.LayerNorm(_WIDTH)
        self.feed = nn.Sequential(nn.Linear(_WIDTH, _HIDDEN), nn.GELU(), nn.Linear(_HIDDEN, _WIDTH))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, future: Tensor) -> Tensor:
        """The stream [batch, length, width] after the block; `future` [length, length] is what must not be seen."""
        normed = self.attention_norm(x)
        attended, _ = self.attention(normed, normed, normed, attn_mask=future, need_weights=False, is_causal=True)
        x = x + self.dropout(attended)
        fed: Tensor = x + self.dropout(self.feed(self.feed_norm(x)))
        return fed
