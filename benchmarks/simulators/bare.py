"""FedAvg as a plain PyTorch loop, no framework: what a careful user would write by hand.

One model for all clients; the global weights are copied in, trained, and added to a running mean.
"""

from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from workload import Setting, Stopped, Turns, flat


def train_client(
    model: nn.Module, images: Tensor, labels: Tensor, batches: Tensor, *, rate: float, seed: int | None
) -> None:
    """SGD steps in place, one per row of `batches`."""
    parameters = list(model.parameters())
    if seed is not None:
        torch.default_generator.manual_seed(seed)
    for chosen in batches:
        loss = cross_entropy(model(images[chosen]), labels[chosen])
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-rate)


class Federation:
    """A model, its data and the rounds of the plan."""

    def __init__(self, setting: Setting, *, dropout: bool) -> None:
        plan, device = setting.plan, setting.device
        self.plan, self.round = plan, 0
        self.seeded = dropout and device == "cpu"
        self.images, self.labels = plan.images(setting.layout, device), plan.labels(device)
        self.samples = torch.from_numpy(plan.samples).to(device)
        self.model = plan.model(setting.layout, dropout).to(device).train()
        self.globals = [p.detach().clone() for p in self.model.parameters()]

    @torch.no_grad()
    def run_round(self) -> None:
        """Train the cohort of the next round and average; clients count by samples, all the same number here."""
        parameters = list(self.model.parameters())
        share = 1 / len(self.plan.clients[self.round])
        mean = [torch.zeros_like(p) for p in parameters]
        for i, batches in enumerate(self.samples[self.round]):
            torch._foreach_copy_(parameters, self.globals)
            seed = int(self.plan.seeds[self.round, i]) if self.seeded else None
            with torch.enable_grad():
                train_client(self.model, self.images, self.labels, batches, rate=self.plan.rate, seed=seed)
            torch._foreach_add_(mean, parameters, alpha=share)
        self.globals = mean
        self.round += 1


def main() -> None:
    setting = Setting.parse()
    setting.tf32(False)
    federation = Federation(setting, dropout=setting.gate_dropout)
    for _ in range(setting.gate):
        federation.run_round()
    torch._foreach_copy_([p.data for p in federation.model.parameters()], federation.globals)
    setting.passed_gate(flat(federation.model))
    setting.tf32(True)
    federation, turns = Federation(setting, dropout=True), Turns(setting.device)
    turns.wait()
    while True:
        federation.run_round()
        turns.after_round()


if __name__ == "__main__":
    with suppress(Stopped):
        main()
