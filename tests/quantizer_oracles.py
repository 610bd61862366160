"""Quantising codes in numpy, from their papers, in float64; bits as Python strings.

Each takes the flat values v and, where it rounds at random, u uniform in [0, 1), and
returns what v decodes to.
"""

import math

import numpy as np


def packed(codes, width):
    """Eight rows; a column's codes follow each other from the lowest bit on."""
    columns = -(-len(codes) // 8)
    full = list(codes) + [0] * (8 * columns - len(codes))
    out = np.zeros((width, columns), np.uint8)
    for column in range(columns):
        bits = "".join(
            format(int(full[row * columns + column]), f"0{width}b")[::-1]
            for row in range(8)
        )
        for byte in range(width):
            out[byte, column] = int(bits[8 * byte : 8 * byte + 8][::-1], 2)
    return out.reshape(-1)


def uniform(words):
    """Numbers in [0, 1) from random words of 32 bits."""
    return np.float64(np.asarray(words) >> 8) / 2**24


def blocks(n, size):
    size = size or max(n, 1)
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


def up_or_down(t, u):
    """The two integers around t: the one above where u reaches the rest to it."""
    below = np.floor(t)
    return np.where(u >= 1 - (t - below), below + 1, below)


def qsgd(v, u, levels, bucket, norm):
    q = np.zeros_like(v)
    for part in blocks(len(v), bucket):
        size = np.linalg.norm(v[part]) if norm == "l2" else np.abs(v[part]).max()
        if size > 0:
            q[part] = size / levels * up_or_down(levels * v[part] / size, u[part])
    return q


def qsgd_variance(v, levels, bucket, norm):
    """norm^2 / s^2 p (1 - p) of each entry."""
    out = np.zeros_like(v)
    for part in blocks(len(v), bucket):
        size = np.linalg.norm(v[part]) if norm == "l2" else np.abs(v[part]).max()
        p = np.modf(levels * np.abs(v[part]) / (size or 1))[0]
        out[part] = (size / levels) ** 2 * p * (1 - p)
    return out


def clipped(v, c):
    limit = c * math.sqrt(np.mean(v**2))
    return np.clip(v, -limit, limit)


def terngrad(v, u, clip):
    if clip is not None:
        v = clipped(v, clip)
    s = np.abs(v).max(initial=0)
    return s * up_or_down(v / s, u) if s > 0 else np.zeros_like(v)


def natural(v, u):
    out = np.zeros_like(v)
    for i, (x, random) in enumerate(zip(v, u, strict=True)):
        if x != 0:
            low = 2.0 ** math.floor(math.log2(abs(x)))
            up = random >= 1 - (abs(x) / low - 1)
            out[i] = math.copysign(2 * low if up else low, x)
    return out


def linear_8bit(v, block, u=None):
    q = np.zeros_like(v)
    for part in blocks(len(v), block):
        largest = np.abs(v[part]).max()
        if largest > 0:
            t = 127 * v[part] / largest
            steps = np.round(t) if u is None else up_or_down(t, u[part])
            q[part] = largest / 127 * steps
    return q


def dynamic_tree():
    """All 256 values, read off the bits of their codes."""
    values = []
    for code in range(256):
        sign, rest = code >> 7, format(code & 127, "07b")
        if "1" not in rest:
            values.append(1.0 if sign else 0.0)
            continue
        exponent = rest.index("1")
        fraction = rest[exponent + 1 :]
        low, high = 0.1, 1.0
        for bit in fraction:  # bisection; the middle of what is left
            middle = (low + high) / 2
            low, high = (middle, high) if bit == "1" else (low, middle)
        value = 10.0**-exponent * (low + high) / 2
        values.append(-value if sign else value)
    return np.array(values)


def dynamic_tree_8bit(v, block):
    table, q = dynamic_tree(), np.zeros_like(v)
    for part in blocks(len(v), block):
        largest = np.abs(v[part]).max()
        if largest > 0:
            far = np.abs(v[part][:, None] / largest - table)
            q[part] = largest * table[far.argmin(axis=1)]
    return q


def scaled_sign(v, zero, norm="l1"):
    sign = np.where(v == 0, 1 if zero == "positive" else -1, np.sign(v))
    size = np.abs(v).mean() if norm == "l1" else np.sqrt(np.square(v).mean())
    return size * sign


def rounded(v, precision, smallest, largest):
    """To ``precision`` bits, ties to even, in steps of ``smallest`` at least."""
    out = np.zeros_like(v)
    for i, x in enumerate(v):
        exponent = math.floor(math.log2(abs(x))) if x else 0
        step = max(2.0 ** (exponent - precision + 1), smallest)
        out[i] = np.clip(np.round(x / step) * step, -largest, largest)
    return out
