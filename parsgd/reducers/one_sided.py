"""Averages in one step: payloads are summed on the way, or gathered and averaged."""

import jax
import jax.numpy as jnp

from parsgd import comm
from parsgd.compressors import Compressor
from parsgd.reducers import paths
from parsgd.reducers.decoding import mean_is_finite, mean_of_decoded
from parsgd.reducers.paths import Arrays
from parsgd.reducers.two_sided import encoded

Keys = dict[str, jax.Array | None]


def summed(compressor: Compressor, arrays: Arrays, keys: Keys) -> tuple:
    """``(mean, sent, good)`` by a linear compressor."""
    encode, decode = compressor.encode, compressor.decode
    # Scaled before it is encoded: a sum of W half-precision numbers may overflow, and
    # what underflows belongs to the residual.
    share = {p: encode(v / comm.world(), keys[p]) for p, v in arrays.items()}
    total = comm.total(share)
    known = _known(compressor, keys)
    mean = {p: decode(total[p], v, known[p]) for p, v in arrays.items()}
    sent = {p: comm.world() * decode(share[p], v, known[p]) for p, v in arrays.items()}
    return mean, sent, {path: paths.finite(x) for path, x in mean.items()}


def gathered(compressor: Compressor, arrays: Arrays, live: Arrays, keys: Keys) -> tuple:
    """``(mean, sent, good)`` by any compressor."""
    zeros = {p: jnp.sum(~mask, dtype=jnp.int32) for p, mask in live.items()}
    payload = {
        p: encoded(compressor, v, zeros.get(p), keys[p]) for p, v in arrays.items()
    }
    known = _known(compressor, keys)
    sent = {p: compressor.decode(payload[p], v, known[p]) for p, v in arrays.items()}
    payloads, mean = comm.gather(payload), sent
    if comm.world() > 1:
        mean = {
            path: mean_of_decoded(compressor, each, arrays[path], known[path])
            for path, each in payloads.items()
        }
    good = {p: mean_is_finite(compressor, payloads[p], v) for p, v in mean.items()}
    return mean, sent, good


def _known(compressor: Compressor, keys: Keys) -> Keys:
    """Keys to decode others' payloads with: None unless all workers share them."""
    return keys if compressor.shared_key else dict.fromkeys(keys)
