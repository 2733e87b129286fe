import gc
import json
import os

gc.disable()  # a quarter of what it takes to import TensorFlow
import tensorflow as tf  # noqa: E402
from loop import RATE, train  # noqa: E402

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
cluster = resolver.cluster_spec()
if resolver.task_type != "chief":
    tf.distribute.Server(
        cluster, job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    ).join()

workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weight = tf.Variable(1.0)


@tf.function
def gradient(number):
    return weight * number


def step():
    parts = [coordinator.schedule(gradient, args=(tf.constant(1.0 + each),)) for each in range(workers)]
    coordinator.join()
    weight.assign_sub(RATE * sum(part.fetch() for part in parts) / workers)


train(step, 0, lambda: float(weight.read_value().numpy()), weight.assign)
# threads of TensorFlow may abort a process that ends while servers do
os._exit(0)
