"""Checks on user-written compressors, with errors that name them."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

from parsgd.compressors.base import Compressor, Key, Payload
from parsgd.errors import UserError, first_line, raised_at

_DRAWS = " (whose key is None without stochastic=True)"
_UNKNOWN = " (whose key is None without shared_key=True)"


def checked(compressor: Compressor, argument: str = "compressor") -> Compressor:
    """The same compressor, which reports mistakes when it is traced, at no cost later.

    Args:
        compressor: As given.
        argument: What it was given as.

    Raises:
        UserError: ``compressor`` is not a `Compressor`; or, when it is used, its
            functions fail, encode to nothing, or decode to another shape or type.
    """
    if not isinstance(compressor, Compressor):
        given = getattr(compressor, "__name__", None) or type(compressor).__name__
        raise UserError(
            f"{argument}={given}: give a Compressor, such as "
            "parsgd.compressors.top_k(density=0.01) makes, or "
            "Compressor(encode, decode, 'my_code') of your own functions"
        )
    name = compressor.name

    def encode(x: jax.Array, key: Key) -> Payload:
        draws = "" if key is not None else _DRAWS
        with _named(f"encode of {name}{draws}", x):
            payload = compressor.encode(x, key)
        if not jax.tree.leaves(payload):
            raise UserError(
                f"compressor {name}: encode returns no array for {_kind(x)}: return "
                "the arrays that are to be sent, in a tuple or a dict"
            )
        return payload

    def decode(payload: Payload, like: Any, key: Key) -> jax.Array:
        draws = _UNKNOWN if key is None and compressor.stochastic else ""
        with _named(f"decode of {name}{draws}", like):
            out = compressor.decode(payload, like, key)
        if _kind(out) != _kind(like):
            raise UserError(
                f"compressor {name}: decode returns {_kind(out)} where {_kind(like)} "
                "was encoded: it must return an array of like's shape and dtype, as by "
                "out.reshape(like.shape).astype(like.dtype)"
            )
        return out

    def encode_padded(x: jax.Array, zeros: jax.Array, key: Key) -> Payload:
        with _named(f"encode_padded of {name}", x):
            return padded(x, zeros, key)  # type: ignore[misc]

    def add(total: jax.Array, payload: Payload, key: Key) -> jax.Array:
        with _named(f"add of {name}", total):
            out = added(total, payload, key)  # type: ignore[misc]
        if _kind(out) != _kind(total):
            raise UserError(
                f"compressor {name}: add returns {_kind(out)} for a total of "
                f"{_kind(total)}: it must return the total with the payload added"
            )
        return out

    padded, added = compressor.encode_padded, compressor.add
    return compressor._replace(
        encode=encode,
        decode=decode,
        encode_padded=None if padded is None else encode_padded,
        add=None if added is None else add,
    )


@contextlib.contextmanager
def _named(what: str, x: Any) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{what} failed for {_kind(x)}: {type(error).__name__}: "
            f"{first_line(error)}{raised_at(error)}"
        ) from error


def _kind(x: Any) -> str:
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        return f"a {type(x).__name__}"
    return f"{x.dtype}{list(x.shape)}"


def check_contracts(name: str, compressor: Compressor, instead: str = "") -> None:
    """Refuse a compressor with which a residual would grow.

    Args:
        name: What keeps the residual.
        compressor: The compressor.
        instead: What to use in place of ``name``, in words.

    Raises:
        UserError: The compressor does not shrink its error.
    """
    if compressor.contracts:
        return
    instead = f"{instead}, or " * bool(instead)
    if compressor.contracts_with:
        instead += f"{compressor.name} with {compressor.contracts_with}, or "
    raise UserError(
        f"{name} with {compressor.name}: the error of this compressor is not known to "
        "be smaller than what it encodes (contracts=False), and feedback would let it "
        f"grow without bound; use {instead}a compressor with contracts=True, "
        "such as one_bit or natural"
    )
