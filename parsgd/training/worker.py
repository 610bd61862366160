"""One worker's program, and what can be read from it before anything is compiled."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from parsgd import traffic
from parsgd.comm import DEVICES
from parsgd.core import Params, Phase, State, TrainState, init_state, no_sync, run_round
from parsgd.data.order import Order
from parsgd.errors import UserError, raised_at, stage
from parsgd.gradient import BatchUnion
from parsgd.lanes import prefixed, shared_outputs, together
from parsgd.reducers.nonfinite import skips_steps
from parsgd.tasks import Batch, Task
from parsgd.training.checks import check_kept, check_model_state, check_params
from parsgd.training.union import large_steps, union_of

SPREAD_BYTES = 64 << 20  # of a state, of which each device has a copy
# Of a gradient. On two devices of a 2-core Xeon one-bit SGD, top-k and PowerSGD of MLPs
# had 0.5 of one device's speed with 9e5, 1.1 with 2e7 and 1.0 to 1.4 with 5e7 to 5e8.
SPREAD_FLOPS = 1.5e7
SAME_DATA = (True, True, False, False)  # examples, but neither indices nor weights


class Worker:
    """What one of W workers does in each phase, traced but not yet placed.

    Args:
        task: The task.
        phases: The algorithm's phases.
        order: Which examples the workers see; gives W and b.
        micro_batches: Parts that each worker's batch is split into.

    Attributes:
        init_spec: Abstract arguments of `init`.
        spec: Abstract state of one worker.
        shared: For each leaf of the state whether all workers share it between rounds.
        within: The same within a round of each phase, before it synchronises.
        identical: Whether parameters are equal in every step, as in all-reduced SGD.
        skips: Whether steps whose gradients are not finite are skipped.
        large_steps: Whether a gradient takes long beside what it sends, on CPU, and
            depends on nothing from other workers.
        observed: Whether the program calls the host, for example to print; then each
            round is run only once.

    Raises:
        UserError: A strategy or a model that changes shapes or types; parameters with
            no gradient.
    """

    def __init__(
        self,
        task: Task,
        phases: Sequence[Phase],
        *,
        order: Order,
        micro_batches: int = 1,
    ):
        self.task, self.phases, self.order = task, tuple(phases), order
        self.workers, self.batch = order.workers, order.worker_batch
        self._micro_batches = micro_batches
        self._weighted = order.indices(0, 0)[1] is not None
        key = jax.random.key(0)
        self.observed = False
        with stage("init of the model"):
            params, model = jax.eval_shape(task.init, key)
        self.init_spec = (params, model, jax.eval_shape(lambda: key))
        check_params(params)
        with stage("init"):
            _, self.spec = self._traced(self.init, *self.init_spec)
        for phase in self.phases:
            self._check(phase)
        with stage("loss"):
            self._check_loss()
        self._union: BatchUnion = ""
        self.large_steps = False
        if self.workers > 1:
            batch = self._batch_spec()
            args = (self.spec, batch, lambda: self.step_flops)
            with stage("round"):
                if any(phase.strategy.mean_gradient for phase in self.phases):
                    self._union = union_of(task, *args)
                self.large_steps = self._loss_isolated() and large_steps(*args)
        with stage("round"):
            self.shared = self._shared()
        self.within = [self._before_sync(phase.strategy) for phase in self.phases]
        self.skips = skips_steps(self.spec.strategy)
        self.identical = all(all(jax.tree.leaves(s.params)) for s in self.within)

    def init(self, params: Params, model: State, key: jax.Array) -> TrainState:
        """The state at step 0."""
        return init_state(self.phases[0].strategy, params, model, key)

    def round(
        self, phase: int, state, x, y, index, weight, look=None, *, lanes=together
    ):
        """One round of ``index [H, b]``; see `parsgd.core.run_round`."""
        strategy = self.phases[phase].strategy
        return self._round(strategy, state, x, y, index, weight, look, lanes)

    def _round(self, strategy, state, x, y, index, weight, look=None, lanes=together):
        def batch(data, at):
            (x, y), (rows, w) = data, at
            # Indices come from the data order, which stays within the split.
            read = functools.partial(jnp.take, indices=rows, axis=0, mode="clip")
            return Batch(read(x), read(y), w)

        return run_round(
            strategy,
            self.task.loss,
            state,
            batch,
            (x, y),
            (index, weight),
            micro_batches=self._micro_batches,
            look=look,
            union=self._union,
            lanes=lanes,
            gradients_in_turn=self.large_steps,
        )

    def traffic(self, phase: int, local_steps: int) -> traffic.Traffic:
        """What one worker sends in one round of H local steps."""
        args = (self.spec, *self._data_spec(local_steps))
        fn, same = functools.partial(self.round, phase), (self.shared, *SAME_DATA)
        return traffic.trace(fn, self.workers, *args, shared=same)

    def readout_bytes(self, phase: int) -> float:
        """What one worker sends for a readout, if parameters are not shared."""
        state, readout = self.spec, self.phases[phase].strategy.readout
        if all(jax.tree.leaves(self.shared.params)):
            return 0.0
        return traffic.trace(readout, self.workers, state.params, state.strategy).bytes

    def isolated(self, phase: int) -> bool:
        """Whether a worker's local steps depend on nothing from other workers."""
        state, strategy = self.spec, self.phases[phase].strategy
        if strategy.mean_gradient:
            return False
        args = (state.params, state.strategy, state.params)
        alone = traffic.isolated(strategy.local, self.workers, args)
        return alone and self._loss_isolated()

    def _loss_isolated(self) -> bool:
        key = jax.eval_shape(lambda: jax.random.key(0))
        args = (self.spec.params, self.spec.model, self._batch_spec(), key)
        return traffic.isolated(self.task.loss, self.workers, args)

    def own_bytes(self, phase: int) -> int:
        """Bytes of state that a worker does not share within a round."""
        leaves = jax.tree.leaves(self.spec)
        same = jax.tree.leaves(self.within[phase])
        own = [x for x, s in zip(leaves, same, strict=True) if not s]
        return sum(x.size * x.dtype.itemsize for x in own)

    @property
    def gains_by_devices(self) -> bool:
        """Whether equal workers are faster on a device per core than as its lanes.

        On CPU, where steps are large, or each gradient is a worker's own and takes
        longer than the devices' meetings; and where the state has room on each.
        """
        if self.workers == 1 or not self.identical or jax.default_backend() != "cpu":
            return False
        sizes = (x.size * x.dtype.itemsize for x in jax.tree.leaves(self.spec))
        if sum(sizes) > SPREAD_BYTES:
            return False
        own = not all(phase.strategy.mean_gradient for phase in self.phases)
        return self.large_steps or (own and self.step_flops >= SPREAD_FLOPS)

    @property
    def gradients_in_turn(self) -> bool:
        """Whether lanes take their gradients one after the other in some phase."""
        means = [phase.strategy.mean_gradient for phase in self.phases]
        return self.large_steps and not (self._union and all(means))

    @functools.cached_property
    def step_flops(self) -> float:
        """Floating-point operations of one worker's gradient, as XLA counts them."""
        params, model, key = self.init_spec
        gradient = jax.jit(jax.grad(self.task.loss, has_aux=True))
        lowered = gradient.lower(params, model, self._batch_spec(), key)
        return (lowered.cost_analysis() or {}).get("flops", 0.0)

    def stored(self, spec: Any, shared: Any) -> Any:
        """One worker's abstract arrays as they are stored for all workers."""

        def leaf(same, s):
            shape = s.shape if same else (self.workers, *s.shape)
            return jax.ShapeDtypeStruct(shape, s.dtype)

        return prefixed(leaf, shared, spec)

    def _data_spec(self, local_steps: int) -> tuple:
        """Abstract arguments of a round after the state."""
        x, y = (
            jax.ShapeDtypeStruct(a.shape, jax.dtypes.canonicalize_dtype(a.dtype))
            for a in self.task.data.train
        )
        slots = (local_steps, self.batch)
        index = jax.ShapeDtypeStruct(slots, jnp.int32)
        weight = jax.ShapeDtypeStruct(slots, jnp.float32) if self._weighted else None
        return x, y, index, weight

    def _batch_spec(self) -> Any:
        x, y, index, weight = self._data_spec(1)
        rows = index.shape[1:]
        x, y = (jax.ShapeDtypeStruct(rows + a.shape[1:], a.dtype) for a in (x, y))
        weight = None if weight is None else jax.ShapeDtypeStruct(rows, weight.dtype)
        return Batch(x, y, weight)  # type: ignore[arg-type]

    def _traced(self, fn: Callable, *args: Any) -> tuple[Any, Any]:
        """Program and abstract outputs of one of W workers."""
        axes = [(DEVICES, self.workers)]
        try:
            program, out = jax.make_jaxpr(fn, axis_env=axes, return_shape=True)(*args)
        except ValueError as error:
            if raised_at(error) and not isinstance(error, UserError):
                raise  # a bug in the user's own code
            # Such as a size that does not fit W, which is unknown to constructors.
            raise UserError(f"the strategy cannot be run: {error}") from error
        self._look_for_calls(program)
        return program, out

    def _look_for_calls(self, program: Any) -> None:
        kinds = {type(effect).__name__ for effect in program.effects}
        self.observed |= bool(kinds - {"NamedAxisEffect"})

    def _check(self, phase: Phase) -> None:
        strategy = phase.strategy
        pair = (self.spec.params, self.spec.strategy)
        with stage("init"):
            _, own = self._traced(strategy.init, pair[0])
        if jax.tree.structure(own) != jax.tree.structure(pair[1]):
            raise UserError(
                f"the phase that starts at step {phase.start} keeps another state than "
                "the first one, so it cannot go on with it: "
                f"{jax.tree.structure(own)} instead of {jax.tree.structure(pair[1])}; "
                "phases share one state"
            )
        try:
            with stage("local"):
                _, after = self._traced(strategy.local, pair[0], pair[1], pair[0])
        except TypeError as error:
            if "required keyword-only argument" not in str(error):
                raise
            raise UserError(
                f"this optimizer needs more than gradients ({error}); strategies hand "
                "on gradients, its state and parameters only"
            ) from error
        check_kept("local", pair, after)
        with stage("sync"):
            _, after = self._traced(strategy.sync, *pair)
        check_kept("sync", pair, after)

    def _check_loss(self) -> None:
        """Trace the loss alone, so that an error in it is not one of a round."""
        key = jax.eval_shape(lambda: jax.random.key(0))
        args = (self.spec.params, self.spec.model, self._batch_spec(), key)
        axes = [(DEVICES, self.workers)]
        traced = jax.make_jaxpr(self.task.loss, axis_env=axes, return_shape=True)
        program, returned = traced(*args)
        check_model_state(self.spec.model, returned)
        self._look_for_calls(program)

    def _after(self, strategy: Any, shared: TrainState) -> TrainState:
        """What workers share after a round that starts with ``shared``."""

        def fn(*args):
            return self._round(strategy, *args)[0]

        same = (shared, *SAME_DATA)
        args = self.stored((self.spec, *self._data_spec(1)), same)
        return shared_outputs(fn, self.workers, args, same)

    def _shared(self) -> TrainState:
        """The largest set of leaves that start equal and that every round keeps equal.

        Found from above: start with all leaves that begin equal, and drop those that a
        round makes unequal until none is left to drop.
        """
        same = (True, True, True)
        shared = shared_outputs(self.init, self.workers, self.init_spec, same)
        while True:
            new = shared
            for phase in self.phases:
                after = self._after(phase.strategy, shared)
                new = jax.tree.map(lambda a, b: a and b, new, after)
            if jax.tree.leaves(new) == jax.tree.leaves(shared):
                return shared
            shared = new

    def _before_sync(self, strategy) -> TrainState:
        if strategy.sync is no_sync:
            return self.shared
        return self._after(strategy._replace(sync=no_sync), self.shared)
