"""The Flower client of the workload, in a module of its own because Ray's actors import it by name."""

from functools import cache
from pathlib import Path

import torch
from bare import train_client
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from workload import Plan, flat, set_flat


@cache
def workplace(root: str, double: bool, layout: str, threads: int) -> tuple:
    """The data that an actor keeps between messages; the gate is computed in float64 and without dropout."""
    torch.set_num_threads(threads)
    plan = Plan.read(Path(root), torch.float64 if double else torch.float32)
    return plan, plan.model(layout, not double).train(), plan.images(layout), plan.labels()


client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Load the weights, train, send them back."""
    config = message.content["config"]
    plan, model, images, labels = workplace(config["root"], config["double"], config["layout"], config["threads"])
    set_flat(model, torch.from_numpy(message.content["weights"]["flat"].numpy().copy()))
    batches = torch.from_numpy(plan.samples[config["round"], config["place"]])
    train_client(model, images, labels, batches, plan.rate)
    content = RecordDict({"weights": ArrayRecord({"flat": Array(flat(model).numpy())})})
    return Message(content, reply_to=message)
