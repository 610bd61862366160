"""Data that is not finite where one worker meets it."""

import numpy as np

from parsgd.data.order import Order


def spoiled(task, *, steps, worker, workers, worker_batch, rounds=None):
    """The task with a NaN in what ``worker`` sees in ``steps``, in the first epoch.

    The last row of its batch, so that of several parts only the last is bad.
    """
    del rounds
    x, y = task.data.train
    order = Order(examples=len(x), workers=workers, worker_batch=worker_batch)
    assert max(steps) < order.steps_per_epoch
    index, _ = order.indices(0, max(steps) + 1)
    x = x.copy()
    x[index[[*steps], worker, -1], 0] = np.nan
    return task._replace(data=task.data._replace(train=type(task.data.train)(x, y)))
