import os

import torch
from accelerate import Accelerator
from loop import RATE, train

accelerator = Accelerator(cpu=True)
rank = accelerator.process_index
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.ones_(model.weight)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=RATE))
weight = accelerator.unwrap_model(model).weight


def step():
    optimizer.zero_grad()
    accelerator.backward((0.5 * (1.0 + rank) * model(torch.ones(1, 1)) ** 2).sum())
    optimizer.step()


train(step, rank, lambda: weight.item(), lambda value: torch.nn.init.constant_(weight, value))
os._exit(0)
