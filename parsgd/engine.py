"""The programs of a run: what workers share, compiled rounds, readout and traffic."""

import functools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from parsgd import comm, placement, spmd, traffic
from parsgd.core import (
    Params,
    Phase,
    State,
    TrainState,
    init_state,
    mean_readout,
    no_sync,
    run_round,
)
from parsgd.data.order import Order
from parsgd.placement import Placement
from parsgd.tasks import Batch, Task

STEPS_PER_DISPATCH = 1024
INDICES_PER_DISPATCH = 1 << 22
REHEARSAL_BYTES = 1 << 28  # a larger state is not copied for the sake of timing


class Outcome(NamedTuple):
    """What some rounds gave.

    Attributes:
        state: All workers' state.
        losses: Training loss of each worker and local step, ``[W, rounds, H]``.
        spread: The workers' distance before the last synchronisation, see
            `parsgd.core.spread`.
        seconds: From dispatch to completion.
    """

    state: TrainState
    losses: np.ndarray
    spread: float
    seconds: float


class Engine:
    """Runs rounds of an algorithm's phases on W workers.

    Args:
        task: The task.
        phases: The algorithm's phases.
        order: Which examples the workers see; gives W and b.
        kind: Kind of placement.
        devices: Devices to use, see `parsgd.place`.
        micro_batches: Parts that each worker's batch is split into.
    """

    def __init__(
        self,
        task: Task,
        phases: Sequence[Phase],
        *,
        order: Order,
        kind: str = "auto",
        devices: int | Sequence[int] | None = None,
        micro_batches: int = 1,
    ):
        self.task, self.phases = task, tuple(phases)
        self.workers, self.worker_batch = order.workers, order.worker_batch
        self.micro_batches = micro_batches
        self._weighted = order.indices(0, 0)[1] is not None
        self.compile_seconds = 0.0
        self._programs: dict[tuple, Any] = {}
        # Where devices are made out of cores, make them before the backend starts.
        placement.prepare(devices)
        key = jax.random.key(0)
        self._init_spec = (*jax.eval_shape(task.init, key), jax.eval_shape(lambda: key))
        self._spec = jax.eval_shape(self._init_worker, *self._init_spec)
        self._union = self._union_allowed()
        self.shared, identical = self._sharing()
        self.placement: Placement = placement.place(
            self.workers, kind=kind, devices=devices, identical=identical
        )
        self.identical = identical
        leaves = jax.tree.leaves(self._spec.params)
        self.parameters = sum(x.size for x in leaves)
        self.parameter_bytes = sum(x.size * x.dtype.itemsize for x in leaves)

    # What one worker does.

    def _init_worker(self, params: Params, model: State, key: jax.Array) -> TrainState:
        return init_state(self.phases[0].strategy, params, model, key)

    def _round(self, phase: int, state, x, y, index, weight, measure=None):
        def batch(at):
            rows, w = at
            # Indices come from the data order, which stays within the split.
            read = functools.partial(jnp.take, indices=rows, axis=0, mode="clip")
            return Batch(read(x), read(y), w)

        return run_round(
            self.phases[phase].strategy,
            self.task.loss,
            state,
            batch,
            (index, weight),
            micro_batches=self.micro_batches,
            measure=measure,
            union=self._union,
        )

    def _union_allowed(self) -> bool:
        """Whether lanes' batches may be one: no state, no randomness, no coupling."""
        if not self.task.separable or jax.tree.leaves(self._spec.model):
            return False
        x, y, index, weight = self._round_spec(1)
        rows = index.shape[1:]
        x, y = (jax.ShapeDtypeStruct(rows + a.shape[1:], a.dtype) for a in (x, y))
        if weight is not None:
            weight = jax.ShapeDtypeStruct(rows, weight.dtype)
        batch: Any = Batch(x, y, weight)  # type: ignore[arg-type]
        key = jax.eval_shape(lambda: jax.random.split(jax.random.key(0)))
        args = (self._spec.params, self._spec.model, batch, key)
        # With nothing but the key depending on the lane, does the loss?
        return spmd.shared_outputs(self.task.loss, 2, args, (True, True, True, False))[
            0
        ]

    def _rounds(self, phase: int, state, x, y, index, weight, count):
        """The first ``count`` rounds of ``index [R, H, b]``."""

        def body(r, carry):
            state, losses, _ = carry
            rows, w = jax.tree.map(lambda a: a[r], (index, weight))
            measure = None if self.identical else r == count - 1
            state, values, apart = self._round(phase, state, x, y, rows, w, measure)
            return state, losses.at[r].set(values), apart

        losses = jnp.full(index.shape[:2], jnp.nan, jnp.float32)
        return lax.fori_loop(0, count, body, (state, losses, jnp.float32(0)))

    # What workers share.

    def _round_spec(self, local_steps: int) -> tuple:
        """Abstract arguments of one worker's round, without the state."""
        x, y = (
            jax.ShapeDtypeStruct(a.shape, jax.dtypes.canonicalize_dtype(a.dtype))
            for a in self.task.data.train
        )
        slots = (local_steps, self.worker_batch)
        index = jax.ShapeDtypeStruct(slots, jnp.int32)
        weight = jax.ShapeDtypeStruct(slots, jnp.float32) if self._weighted else None
        return x, y, index, weight

    def _stored(self, spec: Any, shared: Any) -> Any:
        """One worker's abstract arrays as they are stored for all workers."""

        def leaf(same, s):
            shape = s.shape if same else (self.workers, *s.shape)
            return jax.ShapeDtypeStruct(shape, s.dtype)

        return jax.tree.map(leaf, shared, spec)

    def _sharing(self) -> tuple[TrainState, bool]:
        """What the workers share between rounds, and if parameters always are.

        A leaf is shared if it starts equal and a round of any phase keeps it equal,
        given what is shared: the largest set for which that holds, found from above.
        """
        outputs = functools.partial(spmd.shared_outputs, workers=self.workers)
        x, y, index, weight = self._round_spec(1)
        rest = self._stored(
            (index, weight), jax.tree.map(lambda _: False, (index, weight))
        )
        both = functools.partial(jax.tree.map, lambda a, b: a and b)

        def after(phase, shared, strategy=None):
            def fn(state, x, y, index, weight):
                return self._round(phase, state, x, y, index, weight)[0]

            args = (self._stored(self._spec, shared), x, y, *rest)
            return outputs(fn, args=args, shared=(shared, True, True, False, False))

        shared = outputs(
            self._init_worker, args=self._init_spec, shared=(True, True, True)
        )
        while True:
            new = shared
            for phase in range(len(self.phases)):
                new = both(new, after(phase, shared))
            if new == shared:
                break
            shared = new
        before_sync = []
        for phase, item in enumerate(self.phases):
            if item.strategy.sync is no_sync:
                before_sync.append(shared)
                continue
            kept = self.phases
            alone = item._replace(strategy=item.strategy._replace(sync=no_sync))
            self.phases = (*kept[:phase], alone, *kept[phase + 1 :])
            before_sync.append(after(phase, shared))
            self.phases = kept
        identical = all(all(jax.tree.leaves(s.params)) for s in before_sync)
        return shared, identical

    # What the run calls.

    def init(self, key: jax.Array) -> TrainState:
        """All workers' state at step 0; also moves the data to the devices."""
        self._data = spmd.put(tuple(self.task.data.train), self.placement, (True, True))
        init_key, run_key = jax.random.split(key)
        # On one device and apart from the algorithm: the same program in every job of
        # a sweep, so the compilation cache has it.
        start = time.perf_counter()
        params, model = jax.jit(self.task.init)(init_key)
        self.compile_seconds += time.perf_counter() - start
        same = (True, True, True)
        args = spmd.put((params, model, run_key), self.placement, same)
        run = self._compile(self._init_worker, same, self.shared, args, "init")
        return spmd.put(run(*args), self.placement, self.shared)

    def capacity(self, local_steps: int) -> int:
        """Most rounds of H local steps that one dispatch can hold."""
        per_round = self.workers * local_steps * self.worker_batch
        fits = min(STEPS_PER_DISPATCH // local_steps, INDICES_PER_DISPATCH // per_round)
        return max(1, fits)

    def run(
        self,
        state: TrainState,
        phase: int,
        index: np.ndarray,
        weight: np.ndarray | None,
        count: int,
    ) -> Outcome:
        """Run ``count`` rounds and wait for them.

        Args:
            state: Donated: its buffers are reused.
            phase: Index of the phase.
            index: ``[W, R, H, b]``, of which the first ``count`` of R rounds are run.
            weight: Same shape, or None.
            count: Rounds to run.

        """
        batches = spmd.put((index, weight), self.placement, (False, False))
        n = spmd.put(jnp.int32(count), self.placement, True)
        args = (state, *self._data, *batches, n)
        key = (phase, *index.shape[1:3])
        if key not in self._programs:
            self._programs[key] = self._compile(
                functools.partial(self._rounds, phase),
                (self.shared, True, True, False, False, True),
                (self.shared, False, True),
                args,
                "round",
                donate=(0,),
            )
            self._rehearse(self._programs[key], args)
        jax.block_until_ready(args)
        start = time.perf_counter()
        state, losses, apart = self._programs[key](*args)
        # Dispatching ahead of a result deadlocks collectives between CPU devices.
        jax.block_until_ready(state)
        seconds = time.perf_counter() - start
        return Outcome(state, np.asarray(losses)[:, :count], float(apart), seconds)

    def _rehearse(self, program: Any, args: tuple) -> None:
        """Run one round on a copy: what only a first call pays is not training time."""
        state = args[0]
        size = sum(x.nbytes for x in jax.tree.leaves(state))
        if size <= REHEARSAL_BYTES and self.placement.kind != "debug":
            start = time.perf_counter()
            copy = spmd.put(jax.tree.map(jnp.copy, state), self.placement, self.shared)
            one = spmd.put(jnp.int32(1), self.placement, True)
            jax.block_until_ready(program(copy, *args[1:-1], one))
            self.compile_seconds += time.perf_counter() - start

    def readout(self, state: TrainState, phase: int) -> tuple[Params, State]:
        """The model to evaluate, and its other variables averaged over the workers."""
        strategy = self.phases[phase].strategy
        same = all(jax.tree.leaves(self.shared.params))

        def fn(state):
            params = state.params
            if not (same and strategy.readout is mean_readout):
                params = strategy.readout(params, state.strategy)
            return params, comm.mean(state.model)

        key = (phase, "readout")
        if key not in self._programs:
            args = (self._stored(self._spec, self.shared),)
            out = spmd.shared_outputs(fn, self.workers, args, (self.shared,))
            if not all(jax.tree.leaves(out)):
                raise ValueError(
                    "the strategy's readout differs between workers: average it, as in "
                    "comm.mean(params)"
                )
            self._programs[key] = self._compile(
                fn, (self.shared,), out, (state,), "readout"
            )
        out = self._programs[key](state)
        # One device's copy: evaluation need not run on all of them.
        return jax.tree.map(lambda x: x.addressable_shards[0].data, out)

    def traffic(self, phase: int, local_steps: int) -> traffic.Traffic:
        """What one worker sends in one round of H local steps."""

        def fn(state, x, y, index, weight):
            return self._round(phase, state, x, y, index, weight)

        args = (self._spec, *self._round_spec(local_steps))
        return traffic.trace(fn, self.workers, *args)

    def _compile(self, fn, shared_in, shared_out, args, name, donate=()):
        start = time.perf_counter()
        out = spmd.compiled(
            fn, self.placement, shared_in, shared_out, args, donate=donate, name=name
        )
        self.compile_seconds += time.perf_counter() - start
        return out

    def check_replicas(self, state: TrainState) -> None:
        """See `parsgd.spmd.check_replicas`."""
        spmd.check_replicas(state, self.shared, self.placement)
