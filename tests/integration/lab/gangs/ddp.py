import os

import torch
import torch.distributed as dist
from loop import RATE, train

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
weight = model.module.weight
torch.nn.init.ones_(weight)


def step():
    model.zero_grad()
    (0.5 * (1.0 + rank) * model(torch.ones(1, 1)) ** 2).sum().backward()
    with torch.no_grad():
        weight.sub_(RATE * weight.grad)


train(step, rank, lambda: weight.item(), lambda value: torch.nn.init.constant_(weight, value))
os._exit(0)
