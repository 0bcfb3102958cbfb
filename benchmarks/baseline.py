"""The paper's own scheme in plain loops: what most people would write first.

Rescaled tokens, V = I, attention frozen over steps of 0.1 (the classical Runge-Kutta stages all
shift every token alike, so that each step is exactly one of explicit Euler).
"""

from __future__ import annotations

import math

Rows = list[list[float]]


def velocity(z: Rows, attention: Rows) -> Rows:
    """sum_j P_ij (z_j - z_i), token by token."""
    n, d = len(z), len(z[0])
    out = []
    for i in range(n):
        move = [0.0] * d
        for j in range(n):
            for c in range(d):
                move[c] += attention[i][j] * (z[j][c] - z[i][c])
        out.append(move)
    return out


def attention(z: Rows, t: float) -> Rows:
    """P_ij = 1 / sum_l exp(<x_i, x_l> - <x_i, x_j>), x = e^t z, Q = K = I: (1.2) as printed."""
    n, d = len(z), len(z[0])
    growth = math.exp(2.0 * t)
    rows = []
    for i in range(n):
        row = []
        for j in range(n):
            total = 0.0
            for m in range(n):
                gap = 0.0
                for c in range(d):
                    gap += z[i][c] * (z[m][c] - z[j][c])
                total += math.exp(min(700.0, growth * gap))
            row.append(1.0 / total)
        rows.append(row)
    return rows


def run(z: Rows, t_final: float, step: float = 0.1) -> Rows:
    """Tokens z at t_final."""
    for k in range(round(t_final / step)):
        frozen = attention(z, k * step)
        k1 = velocity(z, frozen)
        k2 = velocity(_moved(z, k1, step / 2), frozen)
        k3 = velocity(_moved(z, k2, step / 2), frozen)
        k4 = velocity(_moved(z, k3, step), frozen)
        for i, row in enumerate(z):
            for c in range(len(row)):
                row[c] += step / 6 * (k1[i][c] + 2 * k2[i][c] + 2 * k3[i][c] + k4[i][c])
    return z


def _moved(z: Rows, slopes: Rows, step: float) -> Rows:
    # As in the published script the stage shifts all tokens by the first slope's mean effect.
    return [
        [a + step * b for a, b in zip(p, q, strict=True)] for p, q in zip(z, slopes, strict=True)
    ]
