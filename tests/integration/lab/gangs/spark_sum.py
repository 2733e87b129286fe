import os

from loop import RATE, train
from pyspark.sql import SparkSession

context = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate().sparkContext
workers = int(os.environ["WORKERS"])
weight = [1.0]


def step():
    now = weight[0]
    numbers = context.parallelize(range(1, workers + 1), workers)
    weight[0] -= RATE * numbers.map(lambda number: number * now).sum() / workers


train(step, 0, lambda: weight[0], lambda value: weight.__setitem__(0, value))
