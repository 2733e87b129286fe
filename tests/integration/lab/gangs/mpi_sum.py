from loop import RATE, train
from mpi4py import MPI

world = MPI.COMM_WORLD
weight = [1.0]


def step():
    weight[0] -= RATE * world.allreduce(weight[0] * (1.0 + world.rank)) / world.size


train(step, world.rank, lambda: weight[0], lambda value: weight.__setitem__(0, value))
