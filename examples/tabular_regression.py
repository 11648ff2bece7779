"""Tabular regression: electricity use of houses in kWh, measured by the mean absolute error. Generated data, seconds.

Ten clients are ten towns on links of very different speed. The metric has a unit and less of it is better; progress,
report and tables follow it. Run it with `python examples/tabular_regression.py`; from the command line, in this
directory: `python -m fedgmr run quickstart task=tabular_regression:houses partition=by_user`.
"""

import torch
from torch import nn
from torch.nn import functional

import fedgmr

TOWNS = 10


def houses(samples: int = 5000, seed: int = 0) -> fedgmr.Task:
    """Daily use from size, people, age and outdoor temperature; every town has a climate of its own."""
    draw = torch.Generator().manual_seed(seed)
    town = torch.randint(TOWNS, (samples,), generator=draw)
    size, people, age, weather = torch.rand(4, samples, generator=draw)
    temperature = 30 * weather - town  # °C
    use = 5 + 12 * size + 6 * people + 8 * size * (18 - temperature).clamp(min=0) / 18 * (0.5 + age)
    use += torch.randn(samples, generator=draw)  # kWh that nobody can predict: an error of 0.8 is left
    inputs = torch.stack([size, people, age, temperature / 30], dim=1)
    targets = use.unsqueeze(1)  # the shape of the outputs
    return fedgmr.Task(
        name="houses",
        title="Electricity of houses",
        model=lambda: nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)),
        train=(inputs[:-1000], targets[:-1000]),
        test=(inputs[-1000:], targets[-1000:]),
        users=town[:-1000],
        loss=functional.mse_loss,
        metric=fedgmr.metrics.mae("kWh", digits=2),
        also=(fedgmr.metrics.rmse("kWh", digits=2),),
    )


def main() -> None:
    """Simulate the ten towns and print how the error falls."""
    result = fedgmr.simulate(
        houses(),
        method=fedgmr.named_method("fedgmr", {"interval": 10, "restoration": {"patience": 2}}),
        fleet=fedgmr.FleetSettings(name="high", scale="model"),
        seconds=1500,
        partition="by_user",
        training={"learning_rate": 0.005},
    )
    print(" seconds  MAE (kWh)  RMSE (kWh)  mean density")
    for row in result.history:
        density = sum(row["density"]) / len(row["density"])
        print(f"{row['seconds']:8.0f}  {row['accuracy']:9.2f}  {row['metrics']['RMSE']:10.2f}  {density:12.2f}")
    print(f"The best was {result.reading.text(min(result.history['MAE']))}.")


if __name__ == "__main__":
    main()
