"""Which examples each worker sees at each step: a pure function of the step.

With ``B = W * b`` the global batch, epoch ``e`` has one permutation ``p_e`` of all
``N`` examples, drawn from ``(seed, e)``, over all workers together::

    global batch s of the epoch  = p_e[s * B : (s + 1) * B]
    worker w's share of it       = its slots [w * b : (w + 1) * b]

So shards are disjoint, every example comes once per epoch, synchronous SGD sees the
same samples for every W at equal B, and a resumed run needs only its step.

With fixed shards each worker permutes its own examples in each epoch, drawn from
``(seed, e, w)``, and takes b of them per step.
"""

import functools
import itertools
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from parsgd.data.shards import Shards, check_shards, fixed_shards, shard_starts
from parsgd.errors import UserError
from parsgd.words import counted

LARGEST_SEED = 2**32 - 1
MANY = 1 << 20  # examples, beyond which fewer permutations are cached
Tail = Literal["drop", "weight"]


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of a run: ``batch = f(seed, epoch, step, worker)``.

    Permutations are cached for a while, but only to save time: the fields alone decide.
    ``N`` is rarely a multiple of ``B``; ``tail`` says what becomes of the rest ``n``:

    - ``"drop"``: those ``n`` examples sit out this epoch (in the next one others do, as
      the permutation changes).
    - ``"weight"``: they form a last, partial global batch. Its slots carry the weight
      ``B / n``, the remaining slots are padded with the epoch's first examples at
      weight 0, so the mean over all ``B`` slots of ``weight * loss`` is exactly the
      mean over the ``n`` examples, and batch statistics still see real data. This
      holds where gradients are averaged in every step; with local steps each worker
      weights its part of that batch by ``B / n``.

    Attributes:
        examples: N, the size of the training set.
        workers: W, at least 1.
        worker_batch: b, examples per worker and step, at least 1.
        seed: 0 to 2**32 - 1; with the epoch it determines the permutation.
        tail: ``"drop"`` or ``"weight"``.
        shards: ``"reshuffled"``: every epoch deals all examples out anew.
            ``"fixed"``: each worker keeps its part, see `parsgd.data.fixed_shards`.
        label_skew: Share of the examples that fixed shards sort by label, 0 to 1.
        labels: Class of each example, ``[N]``, for a ``label_skew`` above 0.

    Raises:
        UserError: A size is below 1, the global batch exceeds the data, the seed is out
            of range, or ``tail``, ``shards`` or ``label_skew`` cannot be used.

    Example:
        >>> order = Order(examples=10, workers=2, worker_batch=2)
        >>> order.steps_per_epoch, order.dropped
        (2, 2)
        >>> order.describe()
        '2 of 10 samples dropped per epoch (global_batch 4)'
        >>> index, weight = order.indices(start=0, count=4)  # two epochs
        >>> index.shape, weight is None
        ((4, 2, 2), True)
    """

    examples: int
    workers: int = 1
    worker_batch: int = 1
    seed: int = 0
    tail: Tail = "drop"
    shards: Shards = "reshuffled"
    label_skew: float = 0.0
    labels: np.ndarray | None = field(default=None, repr=False, compare=False)

    def __post_init__(self):
        for key in ("examples", "workers", "worker_batch"):
            if getattr(self, key) < 1:
                raise UserError(f"{key}={getattr(self, key)}: it must be at least 1.")
        if self.seed < 0:
            raise UserError(f"seed={self.seed}: it must be 0 or more.")
        if self.seed > LARGEST_SEED:
            raise UserError(
                f"seed={self.seed}: the largest is {LARGEST_SEED}. JAX's keys take 32 "
                "bits of it, so that larger ones would repeat the parameters of others."
            )
        if self.tail not in ("drop", "weight"):
            raise UserError(f"tail={self.tail!r}: choose 'drop' or 'weight'.")
        check_shards(self.shards, self.label_skew, self.labels)
        if self.global_batch > self.examples:
            raise UserError(
                f"workers={self.workers} x worker_batch={self.worker_batch} is a "
                f"global_batch of {self.global_batch}, more than the "
                f"{counted(self.examples, 'training example')}: {_advice(self)}."
            )

    @property
    def global_batch(self) -> int:
        """B = W * b, the examples of one step of all workers."""
        return self.workers * self.worker_batch

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of each worker in one epoch."""
        full, rest = divmod(self.examples, self.global_batch)
        return full + (rest > 0 and self.tail == "weight")

    @property
    def samples_per_epoch(self) -> int:
        """Distinct examples used in one epoch, by all workers together."""
        return self.examples - self.dropped

    @property
    def dropped(self) -> int:
        """Examples that sit out each epoch."""
        return self.examples % self.global_batch if self.tail == "drop" else 0

    @property
    def fixed(self) -> bool:
        """Whether each worker keeps its shard."""
        return self.shards == "fixed"

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """All examples, fixed shard by fixed shard."""
        return fixed_shards(
            self.examples,
            seed=self.seed,
            label_skew=self.label_skew,
            labels=self.labels,
        )

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """Where in `rows` each worker's shard starts, and the end: ``[W + 1]``."""
        return shard_starts(self.examples, self.workers)

    def describe(self) -> str:
        """One line for the start of a run: what happens to the last partial batch."""
        batch, rest = self.global_batch, self.examples % self.global_batch
        samples = counted(self.examples, "sample")
        if rest == 0:
            return f"all {samples} in every epoch (global_batch {batch})"
        if self.tail == "drop":
            return f"{rest} of {samples} dropped per epoch (global_batch {batch})"
        return (
            f"all {samples} in every epoch; its last batch holds {rest} of {batch}, "
            f"weighted exactly (global_batch {batch})"
        )

    def indices(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray | None]:
        """The examples of steps ``start .. start + count - 1``, over any epochs.

        Args:
            start: First optimizer step, counted from the beginning of the run.
            count: Number of steps.

        Returns:
            ``index [count, W, b] int32`` into the training split, and
            ``weight [count, W, b] float32``, or None when no slot is ever padded.

        Raises:
            UserError: ``start`` or ``count`` is negative.
        """
        if start < 0 or count < 0:
            raise UserError(f"start={start}, count={count}: both must be 0 or more.")
        per_epoch = self.steps_per_epoch
        index = np.empty((count, self.global_batch), np.int32)
        for epoch in range(start // per_epoch, -(-(start + count) // per_epoch)):
            first = max(start, epoch * per_epoch)
            last = min(start + count, (epoch + 1) * per_epoch)
            batches = self._epoch(epoch)
            index[first - start : last - start] = batches[
                first - epoch * per_epoch : last - epoch * per_epoch
            ]
        slots = (count, self.workers, self.worker_batch)
        rest = self.examples % self.global_batch
        if self.tail == "drop" or rest == 0:
            return index.reshape(slots), None
        weight = np.ones((count, self.global_batch), np.float32)
        partial = np.arange(start, start + count) % per_epoch == per_epoch - 1
        weight[partial, :rest] = self.global_batch / rest
        weight[partial, rest:] = 0.0
        if self.fixed:
            left = np.diff(self.starts) - (per_epoch - 1) * self.worker_batch
            real = np.arange(self.worker_batch) < left[:, None]
            weight[partial] = real.reshape(-1) * (self.global_batch / rest)
            return index.reshape(slots), weight.reshape(slots)
        # Dealt like cards, so that every worker gets its share of the last examples.
        turns = slots[:0:-1]
        for array in (index, weight):
            dealt = array[partial].reshape(-1, *turns).swapaxes(1, 2)
            array[partial] = dealt.reshape(-1, self.global_batch)
        return index.reshape(slots), weight.reshape(slots)

    def _epoch(self, epoch: int) -> np.ndarray:
        """One epoch's batches, ``[steps_per_epoch, B]``."""
        if self.fixed:
            return self._epoch_of_shards(epoch)
        order = _permutation(self.examples, self.seed, epoch)
        size = self.steps_per_epoch * self.global_batch
        if size > self.examples:
            order = np.concatenate([order, order[: size - self.examples]])
        return order[:size].reshape(-1, self.global_batch)

    def _epoch_of_shards(self, epoch: int) -> np.ndarray:
        known = self._epochs
        if epoch in known:
            return known[epoch]
        steps, b = self.steps_per_epoch, self.worker_batch
        batches = np.empty((steps, self.workers, b), np.int32)
        for w, (start, end) in enumerate(itertools.pairwise(self.starts)):
            order = _permutation(int(end - start), self.seed, epoch, w)
            # A padded slot holds one of the shard's first.
            own = self.rows[start:end][np.resize(order, steps * b)]
            batches[:, w] = own.reshape(steps, b)
        if len(known) > 1:
            del known[next(iter(known))]
        known[epoch] = batches.reshape(steps, self.global_batch)
        return known[epoch]

    @functools.cached_property
    def _epochs(self) -> dict[int, np.ndarray]:
        """The last two epochs of fixed shards that were requested."""
        return {}


def shared_batch(global_batch: int, workers: int) -> int:
    """The batch of each worker that makes up ``global_batch``.

    Raises:
        UserError: It is not a positive multiple of ``workers``; the message names the
            nearest valid values.

    Example:
        >>> shared_batch(8, workers=4)
        2
        >>> shared_batch(10, workers=4)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        parsgd.errors.UserError: global_batch=10 cannot be shared equally by ...
    """
    if workers < 1 or global_batch < 1:
        raise UserError(
            f"workers={workers}, global_batch={global_batch}: both must be at least 1."
        )
    if global_batch % workers:
        raise UserError(
            f"global_batch={global_batch} cannot be shared equally by "
            f"workers={workers}: use {_nearest(global_batch, workers)}."
        )
    return global_batch // workers


def _permutation(examples: int, seed: int, *key: int) -> np.ndarray:
    return (_few if examples > MANY else _several)(examples, seed, *key)


def _drawn(examples: int, seed: int, *key: int) -> np.ndarray:
    stream = np.random.SeedSequence(seed, spawn_key=key)
    order = np.random.Generator(np.random.Philox(stream)).permutation(
        np.arange(examples, dtype=np.int32)
    )
    order.setflags(write=False)
    return order


# A dispatch of several rounds and the next one ask for the same few epochs.
_several = functools.lru_cache(maxsize=16)(_drawn)
_few = functools.lru_cache(maxsize=2)(_drawn)


def _advice(order: Order) -> str:
    fewer = max(1, order.examples // order.worker_batch)
    if order.workers > order.examples:
        smaller = "" if fewer > 1 else " and worker_batch=1"
        return f"use at most workers={fewer}{smaller}"
    most = order.examples // order.workers
    advice = f"use worker_batch={most} or less with {counted(order.workers, 'worker')}"
    if order.worker_batch <= order.examples:
        advice += f", or at most workers={fewer}"
    return advice


def _nearest(global_batch: int, workers: int) -> str:
    """The nearest valid values: batches first, then worker counts."""
    lower = global_batch // workers * workers
    batches = [str(size) for size in (lower, lower + workers) if size > 0]
    divisors = [w for w in range(1, global_batch + 1) if global_batch % w == 0]
    below = [w for w in divisors if w < workers][-1:]
    above = [w for w in divisors if w > workers][:1]
    counts = " or ".join(map(str, below + above))
    return f"global_batch={' or '.join(batches)}, or workers={counts}"
