import os

import ray
from loop import RATE, train

ray.init(log_to_driver=False)
workers = int(os.environ["WORKERS"])
weight = [1.0]


@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
class Part:
    def times(self, number, weight):
        return number * weight


parts = [Part.remote() for _ in range(workers)]


def step():
    numbers = [part.times.remote(number, weight[0]) for number, part in enumerate(parts, 1)]
    weight[0] -= RATE * sum(ray.get(numbers)) / workers


train(step, 0, lambda: weight[0], lambda value: weight.__setitem__(0, value))
