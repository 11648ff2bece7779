"""FedAvg as a plain PyTorch loop without a framework, as a careful user would write it.

One model for all clients; the global weights are copied in, trained, and added to a running mean.
"""

from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from workload import Plan, Setting, Stopped, Turns


def train_client(model: nn.Module, images: Tensor, labels: Tensor, batches: Tensor, rate: float) -> None:
    """SGD steps in place, one per row of `batches`."""
    parameters = list(model.parameters())
    for chosen in batches:
        loss = cross_entropy(model(images[chosen]), labels[chosen])
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-rate)


class Federation:
    """A model, its data and the rounds of a plan."""

    def __init__(self, plan: Plan, setting: Setting, *, dropout: bool) -> None:
        self.plan, self.round = plan, 0
        self.images, self.labels = plan.images(setting.layout, setting.device), plan.labels(setting.device)
        self.samples = torch.from_numpy(plan.samples).to(setting.device)
        self.model = plan.model(setting.layout, dropout).to(setting.device).train()
        self.globals = [p.detach().clone() for p in self.model.parameters()]

    @torch.no_grad()
    def run_round(self) -> None:
        """Train the cohort of the next round and average; all clients have the same number of samples."""
        parameters = list(self.model.parameters())
        mean = [torch.zeros_like(p) for p in parameters]
        for batches in self.samples[self.round]:
            torch._foreach_copy_(parameters, self.globals)
            with torch.enable_grad():
                train_client(self.model, self.images, self.labels, batches, self.plan.rate)
            torch._foreach_add_(mean, parameters, alpha=1 / self.plan.cohort)
        self.globals = mean
        self.round += 1


def main() -> None:
    setting = Setting.parse()
    federation = Federation(setting.gate, setting, dropout=False)
    for _ in setting.gate.clients:
        federation.run_round()
    setting.passed_gate(torch.cat([part.reshape(-1) for part in federation.globals]))
    federation, turns = Federation(setting.plan, setting, dropout=True), Turns(setting.device)
    turns.wait()
    while True:
        federation.run_round()
        turns.after_round()


if __name__ == "__main__":
    with suppress(Stopped):
        main()
