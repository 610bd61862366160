"""The programs of a run, compiled for a placement: rounds, readout, traffic."""

import functools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from parsgd import cluster, comm
from parsgd.core import Params, Phase, State, TrainState, mean_readout, spread
from parsgd.data.order import Order
from parsgd.errors import stage
from parsgd.lanes import shared_outputs
from parsgd.placement import spmd
from parsgd.placement.devices import Placement, place, prepare
from parsgd.placement.first import of_the_first
from parsgd.tasks import Task
from parsgd.training.apart import Apart
from parsgd.training.checks import check_readout
from parsgd.training.evaluate import all_finite, no_nan
from parsgd.training.shards import OnDevices
from parsgd.training.turns import Turns
from parsgd.training.worker import Worker

STEPS_PER_DISPATCH = 1024
INDICES_PER_DISPATCH = 1 << 22
REHEARSAL_STEPS = 64  # of a round; a longer one may be a large share of the run
REHEARSAL_BYTES = 1 << 28  # a larger state is not copied just for timing


class Outcome(NamedTuple):
    """What some rounds have produced.

    Attributes:
        state: All workers' state.
        losses: Training loss of each worker and local step, ``[W, rounds, H]``.
        apart: What `Engine.spread` measures how far the workers were apart by, before
            the last synchronisation, if that was asked for.
        seconds: From dispatch to completion.
    """

    state: TrainState
    losses: np.ndarray
    apart: Any
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
        # On CPU devices are made out of cores: make them before the backend starts.
        prepare(devices)
        with cluster.busy():
            self.worker = Worker(task, phases, order=order, micro_batches=micro_batches)
        self.shared = self.worker.shared
        self.placement: Placement = place(
            order.workers,
            kind=kind,
            devices=devices,
            identical=self.worker.identical,
            spread=self.worker.gains_by_devices,
        )
        self._shards = OnDevices(order, self.placement)
        self._turns = Turns(self.worker, self.placement)
        self._apart = Apart(self.worker, self.placement)
        self._programs: dict[Any, Any] = {}
        self.compile_seconds = 0.0
        leaves = jax.tree.leaves(self.worker.spec.params)
        self.parameters = sum(x.size for x in leaves)
        self.parameter_bytes = sum(x.size * x.dtype.itemsize for x in leaves)

    def describe(self) -> str:
        """One line on where the workers are and how they run."""
        how = ""
        if self._turns:
            how = ", lanes one after the other"
        elif self.worker.gradients_in_turn and self.placement.lanes > 1:
            how = ", gradients one after the other"
        return self.placement.describe() + how

    def _rounds(self, phase: int, state, x, y, index, weight, count):
        """Some of the rounds of ``index [R, H, b]``, from the first on.

        ``count`` is a pair: how many to run, and in which to measure the spread (-1:
        in none).
        """
        todo, measured = count

        def body(r, carry):
            state, losses, apart, room = carry
            rows, w = jax.tree.map(lambda a: a[r], (index, weight))
            look = self._apart.look(r == measured, apart)
            lanes = self._turns.lanes(phase, room)
            state, values, apart = self.worker.round(
                phase, state, x, y, rows, w, look, lanes=lanes
            )
            return state, losses.at[r].set(values.astype(losses.dtype)), apart, room

        losses = jnp.full(index.shape[:2], jnp.nan, jnp.float32)
        start = self._apart.start(state.params)
        carry = (state, losses, start, self._turns.room(phase, state))
        return lax.fori_loop(0, todo, body, carry)[:3]

    def init(self, key: jax.Array) -> TrainState:
        """All workers' state at step 0. Also moves the data to the devices."""
        with cluster.busy():
            self._data = self._shards.place(self.worker.task.data.train)
            init_key, run_key = jax.random.split(key)
            # On one device and without the algorithm: the same program in every job of
            # a sweep, so the compilation cache has it.
            start = time.perf_counter()
            params, model = jax.jit(self.worker.task.init)(init_key)
            self.compile_seconds += time.perf_counter() - start
        if self.placement.processes > 1:
            # For the first collective gloo allows 30 s.
            cluster.exchange("readiness of the initial parameters", "")
            # A user's model may start from something that differs between them.
            with cluster.together("the initial parameters"):
                params, model = of_the_first((params, model), self.placement)
        same = (True, True, True)
        args = spmd.put((params, model, run_key), self.placement, same)
        run = self._compile(self.worker.init, same, self.shared, args, "init")
        return spmd.put(run(*args), self.placement, self.shared)

    def capacity(self, local_steps: int) -> int:
        """Most rounds of H local steps that one dispatch can hold."""
        per_round = self.worker.workers * local_steps * self.worker.batch
        fits = min(STEPS_PER_DISPATCH // local_steps, INDICES_PER_DISPATCH // per_round)
        return max(1, fits)

    def run(
        self,
        state: TrainState,
        phase: int,
        index: np.ndarray,
        weight: np.ndarray | None,
        count: int,
        *,
        measure: bool = True,
    ) -> Outcome:
        """Run ``count`` rounds and wait for them.

        Args:
            state: Donated: its buffers are reused.
            phase: Index of the phase.
            index: Of examples, ``[W, R, H, b]``; only the first ``count`` of the R
                rounds are run.
            weight: Same shape, or None.
            count: Rounds to run.
            measure: Whether to keep from the last of them what `spread` needs.

        Returns:
            An `Outcome`.
        """
        index = self._shards.local(index)
        batches = spmd.put((index, weight), self.placement, (False, False))
        last = count - 1 if measure else -1
        n = spmd.put((jnp.int32(count), jnp.int32(last)), self.placement, (True, True))
        args = (state, *self._data, *batches, n)
        key = (phase, *index.shape[1:3])
        if key not in self._programs:
            self._programs[key] = self._compile(
                functools.partial(self._rounds, phase),
                (self.shared, *self._shards.shared, False, False, (True, True)),
                (self.shared, False, self._apart.shared(phase)),
                args,
                "round",
                donate=(0,),
            )
            if not self.worker.observed:
                self._rehearse(self._programs[key], args, index.shape[2])
        jax.block_until_ready(args)
        with cluster.together(f"the {count} rounds of phase {phase}"):
            start = time.perf_counter()
            state, losses, apart = self._programs[key](*args)
            # Dispatching ahead of a result deadlocks collectives between CPU devices.
            jax.block_until_ready(state)
            seconds = time.perf_counter() - start
            losses = spmd.whole(losses, self.placement)
        return Outcome(state, losses[:, :count], apart, self.agreed(seconds))

    def spread(self, phase: int, apart: Any) -> float:
        """How far workers were apart before they synchronised; `parsgd.core.spread`.

        Args:
            phase: Of the last round.
            apart: Of the `Outcome` with it, which was to measure.
        """
        if not self._apart.later:
            return float(apart)
        key = (phase, "spread")
        if key not in self._programs:
            shared = self.worker.within[phase].params
            self._programs[key] = self._compile(
                spread, (shared,), True, (apart,), key[1]
            )
        with cluster.together("measuring how far workers are apart"):
            found = jax.block_until_ready(self._programs[key](apart))
        return float(found.addressable_shards[0].data)

    def agreed(self, value: float) -> float:
        """Process 0's value on every process, for measurements that decide something.

        By a time of its own each process would dispatch another number of rounds, and
        they would wait for each other for ever.
        """
        if self.placement.processes == 1:
            return value
        return float.fromhex(cluster.agree("measurement", float(value).hex()))

    def _rehearse(self, program: Any, args: tuple, local_steps: int) -> None:
        """Run a round on a copy, or none if it is long: a first call costs more."""
        state = args[0]
        size = sum(x.nbytes for x in jax.tree.leaves(state))
        if size <= REHEARSAL_BYTES and self.placement.kind != "debug":
            start = time.perf_counter()
            copy = spmd.put(jax.tree.map(jnp.copy, state), self.placement, self.shared)
            todo = jnp.int32(local_steps <= REHEARSAL_STEPS)
            one = spmd.put((todo, jnp.int32(-1)), self.placement, (True, True))
            with cluster.together("the first round"):
                jax.block_until_ready(program(copy, *args[1:-1], one))
            self.compile_seconds += time.perf_counter() - start

    def readout(self, state: TrainState, phase: int) -> tuple[Params, State]:
        """The model to evaluate, and its other variables averaged over the workers."""
        strategy = self.worker.phases[phase].strategy
        same = all(jax.tree.leaves(self.shared.params))

        def fn(state):
            params = state.params
            if not (same and strategy.readout is mean_readout):
                params = strategy.readout(params, state.strategy)
            return params, comm.mean(state.model)

        key = (phase, "readout")
        if key not in self._programs:
            args = (self.worker.stored(self.worker.spec, self.shared),)
            with stage("readout"):
                out = shared_outputs(fn, self.worker.workers, args, (self.shared,))
            check_readout(*out)
            self._programs[key] = self._compile(
                fn, (self.shared,), out, (state,), "readout"
            )
        with cluster.together("the readout"):
            out = jax.block_until_ready(self._programs[key](state))
        # One device's copy: evaluation need not run on all of them.
        return jax.tree.map(lambda x: x.addressable_shards[0].data, out)

    def finite(self, state: TrainState) -> bool:
        """Whether all parameters of all workers are finite, and no other state is NaN.

        A NaN may wait there; infinity may be right, as for the best loss so far.
        """

        def fn(state):
            good = all_finite(state.params) & no_nan((state.model, state.strategy))
            return comm.total(jnp.int32(~good))

        key = "finite"
        if key not in self._programs:
            self._programs[key] = self._compile(fn, (self.shared,), True, (state,), key)
        with cluster.together("looking for numbers that are not finite"):
            found = self._programs[key](state)
            return int(found.addressable_shards[0].data) == 0

    def _compile(self, fn, shared_in, shared_out, args, name, donate=()):
        start = time.perf_counter()
        with cluster.busy():
            where = (self.placement, shared_in, shared_out, args)
            out = spmd.compiled(fn, *where, donate=donate, name=name)
        self.compile_seconds += time.perf_counter() - start
        return out

    def check_replicas(self, state: TrainState) -> None:
        """See `parsgd.placement.spmd.check_replicas`."""
        spmd.check_replicas(state, self.shared, self.placement)
