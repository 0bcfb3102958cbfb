"""Bad input: an error that names the argument, what came and what is wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnlib import SelfAttention, integrate, layers, limit, tokens

I2 = np.eye(2)
SYSTEM = SelfAttention(I2, I2, I2)
X = np.array([[0.0, 1.0], [1.0, 0.5]])

WEIGHTS = [
    ((I2, I2, [[1, 0], [0, np.nan]]), ValueError, ("V", "finite", "1")),
    ((I2, [[np.inf, 0], [0, 1]], I2), ValueError, ("K", "finite")),
    (([[1j, 0], [0, 1]], I2, I2), TypeError, ("Q", "complex", "real")),
    ((I2, I2, np.ones((3, 2))), ValueError, ("V", "square", "(3, 2)")),
    ((I2, I2, np.eye(3)), ValueError, ("V", "2", "(3, 3)")),
    ((I2, np.eye(3), I2), ValueError, ("Q and K", "(2, 2)", "(3, 3)")),
    ((np.zeros((0, 2)), np.zeros((0, 2)), I2), ValueError, ("Q", "(0, 2)")),
    ((I2, I2, "one"), TypeError, ("V", "real", "one")),
    ((I2, I2, None), TypeError, ("V", "None")),
    ((I2, I2, [[1, 0], [0]]), ValueError, ("V", "rectangular")),
    ((I2, I2, np.ones((2, 2, 2))), ValueError, ("V", "matrix", "(2, 2, 2)")),
    (([1.0, 2.0], I2, I2), ValueError, ("Q", "matrix", "(2,)")),
]


@pytest.mark.parametrize(("weights", "error", "parts"), WEIGHTS)
def test_weights(weights: tuple, error: type[Exception], parts: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        SelfAttention(*weights)
    for part in parts:
        assert part in str(caught.value)


TOKENS = [
    (np.array([[np.nan, 0.0]]), ValueError, ("tokens", "finite")),
    (X + 0j, TypeError, ("tokens", "complex")),
    (X > 0, TypeError, ("tokens", "bool")),
    (np.zeros((0, 2)), ValueError, ("tokens", "at least one", "(0, 2)")),
    ([], ValueError, ("tokens", "(n, 2)", "(0,)")),
    (np.zeros((3, 5)), ValueError, ("tokens", "(n, 2)", "(3, 5)")),
    ([1.0, 2.0], ValueError, ("tokens", "(n, 2)", "(2,)")),
    (np.zeros((2, 2, 2)), ValueError, ("tokens", "(2, 2, 2)")),
    ("hello", TypeError, ("tokens", "hello")),
    (None, TypeError, ("tokens", "None")),
    ([[1.0], [1.0, 2.0]], ValueError, ("tokens", "rectangular")),
    ([["a", "b"]], TypeError, ("tokens", "real")),
]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: integrate(SYSTEM, x, 1.0),
        lambda x: limit(SYSTEM, x),
        lambda x: layers(SYSTEM, x, 2, 0.1),
        SYSTEM.attention,
    ],
)
@pytest.mark.parametrize(("bad", "error", "parts"), TOKENS)
def test_tokens(
    call: Callable[[Any], Any], bad: Any, error: type[Exception], parts: tuple[str, ...]
) -> None:
    with pytest.raises(error) as caught:
        call(bad)
    for part in parts:
        assert part in str(caught.value)


OPTIONS: list[tuple[dict[str, Any], type[Exception], tuple[str, ...]]] = [
    ({"t_final": -1.0}, ValueError, ("t_final", "at least 0", "-1")),
    ({"t_final": np.inf}, ValueError, ("t_final", "finite")),
    ({"t_final": np.nan}, ValueError, ("t_final", "finite")),
    ({"t_final": "2"}, TypeError, ("t_final", "number", "2")),
    ({"t_final": None}, TypeError, ("t_final", "None")),
    ({"t_final": True}, TypeError, ("t_final", "bool")),
    ({"t_final": 1j}, TypeError, ("t_final", "1j")),
    ({"rtol": 0.0}, ValueError, ("rtol", "0")),
    ({"rtol": 0.5}, ValueError, ("rtol", "0.5")),
    ({"atol": -1.0}, ValueError, ("atol", "-1")),
    ({"method": "Euler"}, ValueError, ("method", "DOP853", "Euler")),
    ({"max_steps": 0}, ValueError, ("max_steps", "0")),
    ({"max_steps": 1.5}, TypeError, ("max_steps", "1.5")),
    ({"times": [0.0, 2.0]}, ValueError, ("times", "[0, 1]", "2")),
    ({"times": [0.5, 0.2]}, ValueError, ("times", "increasing")),
    ({"progress": 3}, TypeError, ("progress", "callable", "int")),
]


@pytest.mark.parametrize(("options", "error", "parts"), OPTIONS)
def test_integrate(options: dict[str, Any], error: type[Exception], parts: tuple[str, ...]) -> None:
    arguments = {"t_final": 1.0, **options}
    with pytest.raises(error) as caught:
        integrate(SYSTEM, X, **arguments)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("call", "error", "parts"),
    [
        (lambda: integrate("system", X, 1.0), TypeError, ("system", "str")),
        (lambda: limit(np.eye(2), X), TypeError, ("system", "ndarray")),
        (lambda: layers(3, X, 2, 0.1), TypeError, ("system", "int")),
        (lambda: layers(SYSTEM, X, -1, 0.1), ValueError, ("depth", "-1")),
        (lambda: layers(SYSTEM, X, 2.5, 0.1), TypeError, ("depth", "2.5")),
        (lambda: layers(SYSTEM, X, 2, 0.0), ValueError, ("step", "0")),
        (lambda: integrate(SYSTEM, X, 1.0).at(1.5), ValueError, ("t", "[0, 1]", "1.5")),
        (lambda: integrate(SYSTEM, X, 1.0).at([[0.5]]), ValueError, ("t", "(1, 1)")),
        (lambda: integrate(SYSTEM, X, 1.0).attention("x"), TypeError, ("t", "x")),
        (lambda: limit(SYSTEM, X, rtol=-1), ValueError, ("rtol", "-1")),
        (lambda: tokens.box(0, 2), ValueError, ("n", "0")),
        (lambda: tokens.box(3, 2, half_width=-1), ValueError, ("half_width", "-1")),
        (lambda: tokens.ball(3, 0), ValueError, ("d", "0")),
        (lambda: tokens.sphere(3, 2, radius="big"), TypeError, ("radius", "big")),
        (lambda: tokens.from_text("", 2), ValueError, ("text", "word")),
        (lambda: tokens.from_text(5, 2), TypeError, ("text", "int")),
    ],
)
def test_calls(call: Callable[[], Any], error: type[Exception], parts: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        call()
    for part in parts:
        assert part in str(caught.value)


def test_kind_to_one_dimension() -> None:
    system = SelfAttention(1, 1.0, [[2]])
    assert system.d == 1 and integrate(system, [0.5, -0.5], 1).tokens.shape[1:] == (2, 1)
    assert "SelfAttention(Q=[[1.]]" in repr(system)


def test_weights_cannot_be_changed_behind_the_back() -> None:
    v = np.eye(2)
    system = SelfAttention(v, v, v)
    v[0, 0] = 7.0
    assert system.V[0, 0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        system.V[0, 0] = 3.0
