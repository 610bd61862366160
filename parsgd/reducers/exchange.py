"""How compressed arrays are averaged over workers: the wire under every reducer.

Its two-sided form is that of Seide et al. 2014, see `parsgd.reducers.two_sided`; the
others stand in `parsgd.reducers.one_sided`.
"""

import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from parsgd import comm
from parsgd.compressors import Compressor, payload_bytes
from parsgd.compressors.base import why_grows, why_small
from parsgd.compressors.checked import check_contracts, checked
from parsgd.compressors.groups import flat32
from parsgd.errors import UserError, check_whole
from parsgd.reducers import paths
from parsgd.reducers.decoding import nan_unless_finite
from parsgd.reducers.one_sided import gathered, summed
from parsgd.reducers.paths import Arrays
from parsgd.reducers.stripes import stripes_of
from parsgd.reducers.two_sided import exchange_stripes


class ExchangeState(NamedTuple):
    """State of an `Exchange`.

    Attributes:
        step: Exchanges done, int32 scalar.
        owner_error: Two-sided: what this worker's stripe of the average still owes,
            ``float32``, by the leaf's path.
    """

    step: jax.Array
    owner_error: dict[str, jax.Array]


STRIPED = "owner_error"  # together the stripes of all workers are the array


class Averaged(NamedTuple):
    """Result of an exchange, by path.

    Attributes:
        mean: The average of what all workers sent, the same bits on all of them.
        sent: What this worker's own payload stands for.
        finite: Whether the average is, the same on all workers; False also where it
            might overflow.
        state: State for the next exchange.
    """

    mean: Arrays
    sent: Arrays
    finite: dict[str, jax.Array]
    state: ExchangeState


class Exchange(NamedTuple):
    """How leaves are compressed and averaged; `exchange` makes and explains it.

    Attributes:
        compressor: The compressor.
        two_sided: Encode the average again.
        bucket: Compress all leaves as one flat array.
        min_size: Leaves of fewer elements are averaged as they are.
        seed: Seed of what a stochastic compressor draws.
    """

    compressor: Compressor
    two_sided: bool = False
    bucket: bool = False
    min_size: int = 0
    seed: int = 0

    def init(self, params: Any) -> ExchangeState:
        """State for arrays like ``params``.

        Raises:
            UserError: ``bucket`` with a compressor that would make them larger.
        """
        if self.bucket:
            self._check_bucket(params)
        owed = self._no_debt(self.zeros(params)) if self.two_sided else {}
        return ExchangeState(jnp.int32(0), owed)

    def zeros(self, params: Any) -> dict[str, jax.Array]:
        """Zeros for each leaf that is compressed, ``float32``, by path."""
        return paths.zeros(jax.eval_shape(lambda tree: self.split(tree)[0], params))

    def split(self, tree: Any) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """What is compressed, as ``float32``, and what is not, as it is; by path."""
        if self.bucket:
            flat = [flat32(x) for x in jax.tree.leaves(tree)]
            if not flat:
                return {}, {}
            whole = jnp.concatenate(flat)
            for path, x in jax.tree.leaves_with_path(tree):
                paths.note(path, x, "", "compressed, all arrays as one")
            return {_bucket(tree): whole}, {}
        compressed, raw = paths.split(tree, self._why_raw)
        return {p: x.astype(jnp.float32) for p, x in compressed.items()}, raw

    def join(self, compressed: dict, raw: dict, like: Any) -> Any:
        """The tree of `split` again, in the types of ``like``."""
        if not self.bucket:
            return paths.join(compressed | raw, like)
        leaves, structure = jax.tree.flatten(like)
        whole = compressed[_bucket(like)] if leaves else jnp.zeros(0)
        parts, start = [], 0
        for x in leaves:
            part = whole[start : start + x.size]
            parts.append(part.reshape(x.shape).astype(x.dtype))
            start += x.size
        return jax.tree.unflatten(structure, parts)

    def average(
        self, arrays: Arrays, state: ExchangeState, live: Arrays | None = None
    ) -> Averaged:
        """The workers' average of their arrays, by path.

        Args:
            arrays: ``float32``.
            state: The last exchange's.
            live: Masks of the entries to average, the same on all workers; the others
                come out as zero, and count in no mean, if the compressor has
                `encode_padded`.

        Where a worker's array is not finite the whole average is NaN, so that nothing
        of it is applied while residuals stay as they were; but for entries that are not
        live, and for compressors of one's own whose payload has no number for it.
        """
        if self.two_sided:
            stripes = jax.eval_shape(self._no_debt, arrays)
            paths.check("owner's residual", state.owner_error, stripes)
        keys = {p: self._key(state.step, i) for i, p in enumerate(sorted(arrays))}
        # All owners of stripes must see what is wrong with one.
        hides = self.two_sided or not self.compressor.exposes_nonfinite
        arrays = {p: nan_unless_finite(arrays[p]) if hides else arrays[p] for p in keys}
        live = live or {}
        arrays = _masked(arrays, live)
        # All are encoded, then all sent, then all decoded: links pay for each message.
        owed: Arrays = {}
        if self.two_sided:
            mean, sent, good, owed = exchange_stripes(
                self.compressor, arrays, live, keys, state.owner_error
            )
        elif self.compressor.sums:
            mean, sent, good = summed(self.compressor, arrays, keys)
        else:
            mean, sent, good = gathered(self.compressor, arrays, live, keys)
        mean, sent = _masked(mean, live), _masked(sent, live)
        # All of it, as if it had been seen before it was encoded.
        mean = {p: jnp.where(good[p], v, jnp.nan) for p, v in mean.items()}
        return Averaged(mean, sent, good, ExchangeState(state.step + 1, owed))

    def _check_bucket(self, params: Any) -> None:
        leaves = jax.tree.leaves(params)
        raw = sum(x.size * x.dtype.itemsize for x in leaves)
        whole = jax.ShapeDtypeStruct((sum(x.size for x in leaves),), jnp.float32)
        if leaves and (size := self._payload(whole)) > raw:
            raise UserError(
                f"bucket=True with {self.compressor.name}: the message of all arrays "
                f"as one, {size} bytes, would be larger than the arrays themselves, "
                f"{raw}: leave bucket out, or use a compressor that sends "
                "less (for one_bit: levels=leaf)"
            )

    def _no_debt(self, arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Zeros in the shape of a stripe of each array."""
        return {
            path: jnp.zeros(stripes_of(x, comm.world()).shape[1:], jnp.float32)
            for path, x in arrays.items()
        }

    def _why_raw(self, x: Any) -> str:
        return why_small(x, self.min_size) or why_grows(x, self._payload(x))

    def _payload(self, x: Any) -> int:
        """Bytes of a leaf's payload, of all its stripes where it has some.

        What is encoded is float32, whatever the leaf is.
        """
        spec = jax.ShapeDtypeStruct(x.shape, jnp.float32)
        if not self.two_sided:
            return payload_bytes(self.compressor, spec)
        one = jax.eval_shape(lambda v: stripes_of(v, comm.world())[0], spec)
        return comm.world() * payload_bytes(self.compressor, one)

    def _key(self, step: jax.Array, number: int) -> jax.Array | None:
        """For the array of that number, by sorted path; None if nothing is drawn."""
        if not self.compressor.stochastic:
            return None
        key = jax.random.fold_in(jax.random.key(self.seed), step)
        key = jax.random.fold_in(key, number)
        shared = self.compressor.shared_key
        return key if shared else jax.random.fold_in(key, comm.rank())


def exchange(
    compressor: Compressor,
    *,
    two_sided: bool = False,
    bucket: bool = False,
    min_size: int = 0,
    seed: int = 0,
    feedback: str = "",
    instead: str = "",
) -> Exchange:
    """How arrays v_w of W workers become the average of what they are sent as.

    Three forms, of which the compressor's own facts pick between the first two::

        gathered    every worker gathers W payloads and averages what they decode to:
                    mean_w decode(encode(v_w))
        summed      payloads of a linear compressor are added on the way, and decoded
                    once:
                    decode(sum_w encode(v_w / W))
        two-sided   worker r owns stripe r of the array: it averages the W payloads of
                    its stripe, adds its own residual, encodes the average again and
                    sends that to all

    Gathering costs W - 1 payloads per worker and loses nothing on the way back. The
    two-sided form costs 2 (W - 1) / W, for arrays of W columns or more.

    Args:
        compressor: The compressor.
        two_sided: Use the two-sided form.
        bucket: Compress all leaves as one flat array.
        min_size: Leaves of fewer elements are averaged as they are; 0 with ``bucket``.
        seed: Seed of what a stochastic compressor draws.
        feedback: Name of what keeps a residual of what is sent; empty for nothing.
        instead: What to use for compressors that it refuses, in words.

    Returns:
        An `Exchange`, checked.

    Raises:
        UserError: ``compressor`` is not a `Compressor`, or ``min_size`` is not a whole
            number of 0 or more, or not 0 with ``bucket``; ``two_sided`` with a
            compressor whose payloads are summed, whose workers draw the same numbers,
            or that does not shrink its error, or
            ``feedback`` with one that does not.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.compressors import fp16
        >>> from parsgd.reducers import exchange
        >>> channel, x = exchange(fp16()), jnp.ones((1, 2))
        >>> channel.average(channel.split(x)[0], channel.init(x)).mean
        {'': Array([[1., 1.]], dtype=float32)}
    """
    compressor = checked(compressor)
    if feedback:
        check_contracts(feedback, compressor, instead)
    if two_sided and (compressor.sums or compressor.shared_key):
        why = (
            "its payloads are summed on the way, so there is nothing to encode again"
            if compressor.sums
            else "all workers must draw the same, and each encodes another stripe"
        )
        raise UserError(
            f"two_sided=True with {compressor.name}: {why}; leave two_sided out"
        )
    if two_sided and not compressor.contracts:
        raise UserError(
            f"two_sided=True with {compressor.name}: the second encoding has error "
            "feedback, which needs a code that shrinks its error; leave two_sided out"
        )
    check_whole("min_size", min_size, 0)
    if bucket and min_size:
        raise UserError(
            f"bucket=True with min_size={min_size}: all leaves are one array then, "
            "whatever their size; leave one of the two out"
        )
    return Exchange(compressor, two_sided, bucket, min_size, seed)


def _bucket(tree: Any) -> str:
    """Name of the flat array of a tree: another for other paths or shapes."""
    leaves = jax.tree.leaves_with_path(tree)
    parts = (f"{jax.tree_util.keystr(path)} {x.shape}" for path, x in leaves)
    return f"bucket {zlib.crc32(' '.join(parts).encode()):08x}"


def _masked(arrays: Arrays, live: Arrays) -> Arrays:
    return {
        path: jnp.where(live[path], v, 0.0) if path in live else v
        for path, v in arrays.items()
    }
