"""parsgd: research on parallel SGD in JAX.

An algorithm is written once, as what one worker does, and runs unchanged on simulated
workers and on devices; what it sends is counted from its own program.

    >>> import optax, parsgd
    >>> run = parsgd.fit(
    ...     parsgd.digits(), parsgd.local_sgd(optax.sgd(0.1)),
    ...     workers=4, local_steps=8, worker_batch=16, epochs=2)
    >>> run.status
    'completed'

Names are imported at their first use (``__init__.pyi`` lists them): the command's help
and lists need no JAX.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"
