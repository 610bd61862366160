"""Rows of the zoo whose owners of stripes encode the average again."""

import functools

import reducer_oracles
from byte_counts import two_sided
from compressed_oracles import sgd
from zoo_compressed import INTERVALS, LOOSE, MOMENTS, RATE, adam, matrices, zero_one

import parsgd
from parsgd import strategies


def _one_bit(number, grads):
    _, workers, *shape = grads.shape
    exchange = reducer_oracles.OneBitAllReduce(tuple(shape), workers, by_column=True)
    for step in grads:
        yield exchange(list(step), True), None


# As `zoo_compressed.MORE`; of both kinds of Adam this form is the default.
TWO_SIDED: dict[str, tuple] = {
    "one_bit two-sided": (
        lambda opt: parsgd.one_bit_sgd(opt, two_sided=True),
        1,
        functools.partial(sgd, leaf=matrices(_one_bit)),
        two_sided(lambda rows, columns: -(-rows * columns // 8) + 8 * columns),
        LOOSE,
    ),
    "one-bit adam two-sided": (
        lambda _: strategies.one_bit_adam(RATE, **MOMENTS, warmup_steps=4),
        1,
        functools.partial(adam, reducer_oracles.one_bit_adam, freeze=4, correct=False),
        two_sided(lambda rows, columns: -(-rows * columns // 8) + 8),
        LOOSE,
    ),
    "zero-one adam two-sided": (
        lambda _: strategies.zero_one_adam(RATE, **MOMENTS, **INTERVALS),
        2,
        zero_one,
        two_sided(lambda rows, columns: -(-rows * columns // 8) + 8),
        {"plain": False},
    ),
}
