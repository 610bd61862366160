"""The result of a run, as `parsgd.fit` returns it."""

from typing import Any, NamedTuple

from parsgd.core import Params, State
from parsgd.training.meter import Record


class Run(NamedTuple):
    """What a run reached.

    Attributes:
        status: ``"completed"`` or ``"diverged"``.
        reason: Why it diverged, or None; ``summary["stopped"]`` says what ended it:
            ``"budget"``, ``"target_accuracy"`` or ``"diverged"``.
        history: One record per evaluation, the first at round 0; `fit` lists the keys.
        summary: Sizes, placement, traffic and times of the run.
        readout: The final parameters.
        model_state: Other variables of the model, averaged over the workers.

    Example:
        >>> import optax, parsgd
        >>> run = parsgd.fit(
        ...     parsgd.breast_cancer(), parsgd.local_sgd(optax.sgd(0.1)), workers=4,
        ...     local_steps=5, worker_batch=8, rounds=6)
        >>> run.status, run.summary["stopped"], run.summary["steps"]
        ('completed', 'budget', 30)
        >>> run.history[-1]["test_accuracy"] > 0.9
        True
    """

    status: str
    reason: str | None
    history: list[Record]
    summary: dict[str, Any]
    readout: Params
    model_state: State

    def __repr__(self) -> str:
        """In one line; the arrays alone would take hundreds."""
        last = self.history[-1]
        scores = [
            f"{k}={last[k]:.4g}" for k in ("test_accuracy", "test_loss") if k in last
        ]
        steps, sent = self.summary["steps"], self.summary["bytes"]
        done = f"{self.status}, {steps} steps, {', '.join(scores)}"
        return f"Run({done}, {sent:.4g} bytes sent per worker)"
