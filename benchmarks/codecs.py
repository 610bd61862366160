"""Speed of every code beside a plain copy: ``python -m benchmarks.codecs``.

Encoding and decoding are compiled apart, as on two sides of a wire. In every round each
code's windows stand next to a window of the copy of the same array, a compiled
``jnp.copy``, and ratios are taken within the round: the machine's drifts hit both. A
code's part of the copy's speed is ``copy / (encode + decode)``, the median over rounds.
"""

import argparse
import ctypes
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import measure
from parsgd import compressors
from parsgd.compressors import Compressor, payload_bytes
from parsgd.reducers.decoding import mean_of_decoded

CODES: dict[str, Callable[[], Compressor]] = {
    "one_bit": compressors.one_bit,
    "one_bit, leaf": lambda: compressors.one_bit(levels="leaf"),
    "scaled_sign": compressors.scaled_sign,
    "sign": compressors.sign,
    "qsgd": compressors.qsgd,
    "qsgd, 7 levels of the maximum": lambda: compressors.qsgd(levels=7, norm="max"),
    "terngrad": compressors.terngrad,
    "terngrad, unclipped": lambda: compressors.terngrad(clip=None),
    "natural": compressors.natural,
    "linear_8bit": compressors.linear_8bit,
    "linear_8bit, blocks": lambda: compressors.linear_8bit(block_size=2048),
    "linear_8bit, random": lambda: compressors.linear_8bit(rounding="random"),
    "dynamic_tree_8bit": compressors.dynamic_tree_8bit,
    "fp16": compressors.fp16,
    "bf16": compressors.bf16,
    "fp8": compressors.fp8,
    "top_k, 1 %": lambda: compressors.top_k(density=0.01),
    "top_k, 1 %, sampled": lambda: compressors.top_k(density=0.01, select="sampled"),
    "top_k, 1 %, 8-bit values": lambda: compressors.top_k(
        density=0.01, values=compressors.linear_8bit()
    ),
    "threshold, of 1 %": lambda: compressors.threshold(
        tau=2.5758,
        max_density=0.011,  # of a normal distribution
    ),
    "random_k, 1 %": lambda: compressors.random_k(density=0.01),
}
SHAPES = {
    "6.9M": (6732, 1024),
    "6.9M, uneven": (6763, 1021),  # no power of two divides it: no whole buckets
    "64K": (64, 1024),
}
WORKERS = 8  # payloads decoded and averaged, as after a gather
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # glibc's malloc.h
WINDOW = 0.02  # seconds at least


class Row(NamedTuple):
    """A code on one array: medians over the rounds."""

    code: str
    array: str
    ratio_sent: float  # bytes of float32 by bytes of the payload
    encode_gb_s: float  # of float32
    decode_gb_s: float
    copy_gb_s: float
    of_copy: float  # copy / (encode + decode)
    of_copy_range: tuple[float, float]
    decodes: float  # WORKERS decodes and their mean, in single decodes
    rounds: int


def timed(call: Callable[[], object], times: int) -> float:
    """Seconds of one call, in a window of several."""
    start = time.perf_counter()
    for _ in range(times):
        jax.block_until_ready(call())
    return (time.perf_counter() - start) / times


def measured(name: str, array: str, rounds: int) -> Row:
    """Time one code."""
    code, shape = CODES[name](), SHAPES[array]
    x = jax.random.normal(jax.random.key(0), shape)
    key = jax.random.key(1)
    like = jax.ShapeDtypeStruct(shape, x.dtype)
    encode = jax.jit(code.encode)
    decode = jax.jit(lambda payload: code.decode(payload, like, key))
    payload = encode(x, key)

    @jax.jit
    def average(payloads):
        return mean_of_decoded(code, payloads, like, key)

    others = [encode(jnp.roll(x, w), key) for w in range(WORKERS)]  # other indices
    payloads = jax.tree.map(lambda *p: jnp.stack(p), *others)
    copy = jax.jit(jnp.copy)
    calls = {
        "copy": lambda: copy(x),
        "encode": lambda: encode(x, key),
        "decode": lambda: decode(payload),
        "average": lambda: average(payloads),
    }
    times = {}
    for part, call in calls.items():
        timed(call, 2)
        times[part] = max(1, round(WINDOW / timed(call, 1)))
    seconds: dict[str, list[float]] = {part: [] for part in calls}
    for turn in range(rounds):
        # Alternate the direction: no part always runs after the same one.
        for part in list(calls) if turn % 2 == 0 else reversed(calls):
            seconds[part].append(timed(calls[part], times[part]))
    middle = {part: statistics.median(values) for part, values in seconds.items()}
    pairs = zip(seconds["copy"], seconds["encode"], seconds["decode"], strict=True)
    parts = [c / (e + d) for c, e, d in pairs]
    return Row(
        code=name,
        array=array,
        ratio_sent=x.nbytes / payload_bytes(code, x),
        encode_gb_s=x.nbytes / middle["encode"] / 1e9,
        decode_gb_s=x.nbytes / middle["decode"] / 1e9,
        copy_gb_s=x.nbytes / middle["copy"] / 1e9,
        of_copy=statistics.median(parts),
        of_copy_range=(min(parts), max(parts)),
        decodes=statistics.median(
            a / d for a, d in zip(seconds["average"], seconds["decode"], strict=True)
        ),
        rounds=rounds,
    )


def beside_lax_top_k(array: str, rounds: int, density: float = 0.01) -> str:
    """How many times faster than ``lax.top_k`` our exact selection is."""
    x = jax.random.normal(jax.random.key(0), SHAPES[array])
    k = round(density * x.size)
    theirs = jax.jit(lambda x: jax.lax.top_k(jnp.abs(x.reshape(-1)), k))
    own = jax.jit(compressors.top_k(density=density).encode)
    for call in (theirs, own):
        timed(lambda call=call: call(x), 1)
    ratios = sorted(
        timed(lambda: theirs(x), 1) / timed(lambda: own(x), 1) for _ in range(rounds)
    )
    middle = statistics.median(ratios)
    return (
        f"top_k of {density:.0%} on {array}: {middle:.1f} x as fast as lax.top_k "
        f"({ratios[0]:.1f} to {ratios[-1]:.1f}), n={rounds}"
    )


def table(rows: list[Row]) -> str:
    """A Markdown table; GB/s are of float32 going in or coming out."""
    lines = [
        "| code | array | times smaller | encode GB/s | decode GB/s | copy GB/s "
        f"| both, of the copy | range | {WORKERS} decodes | n |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.code} | {r.array} | {r.ratio_sent:.1f} | {r.encode_gb_s:.1f} "
        f"| {r.decode_gb_s:.1f} | {r.copy_gb_s:.1f} | {r.of_copy:.2f} "
        f"| {r.of_copy_range[0]:.2f}-{r.of_copy_range[1]:.2f} "
        f"| {r.decodes:.1f} x | {r.rounds} |"
        for r in rows
    ]
    return "\n".join(lines)


def keep_memory() -> None:
    """Let freed arrays stay with the process, where the C library allows it.

    Otherwise a call may pay for fresh pages of its result, or not, by what was freed
    before it: the same copy then takes 2 or 12 ms.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_ARENA_MAX, 1)  # others cannot hold large arrays
    for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
        libc.mallopt(option, 1 << 30)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.codecs", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--only", default="", help="codes whose name contains this")
    parser.add_argument(
        "--array", choices=[*SHAPES, ""], default="", help="one array only"
    )
    parser.add_argument("--repeats", type=int, default=15, help="rounds of windows")
    parser.add_argument("--output", type=Path, help="JSON file for all figures")
    options = parser.parse_args()
    names = [name for name in CODES if options.only in name]
    if not names:
        parser.error(f"no code's name contains {options.only!r}; there are {[*CODES]}")
    if options.repeats < 1:
        parser.error(f"--repeats {options.repeats}: one round or more")
    keep_memory()
    rows = []
    for array in [options.array] if options.array else SHAPES:
        for name in names:
            rows.append(measured(name, array, options.repeats))
    print(table(rows))
    if any(name.startswith("top_k") for name in names):
        for array in dict.fromkeys(row.array for row in rows):
            print(beside_lax_top_k(array, options.repeats))
    if options.output:
        report = {"machine": measure.machine(), "rows": [r._asdict() for r in rows]}
        options.output.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
