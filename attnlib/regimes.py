"""Which theorem applies to (Q, K, V), and why: one object per theorem, and `classify`.

To add a theorem, add a `Theorem` to `THEOREMS`, at its place from strongest to weakest. Its
hypotheses are `Condition` objects: functions from `Facts` (numeric or exact) to a `Hypothesis`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Any

import numpy as np

from ._check import FloatArray, as_matrix, as_square
from ._facts import Fact, Facts, NumericFacts, show
from .dynamics import SelfAttention
from .spectrum import LowRank


@dataclass(frozen=True)
class Hypothesis:
    """A hypothesis of a theorem, checked.

    Attributes
    ----------
    name : str
        What is asked, in symbols.
    value : object
        What was found.
    must : str
        What the value must be.
    holds : bool or None
        None: undecided at this precision.
    margin : float
        How far `value` is inside (positive) or outside (negative) what it must be.
    detail : str
        Uncertainty, or the reason.
    """

    name: str
    value: Any
    must: str
    holds: bool | None
    margin: float
    detail: str


@dataclass(frozen=True)
class Condition:
    """A hypothesis before it is checked: a method of `Facts` with its arguments."""

    name: str
    must: str
    fact: str
    arguments: tuple[int, ...] = ()

    def __call__(self, facts: Facts) -> Hypothesis:
        """Check it."""
        found: Fact = getattr(facts, self.fact)(*self.arguments)
        return Hypothesis(self.name, found.value, self.must, found.holds, found.margin, found.detail)


@dataclass(frozen=True)
class Theorem:
    """A theorem: when it applies and what it says.

    Attributes
    ----------
    key : str or None
        Value of `Regime.theorem`; None for a statement that is not one of the paper's.
    title, statement, reference : str
    hypotheses : tuple of Condition
        All must hold.
    geometry : str
        The limit geometry, in words.
    """

    key: str | None
    title: str
    statement: str
    reference: str
    hypotheses: tuple[Condition, ...]
    geometry: str


PAPER = "Geshkovski, Letrouit, Polyanskiy, Rigollet, arXiv 2305.05465v6"

_LEADING = Condition("leading eigenvalue lam_1 of V", "real, > 0", "leading_positive")
_DOMINANT = Condition("|lam_1| - |others|", "> 0", "leading_dominant")
_SYMMETRIC = Condition("A = Q^T K symmetric", "0", "score_symmetric")
_DEFINITE = Condition("A positive definite", "> 0", "score_definite", (1,))
_IDENTITY = Condition("V = lam I", "lam > 0", "value_multiple", (1,))

THEOREMS: tuple[Theorem, ...] = (
    Theorem(
        "2.1",
        "Leaders in one dimension",
        "d = 1, V > 0, QK > 0, distinct tokens: P(t) tends to a matrix whose rows, but at most one, "
        "are e_1 or e_n.",
        f"{PAPER}, Theorem 2.1",
        (
            Condition("dimension d", "1", "dimension_one"),
            Condition("V", "> 0", "value_multiple", (1,)),
            Condition("QK", "> 0", "score_definite", (1,)),
        ),
        "rescaled tokens tend to at most three points: the limits of the leftmost and rightmost "
        "token and 0; generically one or two",
    ),
    Theorem(
        "3.1",
        "Polytope",
        "V = lam I, lam > 0, A symmetric positive definite: hulls of the rescaled tokens shrink to a "
        "convex polytope, and every token tends to a point of a finite set on its boundary, or to 0.",
        f"{PAPER}, Theorem 3.1 (time runs lam times faster than for V = I)",
        (_IDENTITY, _SYMMETRIC, _DEFINITE),
        "a convex polytope: rescaled tokens tend to finitely many points of its boundary (its "
        "vertices, as far as anyone has seen) or to 0",
    ),
    Theorem(
        "4.2",
        "Three hyperplanes",
        "Good triple: the coordinates phi_1*(z_i) converge to at most three values a <= 0 <= b.",
        f"{PAPER}, Definition 4.1 and Theorem 4.2",
        (
            _LEADING,
            Condition("multiplicity of lam_1", "1", "leading_simple"),
            _DOMINANT,
            Condition("<Q phi_1, K phi_1>", "> 0", "form_positive"),
        ),
        "at most three parallel hyperplanes {phi_1* = c}, phi_1* the left eigenvector of V; "
        "generically two",
    ),
    Theorem(
        "5.2",
        "Polytope times subspace",
        "V paranormal, A symmetric positive definite: tokens approach (boundary of K or 0) x G, K a "
        "bounded convex polytope in F.",
        f"{PAPER}, Definition 5.1 and Theorem 5.2",
        (
            _LEADING,
            Condition("V = lam_1 Id on F", "0", "leading_semisimple"),
            _DOMINANT,
            _SYMMETRIC,
            _DEFINITE,
        ),
        "a polytope in F, the eigenspace of lam_1, times the invariant complement G: rescaled tokens "
        "approach (boundary of the polytope or 0) x G",
    ),
    Theorem(
        "collapse",
        "Collapse to the origin",
        "V = -lam I, lam > 0, A symmetric positive definite: every token tends to 0 and P to 1/n.",
        f"{PAPER}, appendix, for V = -I and A = I; x -> A^(1/2) x and the clock give the rest",
        (Condition("V = lam I", "lam < 0", "value_multiple", (-1,)), _SYMMETRIC, _DEFINITE),
        "one cluster at the origin, for the tokens themselves (not rescaled), like t^(-1/2)",
    ),
)

CONTRACTION = Theorem(
    None,
    "Contraction",
    "V = lam I, lam > 0, -A symmetric positive definite: hulls of rescaled tokens are nested and "
    "distances between tokens never grow.",
    "this book, The catalogue of regimes",
    (
        _IDENTITY,
        _SYMMETRIC,
        Condition("-A positive definite", "> 0", "score_definite", (-1,)),
    ),
    "one point: all rescaled tokens tend to it (proved, though by none of the paper's theorems)",
)

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
        bad = {key: tuple(h for h in row if h.holds is False) for key, row in self.hypotheses.items()}
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
        rows = [(key, h.name, _value(h), h.must, _mark(h.holds), h.detail) for key, h in self._rows()]
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
            f'<table class="attnlib-regime"><caption>{caption}</caption>'
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
    known: dict[Condition, Hypothesis] = {}
    table = {}
    for theorem in THEOREMS:
        for condition in theorem.hypotheses:
            if condition not in known:
                known[condition] = condition(facts)
        table[str(theorem.key)] = tuple(known[c] for c in theorem.hypotheses)
    return table


def _verdict(table: Table, none: bool | None = None) -> tuple[str | None, bool]:
    """The strongest theorem that applies and whether that is undecided; `none` replaces None."""
    for key, row in table.items():
        answers = [none if h.holds is None else h.holds for h in row]
        if False in answers:
            continue
        return (None, True) if None in answers else (key, False)
    return None, False


def _readings(facts: Facts) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for text, reading in facts.scenarios() or [("", facts)]:
        table = _table(reading)
        verdict, open_ = _verdict(table)
        if not open_:
            found[text] = verdict
            continue
        names = dict.fromkeys(h.name for row in table.values() for h in row if h.holds is None)
        rest = " and ".join(names)
        for word, none in (("holds", True), ("fails", False)):
            case = f"{text}, and {rest} {word}" if text else f"{rest}: {word}"
            found[case] = _verdict(table, none)[0]
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
    if positive is False:
        return (
            "nothing is proved; the leading eigenvalue is not real and positive, and no clustering "
            "in its direction is to be expected"
        )
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


def keys() -> Sequence[str]:
    """Keys of `THEOREMS`, strongest first."""
    return [str(theorem.key) for theorem in THEOREMS]
