"""Max-pooling of planes, with a gradient that is fast on CPU."""

import jax
import jax.numpy as jnp


@jax.custom_vjp
def max_pool(x: jax.Array) -> jax.Array:
    """Maxima of 2 x 2 tiles of planes, ``[C, H, W, b] -> [C, H // 2, W // 2, b]``.

    Done by reshaping: the gradient of a windowed reduction is a slow scatter on CPU. Of
    equal maxima the first gets the gradient; sharing it among them, as ``jnp.max``
    does, would need another pass over all numbers. There is no forward mode: compute
    Hessian-vector products as ``jax.vjp(jax.grad(loss), params)[1](v)``.
    """
    tiles = _tiles(x)
    a, b, c, d = (tiles[:, :, i, :, j] for i in (0, 1) for j in (0, 1))
    return _larger(_larger(a, b), _larger(c, d))


def _larger(a: jax.Array, b: jax.Array) -> jax.Array:
    # XLA's maximum on a CPU may drop NaN, which would hide that a run has diverged.
    return jnp.where(a > b, a, jnp.where(b >= a, b, a + b))


def _tiles(x: jax.Array) -> jax.Array:
    channels, height, width, b = x.shape
    height, width = height // 2, width // 2
    x = x[:, : 2 * height, : 2 * width]
    return x.reshape(channels, height, 2, width, 2, b)


def _max_pool_forward(x: jax.Array) -> tuple[jax.Array, tuple]:
    y = max_pool(x)
    return y, (x, y)


def _max_pool_backward(kept: tuple, left: jax.Array) -> tuple[jax.Array]:
    x, y = kept
    tiles, parts = _tiles(x), []
    for i, j in ((0, 0), (0, 1), (1, 0)):
        parts.append(jnp.where(tiles[:, :, i, :, j] == y, left, 0.0))
        left = left - parts[-1]
    rows = jnp.stack(parts[:2], 3), jnp.stack([parts[2], left], 3)
    grad = jnp.stack(rows, 2)
    channels, height, _, width, _, b = grad.shape
    grad = grad.reshape(channels, 2 * height, 2 * width, b)
    cut = [(0, 0), *((0, n % 2) for n in x.shape[1:3]), (0, 0)]
    return (jnp.pad(grad, cut),)


max_pool.defvjp(_max_pool_forward, _max_pool_backward)
