"""``fit``: train a task with a strategy; record what it reached, and at what cost."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from parsgd.checkpoint import Checkpoints
from parsgd.checkpoint.differences import LENGTH
from parsgd.checkpoint.keeper import keeping
from parsgd.checkpoint.settings import check as check_settings
from parsgd.cluster.alike import check_alike
from parsgd.core import Algorithm, phases as phases_of
from parsgd.data.order import Tail
from parsgd.data.shards import Shards
from parsgd.environment import link
from parsgd.errors import UserError
from parsgd.placement import backend
from parsgd.placement.devices import prepare
from parsgd.tasks import Task
from parsgd.training.checks import (
    check_metrics,
    check_run,
    refuse_done,
    refuse_reached,
    unreached,
)
from parsgd.training.engine import Engine
from parsgd.training.evaluate import Evaluation, readout_cautions
from parsgd.training.facts import TOLD, facts_of
from parsgd.training.keeper import Keeper
from parsgd.training.loop import Loop
from parsgd.training.meter import Meter, Record
from parsgd.training.observer import Observer, check_observer
from parsgd.training.plan import make_plan
from parsgd.training.resumed import resume, resumed_steps
from parsgd.training.run import Run
from parsgd.training.segments import segments as segments_of

ONE_DEVICE = "check_replicas: there is one device, so there are no copies to compare"


def fit(
    task: Task,
    strategy: Algorithm,
    *,
    workers: int = 1,
    local_steps: int = 1,
    worker_batch: int | None = None,
    global_batch: int | None = None,
    epochs: float | None = None,
    samples: int | None = None,
    rounds: int | None = None,
    target_accuracy: float | None = None,
    evaluations: int = 10,
    train_examples: int = 10_000,
    seed: int = 0,
    placement: str = "auto",
    devices: int | Sequence[int] | None = None,
    tail: Tail = "drop",
    shards: Shards = "reshuffled",
    label_skew: float = 0.0,
    micro_batches: int = 1,
    max_bad_rounds: int = 3,
    logged_learning_rate: Callable[[int], Any] | None = None,
    check_replicas: bool = False,
    checkpoints: Checkpoints | None = None,
    observer: Observer | None = None,
) -> Run:
    """Train ``task`` with ``strategy`` on W workers.

    Each worker takes ``local_steps`` optimizer steps on its own batches, then they
    synchronise: that is a round. The budget counts the work of all workers: runs of
    equal ``samples`` agree to within one global batch whatever W is, and those of
    equal ``epochs`` up to what ``tail="drop"`` leaves out.

    Args:
        task: Data, model and loss, such as ``parsgd.digits()``.
        strategy: The algorithm, such as ``parsgd.local_sgd(optax.sgd(0.1))``.
        workers: W >= 1.
        local_steps: H >= 1. Must be 1 for methods that communicate in every step.
        worker_batch: Batch of each worker. Give this or ``global_batch``.
        global_batch: Batch of all workers together, a multiple of W.
        epochs: Budget in passes over the data. Give exactly one of the three budgets.
        samples: Budget in samples of all workers together.
        rounds: Budget in rounds of ``local_steps`` steps.
        target_accuracy: Stop at the first evaluation that reaches it, in [0, 1].
        evaluations: How often to evaluate after the start, evenly spaced over the
            steps, each at the end of a round; once per round where there are fewer.
        train_examples: Evaluate the training loss on at most this many examples.
        seed: Of the initial parameters, the data order and the randomness of the model,
            such as dropout; 0 to 2**32 - 1. Reducers with random codes have a ``seed``
            of their own.
        placement: ``"auto"``, ``"vmap"``, ``"shard_map"``, ``"pmap"`` or ``"debug"``.
        devices: How many devices, or which; see `parsgd.place`.
        tail: An epoch's last partial batch: ``"drop"`` or ``"weight"``.
        shards: ``"reshuffled"`` among the workers in every epoch, or ``"fixed"``: each
            worker keeps its part of the data, and with shard_map on several devices
            each has only its own workers' part to train on in its memory.
        label_skew: Share of the examples that is sorted by label before it is dealt to
            fixed shards, from 0 (shards are alike) to 1; see
            `parsgd.data.fixed_shards`.
        micro_batches: Gradient accumulation: in how many equal parts each worker takes
            its batch; a divisor of the worker's batch.
        max_bad_rounds: Stop as diverged after this many rounds in a row with a
            non-finite training loss.
        logged_learning_rate: Schedule ``step -> rate`` to write into the records; the
            optimizer has its own.
        check_replicas: After each dispatch compare the devices' copies of what workers
            share, bit for bit.
        checkpoints: Where and how often to save. If the folder holds a run, that run
            goes on; see `parsgd.Checkpoints`.
        observer: Is told of the start, the progress and each record; see
            `parsgd.Observer`.

    Returns:
        A `Run`. Each record in its history has ``round, step, samples, epoch``;
        ``seconds`` of training (compilation and evaluation apart); ``batch_loss``, the
        mean training loss since the last record; ``train_loss, test_loss,
        test_accuracy`` of the readout; ``bytes`` sent per worker so far; ``spread``,
        the workers' rms distance to their mean before the last synchronisation over the
        norm of the mean; and ``learning_rate``.

    Raises:
        UserError: Before the first step: ``task``, ``strategy`` or ``observer`` is of
            another type; sizes, budget, phases, data and placement do not fit together;
            or the strategy, the model or its metrics cannot be used. Also, of the
            folder of ``checkpoints``: it is in use, cannot be read or written, or holds
            something else, another run, or one with nothing left to do.
        RuntimeError: With ``check_replicas``, copies differ between devices.
        Exception: Whatever the user's own task, strategy, schedule or observer raises.

    Example:
        >>> import optax, parsgd
        >>> run = parsgd.fit(
        ...     parsgd.digits(), parsgd.sync_sgd(optax.sgd(0.1, 0.9)),
        ...     workers=4, worker_batch=8, epochs=3)
        >>> run.history[-1]["test_accuracy"] > 0.8
        True
    """
    if not isinstance(task, Task):
        raise UserError(
            f"task is a {type(task).__name__}: give a Task, such as parsgd.digits() "
            "or parsgd.classification(data, model) make"
        )
    if logged_learning_rate is not None and not callable(logged_learning_rate):
        raise UserError(
            f"logged_learning_rate={logged_learning_rate}: a schedule, step -> rate, "
            "to write into the records; the optimizer has its own"
        )
    plan = make_plan(
        len(task.data.train.x),
        workers=workers,
        local_steps=local_steps,
        worker_batch=worker_batch,
        global_batch=global_batch,
        epochs=epochs,
        samples=samples,
        rounds=rounds,
        seed=seed,
        tail=tail,
        shards=shards,
        label_skew=label_skew,
        labels=task.data.train.y,
        micro_batches=micro_batches,
    )
    phases = phases_of(strategy)
    at_least_one = {
        "evaluations": evaluations,
        "max_bad_rounds": max_bad_rounds,
        "train_examples": train_examples,
    }
    in_rounds = rounds is not None
    check_run(plan, phases, at_least_one, target_accuracy, in_rounds=in_rounds)
    facts = facts_of(task, plan, phases, micro_batches)
    _check_alike(
        facts | at_least_one,
        checkpoints,
        steps=plan.steps,
        target_accuracy=target_accuracy,
        placement=placement,
        devices=devices,
        check_replicas=check_replicas,
    )
    observer = Observer() if observer is None else observer
    check_observer(observer)
    # An engine does it too, but a keeper of checkpoints starts the backend before it.
    prepare(devices)
    backend.start()
    run = None
    try:
        with keeping(checkpoints) as keeper:
            stored = keeper.look(facts)
            if stored:  # refuse before anything in the folder is renamed
                steps = resumed_steps(plan, stored, in_rounds)
                _refuse_over(stored, steps, keeper, target_accuracy)
            engine = Engine(
                task,
                phases,
                order=plan.order,
                kind=placement,
                devices=devices,
                micro_batches=micro_batches,
            )
            check_metrics(task, engine.worker.spec, target_accuracy)
            key = jax.random.key(seed)
            resumed = keeper.restore(engine, key)
            plan, past = resume(resumed, plan, phases, engine, keeper, in_rounds)
            segments = segments_of(plan, phases)
            meter = Meter(plan, engine, segments, max_bad_rounds, logged_learning_rate)
            history: list[Record] = []
            if resumed:
                meta = resumed.meta
                history = meta["history"]
                meter.resume(
                    meta["round"], meta["step"], meta["counts"], past["earlier_workers"]
                )
            summary = {key: facts[key] for key in TOLD}
            summary |= {"planned_steps": plan.steps, "link": link()}
            summary |= past | meter.summary()
            evaluate = Evaluation(task, engine, train_examples)
            lines = [
                *task.data.notes,
                *plan.describe(sum(segment.rounds for segment in segments)),
                engine.describe(),
                *unreached(plan, phases),
                *meter.cautions(),
                *readout_cautions(phases, engine.worker.spec.strategy),
                *keeper.lines,
            ]
            if check_replicas and len(engine.placement.devices) == 1:
                lines.append(ONE_DEVICE)
            observer.start(summary, lines)
            keeper.settle()
            if resumed:
                observer.resumed(history)
            loop = Loop(
                plan,
                segments,
                engine,
                meter,
                evaluate=evaluate,
                keeper=keeper,
                observer=observer,
                check_replicas=check_replicas,
                target_accuracy=target_accuracy,
                earlier=past,
            )
            start = resumed.state if resumed else engine.init(key)
            told = resumed.meta.get("skipped") if resumed else None
            loop.run(start, history, evaluations, told)

        if meter.diverged:
            summary["stopped"] = "diverged"
        elif loop.reached:
            summary["stopped"] = "target_accuracy"
        assert evaluate.model is not None
        readout, model_state = evaluate.model
        summary |= meter.totals() | {"eval_seconds": evaluate.seconds}
        status = "diverged" if meter.diverged else "completed"
        run = Run(status, meter.diverged, loop.history, summary, readout, model_state)
        return run
    finally:
        observer.end(run)


def _refuse_over(
    stored: Mapping[str, Any],
    steps: int,
    keeper: Keeper,
    target_accuracy: float | None,
) -> None:
    """Refuse a run that has nothing left to do, but is asked to do it otherwise.

    Args:
        stored: What is stored with the checkpoint.
        steps: Of the whole run now.
        keeper: Knows what has changed since.
        target_accuracy: Or None.

    Raises:
        UserError: The target is reached, or all steps are done.
    """
    if keeper.lines or steps != stored["steps"]:
        refuse_reached(stored["history"][-1], target_accuracy)
    if steps == stored["step"]:
        changed = keeper.changed.items()
        refuse_done(steps, {key: both for key, both in changed if key not in LENGTH})


def _check_alike(
    facts: dict[str, Any], checkpoints: Checkpoints | None, **more: Any
) -> None:
    """Refuse processes whose arguments would have them wait for each other for ever."""
    if checkpoints is not None:
        check_settings(checkpoints)
        # Not these: one process's are taken, or they are compared elsewhere.
        other = ("folder", "config", "overrides", "again", "quiet")
        more |= {k: v for k, v in checkpoints._asdict().items() if k not in other}
    check_alike(facts | more)
