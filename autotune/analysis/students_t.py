"""Quantiles of Student's t distribution, without SciPy: the training processes need them too.

The tail probability is half the regularised incomplete beta function
``I_x(df/2, 1/2)`` at ``x = df / (df + t²)`` (Abramowitz & Stegun 26.7.1), computed with its
continued fraction (26.5.8, evaluated by Lentz's method). For large ``df``, where that loses
digits, the expansion about the normal quantile (26.7.5) is exact to rounding.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Final

_LARGE_DF: Final = 1000.0
_TINY: Final = 1e-300


@lru_cache(maxsize=1024)
def quantile(p: float, df: float) -> float:
    """Return the value that a t-distributed variable stays below with probability ``p``.

    Args:
        p: Probability, strictly between 0 and 1.
        df: Degrees of freedom, above 0; need not be whole.

    Raises:
        ValueError: An argument is out of range.
    """
    if not 0.0 < p < 1.0:
        raise ValueError(f"a quantile needs a probability between 0 and 1, not {p!r}")
    if not df > 0.0:
        raise ValueError(f"degrees of freedom must be positive, not {df!r}")
    if p == 0.5:
        return 0.0
    if p < 0.5:
        return -_upper(p, df)
    return _upper(1.0 - p, df)


def _upper(tail: float, df: float) -> float:
    """Return t > 0 with P(T > t) = ``tail`` < 0.5."""
    if df > _LARGE_DF:
        return _expansion(tail, df)
    low, high = 0.0, 1.0
    while _tail(high, df) > tail:
        low, high = high, high * 2.0
    t = 0.5 * (low + high)
    for _ in range(200):
        excess = _tail(t, df) - tail
        if excess > 0:
            low = t
        else:
            high = t
        step = excess / _density(t, df)
        proposal = t + step
        # Newton leaves the bracket only far out in the tail; bisection is safe there.
        nxt = proposal if low < proposal < high else 0.5 * (low + high)
        if abs(nxt - t) <= 1e-15 * abs(t):
            return nxt
        t = nxt
    return t


def _tail(t: float, df: float) -> float:
    """P(T > t) for t > 0."""
    x = df / (df + t * t)
    return 0.5 * _incomplete_beta(df / 2.0, 0.5, x, t * t / (df + t * t))


def _density(t: float, df: float) -> float:
    log_scale = math.lgamma((df + 1.0) / 2.0) - math.lgamma(df / 2.0) - 0.5 * math.log(df * math.pi)
    return math.exp(log_scale - (df + 1.0) / 2.0 * math.log1p(t * t / df))


def _incomplete_beta(a: float, b: float, x: float, complement: float) -> float:
    """I_x(a, b), with ``complement`` = 1 - x given exactly."""
    if x <= 0.0:
        return 0.0
    if complement <= 0.0:
        return 1.0
    log_front = (
        math.lgamma(a + b)
        - math.lgamma(a)
        - math.lgamma(b)
        + a * math.log(x)
        + b * math.log(complement)
    )
    front = math.exp(log_front)
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, complement) / b


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    value = d
    for m in range(1, 2000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for term in (even, odd):
            d = 1.0 + term * d
            c = 1.0 + term / c
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = c if abs(c) > _TINY else _TINY
            change = c * d
            value *= change
        if abs(change - 1.0) < 1e-16:
            break
    return value


def _expansion(tail: float, df: float) -> float:
    z = -NormalDist().inv_cdf(tail)
    z2 = z * z
    terms = (
        (z2 + 1.0) / 4.0,
        ((5.0 * z2 + 16.0) * z2 + 3.0) / 96.0,
        (((3.0 * z2 + 19.0) * z2 + 17.0) * z2 - 15.0) / 384.0,
        ((((79.0 * z2 + 776.0) * z2 + 1482.0) * z2 - 1920.0) * z2 - 945.0) / 92160.0,
    )
    return z + sum(z * term / df ** (power + 1) for power, term in enumerate(terms))
