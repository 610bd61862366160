"""The interface of a keeper of checkpoints, and the one that keeps nothing."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from parsgd.core import TrainState
from parsgd.training.engine import Engine


class Resumed(NamedTuple):
    """The checkpoint from which a run goes on.

    Attributes:
        state: All workers' state, on the devices.
        meta: What was stored with it.
    """

    state: TrainState
    meta: dict[str, Any]


class Keeper:
    """Keeps nothing: a run without checkpoints.

    Attributes:
        lines: What has changed since the checkpoint, in words.
        changed: The changes that affect what steps compute: key to the values before
            and after.
    """

    def __init__(self):
        self.lines: list[str] = []
        self.changed: dict[str, tuple[Any, Any]] = {}

    def look(self, facts: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Look for a run to go on with, and refuse to if it was another.

        Computes nothing.

        Args:
            facts: What the two must have in common.

        Returns:
            What is stored with its checkpoint, or None if there is none. What has
            changed since is in `lines` and `changed`.
        """

    def restore(self, engine: Engine, key: jax.Array) -> Resumed | None:
        """The newest checkpoint that can be read, or None at the start of a run."""

    def settle(self) -> None:
        """Once nothing can refuse the run: rename what it does not continue from."""

    def limit(self, round: int) -> int | None:
        """Rounds that may be dispatched at once after ``round``; None for any."""

    def dispatched(
        self, round: int, save: Callable[[], None], *, healthy: bool, evaluates: bool
    ) -> None:
        """After a dispatch: save if it is time, and end if asked to.

        Args:
            round: Rounds done.
            save: Calls `save` with what there is to save.
            healthy: Whether the last round's loss was finite; if not, what is on disk
                is better than the state.
            evaluates: Whether an evaluation follows: then `evaluated` saves instead, if
                the loss was finite.
        """

    def evaluated(self, round: int, save: Callable[[], None], *, healthy: bool) -> None:
        """After an evaluation: as `dispatched`, with its record saved too."""

    def finish(self, round: int, save: Callable[[], None], *, healthy: bool) -> None:
        """At the end of the run, even if it has diverged: as `dispatched`."""

    def save(self, state: TrainState, engine: Engine, meta: Mapping[str, Any]) -> None:
        """Begin to write a checkpoint.

        Args:
            state: All workers' state.
            engine: Knows which of it they share.
            meta: What to store with it.
        """
