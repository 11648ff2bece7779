"""A table of Hugging Face's `datasets` and a small model of `transformers`, made from a config: nothing is downloaded.

Run it with `python examples/hugging_face.py`, where `pip install datasets transformers` has been given. Sentences are
about weather or food, and each has a writer. The table's columns become the model's keyword arguments, and the column
`writer` says whose sample each is.
"""

import random
from typing import Any

import datasets
import torch
import transformers

import fedgmr

TOPICS = (
    ["rain", "snow", "wind", "storm", "cloud", "sun", "fog", "hail", "frost", "thunder"],
    ["bread", "soup", "rice", "apple", "cheese", "salad", "noodles", "cake", "tea", "pasta"],
)
OTHERS = ["the", "a", "some", "we", "saw", "had", "liked", "today", "again", "with", "and", "more", "very", "of", "it"]
WORDS = {word: number for number, word in enumerate(["[PAD]", *OTHERS, *TOPICS[0], *TOPICS[1]])}
LENGTH = 12


def sentences(count: int, seed: int) -> datasets.Dataset:
    """Sentences with their topic and their writer, who prefers one of the topics."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        writer = number % 20
        label = int(draw.random() < 0.1 + 0.04 * writer)
        words = draw.choices(OTHERS, k=draw.randint(4, LENGTH - 2)) + draw.choices(TOPICS[label], k=2)
        draw.shuffle(words)
        rows.append({"text": " ".join(words), "label": label, "writer": f"writer {writer}"})
    return datasets.Dataset.from_list(rows)


def encode(row: dict[str, Any]) -> dict[str, list[int]]:
    """Words as numbers, filled up to one length."""
    numbers = [WORDS[word] for word in row["text"].split()]
    padding = LENGTH - len(numbers)
    return {"input_ids": numbers + [0] * padding, "attention_mask": [1] * len(numbers) + [0] * padding}


def net() -> torch.nn.Module:
    """A BERT of two layers; its output has `logits`, which the loss and the metric are given."""
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        num_labels=2,
    )
    model: torch.nn.Module = transformers.BertForSequenceClassification(config)
    return model


def topics() -> fedgmr.Task:
    """The task: which topic a sentence is about."""
    return fedgmr.Task(
        name="topics",
        model=net,
        train=sentences(2000, seed=0).map(encode),
        test=sentences(400, seed=1).map(encode),
        columns=(("input_ids", "attention_mask"), "label"),
        users="writer",
    )


def main() -> None:
    """Simulate ten clients with the sentences of two writers each."""
    datasets.disable_progress_bars()
    result = fedgmr.simulate(
        topics(),
        fleet=fedgmr.FleetSettings(name="high", scale="model"),
        seconds=200,
        training={"learning_rate": 0.003, "optimizer": {"kind": "adam"}},
        evaluation={"views": "merged"},
        progress=False,
    )
    for row in result.history:
        print(f"{row['seconds']:8.0f}  {row['accuracy']:.3f}")


if __name__ == "__main__":
    main()
