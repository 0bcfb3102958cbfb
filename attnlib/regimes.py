"""Which theorem applies to (Q, K, V), and why: `classify` and its `Regime`.

The theorems themselves are objects in `THEOREMS` (module `_theorems`): to add one, add an object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Any

import numpy as np

from ._check import FloatArray, as_matrix, as_square
from ._facts import Facts, NumericFacts, show
from ._theorems import CONTRACTION, THEOREMS, Hypothesis, Theorem
from .dynamics import SelfAttention
from .spectrum import LowRank

__all__ = ["THEOREMS", "Hypothesis", "LowRank", "Regime", "Theorem", "classify"]

Table = Mapping[str, tuple[Hypothesis, ...]]


@dataclass(frozen=True, eq=False)
class Regime:
    """What is known of (Q, K, V) beforehand.

    Attributes
    ----------
    theorem : str or None
        "2.1", "3.1", "4.2", "5.2", "collapse": the strongest theorem that applies; None if none does
        or if that is undecided.
    hypotheses : mapping from theorem to tuple of Hypothesis
        Every hypothesis of every theorem, strongest theorem first.
    undecided : bool
        Precision does not tell which theorem applies.
    readings : mapping from str to (str or None)
        If undecided: the verdict in each case that precision cannot tell apart.
    geometry : str
        The limit geometry to expect, and whether that is proved.
    codimension : int or None
        k of Conjecture 4.3 (eigenvalues of V with positive real part), for good triples.
    leading : float or complex
        The eigenvalue of V of largest modulus (one of them, if several).
    normal : (d,) array or None
        phi_1*, the left eigenvector, phi_1*(phi_1) = 1 with |phi_1| = 1, if 4.2 applies.
    """

    theorem: str | None
    hypotheses: Table
    undecided: bool
    readings: Mapping[str, str | None]
    geometry: str
    codimension: int | None
    leading: Any
    normal: Any
    _facts: Any = field(repr=False)

    @property
    def failing(self) -> Mapping[str, tuple[Hypothesis, ...]]:
        """Hypotheses that fail, by theorem; empty if a theorem applies."""
        if self.theorem is not None:
            return {}
        bad = {
            key: tuple(h for h in row if h.holds is False) for key, row in self.hypotheses.items()
        }
        return {key: row for key, row in bad.items() if row}

    @cached_property
    def _perturbed(self) -> tuple[FloatArray, float] | None:
        if not self.undecided or not isinstance(self._facts, NumericFacts):
            return None
        q, k = self._facts.Q, self._facts.K

        def decided(matrix: FloatArray) -> bool:
            return not _verdict(_table(NumericFacts(q, k, matrix)))[1]

        return self._facts.perturbation(decided)

    @property
    def perturbation(self) -> FloatArray | None:
        """A small matrix E, (d, d), such that V + E is decided; None if only A is undecided."""
        return self._perturbed[0] if self._perturbed else None

    @property
    def perturbation_norm(self) -> float | None:
        """Spectral norm of `perturbation`."""
        return self._perturbed[1] if self._perturbed else None

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.undecided:
            cases = "; ".join(f"{_name(v)} if {k}" for k, v in self.readings.items())
            return f"Undecided at this precision: {cases}."
        if self.theorem is None:
            return "No theorem applies."
        if self.theorem == "collapse":
            return "The collapse theorem applies."
        return f"Theorem {self.theorem} applies."

    def explain(self) -> str:
        """A short text: the verdict, the geometry, and a table of all hypotheses."""
        lines = [self.verdict, f"Limit: {self.geometry}."]
        if self.codimension is not None:
            lines.append(f"Conjecture 4.3: codimension k = {self.codimension}.")
        rows = [
            (key, h.name, _value(h), h.must, _mark(h.holds), h.detail) for key, h in self._rows()
        ]
        head = ("theorem", "hypothesis", "value", "must be", "holds", "")
        wide = [max(len(row[i]) for row in [head, *rows]) for i in range(5)]
        for row in [head, *rows]:
            cells = [cell.ljust(w) for cell, w in zip(row, wide, strict=False)]
            lines.append("  ".join([*cells, row[5]]).rstrip())
        return "\n".join(lines)

    def _rows(self) -> list[tuple[str, Hypothesis]]:
        return [(key, h) for key, row in self.hypotheses.items() for h in row]

    def __str__(self) -> str:
        return self.explain()

    def _repr_html_(self) -> str:
        head = "".join(
            f'<th scope="col">{name}</th>'
            for name in ("Theorem", "Hypothesis", "Value", "Must be", "Holds", "Remark")
        )
        body = "".join(
            f'<tr><th scope="row">{escape(key)}</th><td>{escape(h.name)}</td>'
            f"<td>{escape(_value(h))}</td><td>{escape(h.must)}</td><td>{_mark(h.holds)}</td>"
            f"<td>{escape(h.detail)}</td></tr>"
            for key, h in self._rows()
        )
        caption = escape(f"{self.verdict} Limit: {self.geometry}.")
        return (
            f'<table class="attnlib-regime"><caption style="color:inherit">{caption}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )


def classify(Q: Any, K: Any = None, V: Any = None) -> Regime:
    """Which theorem of arXiv 2305.05465 applies to the weights, before any token moves.

    Parameters
    ----------
    Q, K : (k, d) arrays
        Query and key weights; bare numbers if d = 1.
    V : (d, d) array or LowRank
        Value weights. A `LowRank` costs r^3 instead of d^3.

    `classify(system)` takes a `SelfAttention`. If one of the three is a SymPy matrix, the
    verdict is by exact algebra.

    Returns
    -------
    Regime

    Raises
    ------
    ValueError, TypeError
        If shapes do not fit or entries are not finite real numbers.

    Examples
    --------
    >>> import numpy as np
    >>> classify(np.eye(2), np.eye(2), np.eye(2)).theorem
    '3.1'
    >>> classify(np.eye(2), np.eye(2), [[2.0, 1.0], [0.0, -1.0]]).theorem
    '4.2'
    """
    if isinstance(Q, SelfAttention) and K is None and V is None:
        Q, K, V = Q.Q, Q.K, Q.V
    if K is None or V is None:
        raise TypeError("classify wants Q, K and V, or one SelfAttention.")
    if any(type(m).__module__.split(".")[0] == "sympy" for m in (Q, K, V)):
        from ._exact import ExactFacts

        return _regime(ExactFacts(Q, K, V))
    return _regime(NumericFacts(*_weights(Q, K, V)))


def _weights(Q: Any, K: Any, V: Any) -> tuple[FloatArray, FloatArray, FloatArray | LowRank]:
    v = V if isinstance(V, LowRank) else as_square("V", V)
    q, k = as_matrix("Q", Q), as_matrix("K", K)
    if q.shape != k.shape:
        raise ValueError(f"Q and K must have the same shape: got {q.shape} and {k.shape}.")
    if q.shape[1] != v.shape[0]:
        raise ValueError(
            f"V must act on tokens of dimension {q.shape[1]}, the columns of Q: got shape {v.shape}."
        )
    return q, k, v


def _table(facts: Facts) -> dict[str, tuple[Hypothesis, ...]]:
    return {str(t.key): tuple(condition(facts) for condition in t.hypotheses) for t in THEOREMS}


def _verdict(table: Table) -> tuple[str | None, bool]:
    """The strongest theorem that applies, and whether that is undecided."""
    for key, row in table.items():
        answers = [h.holds for h in row]
        if False in answers:
            continue
        return (None, True) if None in answers else (key, False)
    return None, False


def _readings(facts: Facts) -> dict[str, str | None]:
    """The verdict in every case: first those of the spectrum, then hypotheses one by one."""
    found: dict[str, str | None] = {}
    for text, reading in facts.scenarios() or [("", facts)]:
        prefix = f"{text}, and " if text else ""
        table = _table(reading)
        verdict, open_ = _verdict(table)
        failed: list[set[str]] = []
        if not open_:
            found[text] = verdict
            continue
        for key, row in table.items():
            if any(h.holds is False for h in row):
                continue
            asked = [f"{h.name} ({h.must})" for h in row if h.holds is None]
            if not asked:
                found[f"{text}, otherwise" if text else "otherwise"] = key
                break
            if any(before <= set(asked) for before in failed):
                continue
            failed.append(set(asked))
            found[f"{prefix}{' and '.join(asked)}"] = key
            prefix = f"{text}, failing that, " if text else "failing that, "
        else:
            found[f"{text}, otherwise" if text else "otherwise"] = None
    return found


def _regime(facts: Facts) -> Regime:
    table = _table(facts)
    theorem, undecided = _verdict(table)
    readings = _readings(facts) if undecided else {}
    good = all(h.holds for h in table["4.2"])
    count, open_ = facts.positive()
    geometry = _geometry(facts, table, theorem, undecided, count if not open_ else None)
    return Regime(
        theorem=theorem,
        hypotheses=table,
        undecided=undecided,
        readings=readings,
        geometry=geometry,
        codimension=count if good and not open_ else None,
        leading=facts.leading(),
        normal=_normal(facts) if good else None,
        _facts=facts,
    )


def _normal(facts: Facts) -> Any:
    normal = facts.normal()
    if isinstance(normal, np.ndarray):
        normal.setflags(write=False)
    return normal


def _geometry(
    facts: Facts, table: Table, theorem: str | None, undecided: bool, count: int | None
) -> str:
    if theorem is not None:
        return next(t.geometry for t in THEOREMS if t.key == theorem)
    if undecided:
        return "depends on the reading"
    if all(condition(facts).holds for condition in CONTRACTION.hypotheses):
        return CONTRACTION.geometry
    positive, simple, dominant, form = (h.holds for h in table["4.2"])
    if count == 0:
        return "nothing is proved; V has no eigenvalue with positive real part"
    if positive is False and isinstance(facts.leading(), complex):
        return "nothing is proved; a complex pair leads, and the authors expect no clustering"
    if positive is False:
        return "nothing is proved; no real positive eigenvalue leads"
    if simple and dominant and form is False:
        return (
            "nothing is proved: <Q phi_1, K phi_1> is not positive; Conjecture 4.3, stated for good "
            "triples, says nothing either"
        )
    return "nothing is proved"


def _value(hypothesis: Hypothesis) -> str:
    return show(hypothesis.value)


def _mark(holds: bool | None) -> str:
    return {True: "yes", False: "no", None: "undecided"}[holds]


def _name(theorem: str | None) -> str:
    return "no theorem" if theorem is None else theorem
