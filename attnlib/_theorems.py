"""The theorems as objects: to add one, add a `Theorem` to `THEOREMS`, strongest first.

Hypotheses are `Condition` objects: functions from `Facts` (numeric or exact) to a `Hypothesis`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._facts import Facts


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


@dataclass(frozen=True, eq=False)
class Condition:
    """A hypothesis before it is checked: a method of `Facts` with its arguments."""

    name: str
    must: str
    fact: str
    arguments: tuple[int, ...] = ()

    def __call__(self, facts: Facts) -> Hypothesis:
        """Check it."""
        found = facts.ask(self.fact, self.arguments)
        return Hypothesis(
            self.name, found.value, self.must, found.holds, found.margin, found.detail
        )


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
    "this book, What is proved, what is seen",
    (
        _IDENTITY,
        _SYMMETRIC,
        Condition("-A positive definite", "> 0", "score_definite", (-1,)),
    ),
    "one point: all rescaled tokens tend to it (proved, though by none of the paper's theorems)",
)
