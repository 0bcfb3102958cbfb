"""Checks of arguments: every message names the argument, what came and what is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


def as_real_array(name: str, value: ArrayLike) -> FloatArray:
    """Return `value` as a fresh float64 array, or say why it cannot be one."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:  # ragged nesting
        raise ValueError(f"{name} must be a rectangular array of real numbers: {error}.") from None
    if array.dtype.kind == "O":
        try:
            if any(entry is None for entry in array.flat):
                raise TypeError
            array = array.astype(float)
        except (ValueError, TypeError, OverflowError):
            raise TypeError(
                f"{name} must hold real numbers: got objects such as {_sample(value)}."
            ) from None
    if array.dtype.kind == "c":
        raise TypeError(f"{name} must be real: got complex numbers ({array.dtype}).")
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} must hold real numbers: got {array.dtype} ({_sample(value)}).")
    array = np.array(array, dtype=np.float64)
    if not np.isfinite(array).all():
        bad = int((~np.isfinite(array)).sum())
        raise ValueError(f"{name} must be finite: got {bad} entries that are nan or infinite.")
    return array


def as_matrix(name: str, value: ArrayLike) -> FloatArray:
    """A finite real matrix; a bare number is a 1 x 1 matrix."""
    array = as_real_array(name, value)
    if array.ndim == 0:
        array = array.reshape(1, 1)
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(
            f"{name} must be a matrix with at least one entry: got shape {array.shape}."
        )
    return array


def as_square(name: str, value: ArrayLike) -> FloatArray:
    """A finite real square matrix."""
    array = as_matrix(name, value)
    if array.shape[0] != array.shape[1]:
        raise ValueError(f"{name} must be square: got shape {array.shape}.")
    return array


def as_tokens(value: ArrayLike, d: int | None = None, name: str = "tokens") -> FloatArray:
    """Tokens as rows, shape (n, d) with n >= 1; for d = 1 a flat list of n numbers will do."""
    array = as_real_array(name, value)
    if array.ndim == 1 and d == 1:
        array = array[:, None]
    wanted = f"(n, {d if d is not None else 'd'})"
    if array.ndim != 2:
        raise ValueError(
            f"{name} must have shape {wanted}, one token a row: got shape {array.shape}."
        )
    if array.shape[0] == 0:
        raise ValueError(f"{name} must hold at least one token: got shape {array.shape}.")
    if array.shape[1] == 0 or (d is not None and array.shape[1] != d):
        raise ValueError(
            f"{name} must have shape {wanted} to fit the weights: got shape {array.shape}."
        )
    return array


def as_number(
    name: str,
    value: object,
    *,
    at_least: float | None = None,
    above: float | None = None,
) -> float:
    """A finite real number within the stated bounds."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a real number: got {_sample(value)}.")
    try:
        number = float(value)
    except OverflowError:
        number = float("inf")
    if not np.isfinite(number):
        raise ValueError(f"{name} must be finite: got {number}.")
    if at_least is not None and number < at_least:
        raise ValueError(f"{name} must be at least {at_least:g}: got {number:g}.")
    if above is not None and number <= above:
        raise ValueError(f"{name} must be greater than {above:g}: got {number:g}.")
    return number


def as_count(name: str, value: object, *, at_least: int = 0) -> int:
    """A whole number."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number: got {_sample(value)}.")
    number = int(value)
    if number < at_least:
        raise ValueError(f"{name} must be at least {at_least}: got {number}.")
    return number


def as_times(
    name: str, value: ArrayLike | Sequence[float], low: float, high: float
) -> tuple[FloatArray, bool]:
    """Times inside [low, high] as a flat array, and whether a single number came."""
    array = as_real_array(name, value)
    if array.ndim > 1:
        raise ValueError(f"{name} must be a number or a flat list: got shape {array.shape}.")
    flat = array.reshape(-1)
    if flat.size and (flat.min() < low or flat.max() > high):
        raise ValueError(
            f"{name} must lie in [{low:g}, {high:g}], the span of the trajectory: "
            f"got {flat.min():g} to {flat.max():g}."
        )
    return flat, array.ndim == 0


def _sample(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"
