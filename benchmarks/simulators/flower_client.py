"""What a Flower client of the workload does; a module of its own, because Ray's actors import it by name."""

from functools import cache
from pathlib import Path

import torch
from bare import train_client
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from workload import Plan, flat, set_flat


@cache
def workplace(root: str, layout: str, dropout: bool, threads: int) -> tuple:
    """What an actor keeps between messages."""
    torch.set_num_threads(threads)
    plan = Plan.read(Path(root))
    return plan, plan.model(layout, dropout).train(), plan.images(layout), plan.labels()


client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Take the weights in, train, send them back."""
    config = message.content["config"]
    plan, model, images, labels = workplace(config["root"], config["layout"], config["dropout"], config["threads"])
    set_flat(model, torch.from_numpy(message.content["weights"]["flat"].numpy().copy()))
    place = config["round"], config["place"]
    train_client(
        model,
        images,
        labels,
        torch.from_numpy(plan.samples[place]),
        rate=plan.rate,
        seed=int(plan.seeds[place]) if config["dropout"] else None,
    )
    content = RecordDict({"weights": ArrayRecord({"flat": Array(flat(model).numpy())})})
    return Message(content, reply_to=message)
