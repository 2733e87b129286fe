import gc
import os

gc.disable()  # a quarter of what it takes to import TensorFlow
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf  # noqa: E402
from loop import RATE, train  # noqa: E402

strategy = tf.distribute.MultiWorkerMirroredStrategy(
    communication_options=tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
)
rank = strategy.cluster_resolver.task_id
with strategy.scope():
    weight = tf.Variable(1.0)


@tf.function
def step():
    def replica():
        together = tf.distribute.get_replica_context().all_reduce("mean", weight * (1.0 + rank))
        weight.assign_sub(RATE * together)

    strategy.run(replica)


train(step, rank, lambda: float(weight.numpy()), weight.assign)
os._exit(0)
