"""Codes of somebody's own: what is wrong with one is told with its name."""

import jax
import jax.numpy as jnp
import optax
import pytest
from tiny import tiny

import parsgd
from parsgd import Compressor, UserError


def halves(encode=None, decode=None, **facts):
    """Values as bfloat16, or with one function in place of theirs."""
    encode = encode or (lambda x, key: x.astype(jnp.bfloat16))
    decode = decode or (lambda payload, like, key: payload.astype(like.dtype))
    return Compressor(encode, decode, "halves", **{"contracts": True} | facts)


def trained(code, reducer=parsgd.error_feedback):
    algorithm = parsgd.compressed_sgd(optax.sgd(0.1), reducer=reducer(code))
    sizes = {"workers": 2, "worker_batch": 4, "samples": 32, "evaluations": 1}
    return parsgd.fit(tiny(), algorithm, **sizes)


def test_a_code_of_ones_own_is_used():
    assert trained(halves()).status == "completed"


@pytest.mark.parametrize(
    "code, said",
    [
        (
            halves(decode=lambda p, like, key: p.reshape(-1).astype(like.dtype)),
            "compressor halves: decode returns float32[",
        ),
        (
            halves(
                lambda x, key: jnp.mean(x)[None].astype(jnp.bfloat16),
                lambda p, like, key: p.astype(like.dtype),
            ),
            "decode returns float32[1] where float32[",
        ),
        (
            halves(decode=lambda p, like, key: p),
            "decode returns bfloat16[",
        ),
        (halves(decode=lambda p: p), "decode of halves failed for float32["),
        (halves(lambda x: x), "takes 1 positional argument but 2 were given"),
        (halves(lambda x, key: None), "encode returns no array for float32["),
        (
            halves(lambda x, key: x.reshape(-1, 7919)),
            "encode of halves (whose key is None without stochastic=True) failed for",
        ),
        (
            halves(lambda x, key: jax.random.normal(key, x.shape)),
            "key is None without stochastic=True",
        ),
        (
            halves(
                decode=lambda p, like, key: (
                    p.astype(like.dtype) - jax.random.uniform(key, like.shape)
                ),
                stochastic=True,
            ),
            "decode of halves (whose key is None without shared_key=True) failed",
        ),
    ],
)
@pytest.mark.parametrize("reducer", [parsgd.error_feedback, parsgd.ef21])
def test_mistakes_in_a_code_are_told_with_its_name(code, said, reducer):
    with pytest.raises(UserError) as error:
        trained(code, reducer)
    assert said in str(error.value)


@pytest.mark.parametrize("reducer", [parsgd.error_feedback, parsgd.ef21])
def test_that_a_code_shrinks_its_error_must_be_said(reducer):
    code = Compressor(halves().encode, halves().decode, "my_halves")
    with pytest.raises(ValueError, match=r"my_halves.*contracts=True"):
        reducer(code)
    assert trained(code, parsgd.compressed_all_reduce).status == "completed"


@pytest.mark.parametrize("given", [parsgd.compressors.top_k, "top_k", None])
def test_what_is_no_code_is_refused(given):
    for reducer in (parsgd.error_feedback, parsgd.compressed_all_reduce):
        with pytest.raises(UserError, match=r"give a Compressor, such as"):
            reducer(given)


@pytest.mark.parametrize(
    "facts, options",
    [
        ({"sums": True}, {}),
        ({}, {"two_sided": True}),
        ({"add": lambda total, p, key: total + p.astype(total.dtype)}, {}),
        ({"encode_padded": lambda x, zeros, key: x.astype(jnp.bfloat16)}, {}),
    ],
)
def test_every_form_of_a_code_of_ones_own_is_checked(facts, options):
    reducer = lambda code: parsgd.error_feedback(code, **options)
    assert trained(halves(**facts), reducer).status == "completed"
    cut = halves(decode=lambda p, like, key: p.astype(like.dtype)[:1], **facts)
    with pytest.raises(UserError, match="decode returns float32"):
        trained(cut, reducer)


def test_a_sum_is_decoded_without_the_keys_of_others():
    """Subtractive dither of each worker's own: no worker knows what to take off."""
    dither = lambda x, key: jax.random.uniform(key, x.shape)
    code = Compressor(
        lambda x, key: (x + dither(x, key)).astype(jnp.bfloat16),
        lambda p, like, key: p.astype(like.dtype) - dither(like, key),
        "dithered", stochastic=True, sums=True,
    )  # fmt: skip
    with pytest.raises(UserError, match=r"decode of dithered .*failed"):
        trained(code, parsgd.compressed_all_reduce)
    shared = code._replace(shared_key=True)
    assert trained(shared, parsgd.compressed_all_reduce).status == "completed"


def test_an_addition_must_keep_the_total():
    with pytest.raises(UserError, match=r"add returns float32.* for a total of"):
        trained(halves(add=lambda total, p, key: total[:1]))
    with pytest.raises(UserError, match="add of halves failed"):
        trained(halves(add=lambda total, p: total))
