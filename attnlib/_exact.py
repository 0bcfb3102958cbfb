"""`Facts` by exact algebra, for SymPy matrices: no tolerance anywhere.

Rational V: multiplicities come from the factors of the characteristic polynomial, moduli are compared
in 60 digits, and what agrees there is proved equal or not by counting roots. Symbols are compared
under their assumptions; what SymPy cannot decide is None.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy as sp

from ._facts import Answers, Fact, Facts, joint

DIGITS = 60
TINY = sp.Rational(1, 10**50)


def positive(expression: Any) -> bool | None:
    """Is a real expression positive? Never by tolerance."""
    expression = sp.sympify(expression)
    if expression.is_Rational:
        return bool(expression > 0)
    if not expression.free_symbols:
        value = sp.re(sp.N(expression, DIGITS, maxn=1000))
        if abs(value) > TINY:
            return bool(value > 0)
        vanishes = zero(expression)
        if vanishes is False:
            return bool(sp.re(sp.N(expression, DIGITS, maxn=10000)) > 0)
        return False if vanishes else None
    for form in (lambda e: e, sp.expand, sp.factor, sp.simplify):
        found = form(expression)
        if found.is_positive:
            return True
        if found.is_nonpositive:
            return False
    return None


def zero(expression: Any) -> bool | None:
    """Is an expression zero?"""
    expression = sp.sympify(expression)
    if expression.is_zero is not None:
        return bool(expression.is_zero)
    found = sp.simplify(expression)
    if found.is_zero is None and not found.free_symbols:
        return found.equals(0)
    return None if found.is_zero is None else bool(found.is_zero)


def every(answers: Iterable[bool | None]) -> bool | None:
    """The conjunction of three-valued answers."""
    seen = set(answers)
    return False if False in seen else None if None in seen else True


@dataclass(frozen=True, eq=False)
class Root:
    """A distinct eigenvalue and its multiplicity; for rational V also its minimal polynomial.

    A complex root of a rational matrix is held in 70 digits (`near`), a real one exactly too.
    """

    value: Any
    size: int
    minimal: Any = None
    near: Any = None
    real: bool | None = None


class ExactFacts(Answers):
    """`Facts` of SymPy weights."""

    def __init__(self, Q: Any, K: Any, V: Any, chosen: Root | None = None) -> None:
        super().__init__()
        self.chosen = chosen
        self.Q, self.K, self.V = (_matrix(n, m) for n, m in (("Q", Q), ("K", K), ("V", V)))
        if self.Q.shape != self.K.shape:
            raise ValueError(
                f"Q and K must have the same shape: got {self.Q.shape} and {self.K.shape}."
            )
        self.d = self.V.cols
        if self.V.rows != self.d:
            raise ValueError(f"V must be square: got shape {self.V.shape}.")
        if self.Q.cols != self.d:
            raise ValueError(
                f"V must act on tokens of dimension {self.Q.cols}, the columns of Q: "
                f"got shape {self.V.shape}."
            )
        self.x = sp.Dummy("x")
        self.rational = all(entry.is_Rational for entry in self.V)

    @cached_property
    def roots(self) -> list[Root]:
        """Distinct eigenvalues of V."""
        if self.rational:
            polynomial = self.V.charpoly(self.x).as_expr(self.x)
            factors = sp.factor_list(polynomial, self.x)[1]
            found = []
            for factor, size in factors:
                found += _roots_of(sp.Poly(factor, self.x, domain=sp.QQ), size)
            return found
        values = self.V.eigenvals(simplify=True)
        if sum(values.values()) != self.d:
            raise ValueError("V must have eigenvalues that SymPy can find: it found too few.")
        return [Root(value, size) for value, size in values.items()]

    @cached_property
    def _products(self) -> Any:
        """A square-free polynomial whose roots hold all lam_i lam_j, squared moduli among them."""
        poly = sp.Poly(sp.prod({r.minimal.as_expr() for r in self.roots}), self.x, domain=sp.QQ)
        y = sp.Dummy("y")
        flipped = sp.expand(y ** poly.degree() * poly.as_expr().subs(self.x, self.x / y))
        other = poly.as_expr().subs(self.x, y)
        return sp.Poly(sp.resultant(other, flipped, y), self.x, domain=sp.QQ).sqf_part()

    def _exceeds(self, a: Root, b: Root) -> int | None:
        """Sign of |a| - |b|: 1, 0, -1 or None."""
        if a.minimal is None:
            if zero(a.value - sp.conjugate(b.value)) or zero(a.value + b.value):
                return 0
            gap = sp.Abs(a.value) - sp.Abs(b.value)
            if self._real(a) and self._real(b):
                gap = a.value**2 - b.value**2
            more, less = positive(gap), positive(-gap)
            return 1 if more else -1 if less else 0 if more is less is False else None
        if self._conjugate(a, b):
            return 0
        for digits in (DIGITS, 4 * DIGITS, 16 * DIGITS):
            low, high = (_square(_approximate(r, digits)) for r in (a, b))
            tiny = sp.Rational(1, 10 ** (digits - 10)) * sp.ceiling(1 + high)
            if abs(low - high) > tiny:
                return 1 if low > high else -1
            # Both are roots of `_products`: equal if this interval holds but one.
            middle = sp.Rational(str((low + high) / 2))
            if self._products.count_roots(middle - 2 * tiny, middle + 2 * tiny) == 1:
                return 0
        return None

    def _conjugate(self, a: Root, b: Root) -> bool:
        """conj(b) is a root of b's polynomial: it is a if a is the only root so near to it."""
        target = sp.conjugate(b.near)
        same = [r for r in self.roots if r.minimal == b.minimal]
        near = [r for r in same if abs(r.near - target) < TINY]
        return near == [a]

    @cached_property
    def _leaders(self) -> tuple[list[Root], bool]:
        """Eigenvalues that may have the largest modulus, and whether that is known."""
        if self.chosen is not None:
            return [self.chosen], True
        signs = {(a, b): self._exceeds(a, b) for a in self.roots for b in self.roots if a is not b}
        top = [a for a in self.roots if all(signs[a, b] != -1 for b in self.roots if b is not a)]
        known = all(signs[a, b] is not None for a in top for b in self.roots if b is not a)
        return top, known

    def _real(self, root: Root) -> bool | None:
        if root.real is not None:
            return root.real
        return True if root.value.is_real else zero(sp.im(root.value))

    def _is_positive(self, root: Root) -> bool | None:
        real = self._real(root)
        return positive(root.value) if real else real

    def dimension_one(self) -> Fact:
        return Fact(self.d, self.d == 1, 1.0 - self.d)

    def value_multiple(self, sign: int) -> Fact:
        lam = self.V[0, 0]
        same = every(zero(entry) for entry in self.V - lam * sp.eye(self.d))
        if self.chosen is not None and len(self.roots) > 1:
            same = False
        holds = every([same, positive(sign * lam)])
        detail = f"lam = {lam}" if same else "" if same is None else "not a multiple of I"
        return Fact(lam, holds, detail=detail)

    def leading_positive(self) -> Fact:
        top, known = self._leaders
        holds = joint(self._is_positive(r) for r in top)
        if holds is None and known and len(top) > 1:
            holds = False
        detail = "" if len(top) == 1 else "equal in modulus" if known else "moduli not comparable"
        return Fact(self.leading(), holds, detail=detail)

    def leading_simple(self) -> Fact:
        top, _ = self._leaders
        return Fact(top[0].size, joint(r.size == 1 for r in top))

    def leading_dominant(self) -> Fact:
        top, known = self._leaders
        if len(top) > 1:
            return Fact("0" if known else "?", False if known else None)
        lead, *rest = (sp.Abs(r.value if r.near is None else r.near) for r in self._ordered)
        return Fact(_short(lead - sp.Max(*rest) if rest else lead), True)

    @property
    def _ordered(self) -> list[Root]:
        """The leader, then the rest."""
        lead = self._leaders[0][0]
        return [lead, *(r for r in self.roots if r is not lead)]

    def leading_semisimple(self) -> Fact:
        top, _ = self._leaders
        holds = joint(self._is_semisimple(r) for r in top)
        return Fact("0" if holds else "?", holds, detail=f"dim F = {top[0].size}")

    def _is_semisimple(self, root: Root) -> bool | None:
        if root.size == 1:
            return True
        if root.minimal is not None:
            value = root.minimal.all_coeffs()
            matrix = sp.zeros(self.d, self.d)
            for coefficient in value:
                matrix = matrix * self.V + coefficient * sp.eye(self.d)
            return bool(matrix.rank() == self.d - root.size * root.minimal.degree())
        product = self.V - root.value * sp.eye(self.d)
        for other in self.roots:
            if other is not root:
                product = product * (self.V - other.value * sp.eye(self.d)) ** other.size
        return every(zero(entry) for entry in product)

    @cached_property
    def _vectors(self) -> tuple[Any, Any] | None:
        """phi_1 (d, 1) and a left eigenvector (1, d), from adj(V - lam_1), of rank one."""
        top, _ = self._leaders
        root = top[0]
        if len(top) != 1 or root.size != 1 or not self._real(root):
            return None
        if root.minimal is not None:
            adjugate = (self.V - self.x * sp.eye(self.d)).adjugate()
            adjugate = adjugate.applyfunc(lambda e: self._reduced(e, root))
        else:
            adjugate = (self.V - root.value * sp.eye(self.d)).adjugate().applyfunc(sp.simplify)
        for i in range(self.d):
            for j in range(self.d):
                entry = adjugate[i, j]
                if entry != 0 and (root.minimal is not None or zero(entry) is False):
                    return adjugate[:, j], adjugate[i, :]
        return None

    def _reduced(self, expression: Any, root: Root) -> Any:
        poly = sp.Poly(expression, self.x, domain=sp.QQ)
        return poly.rem(root.minimal).as_expr()

    def form_positive(self) -> Fact:
        vectors = self._vectors
        if vectors is None:
            top, _ = self._leaders
            if joint(self._real(r) for r in top) is False:
                return Fact("none", False, detail="no real leading eigenvector")
            if self.ask("score_definite", (1,)).holds:
                return Fact("> 0", True, detail="A is positive definite")
            sure = joint(r.size == 1 for r in top) is False
            return Fact("?", False if sure else None, detail="no single phi_1")
        root = self._leaders[0][0]
        value = ((self.Q * vectors[0]).T * (self.K * vectors[0]))[0, 0]
        if root.minimal is not None and all(e.is_Rational for e in [*self.Q, *self.K]):
            value = self._reduced(sp.expand(value), root)
        value = value.subs(self.x, root.value)
        return Fact(_short(value), positive(value), detail=f"phi_1 = {_listed(vectors[0], self)}")

    @cached_property
    def _score(self) -> Any:
        return (self.Q.T * self.K).applyfunc(sp.expand)

    def score_symmetric(self) -> Fact:
        odd = self._score - self._score.T
        holds = every(zero(entry) for entry in odd)
        return Fact("0" if holds else "A - A^T", holds)

    def score_definite(self, sign: int) -> Fact:
        if self.Q.rows < self.d:
            detail = f"rank at most {self.Q.rows} < d = {self.d}: singular"
            return Fact(0, False, detail=detail)
        symmetric = sign * (self._score + self._score.T) / 2
        minors = [symmetric[:m, :m].det() for m in range(1, self.d + 1)]
        holds = every(positive(minor) for minor in minors)
        return Fact(", ".join(map(_short, minors)), holds, detail="leading principal minors")

    def scenarios(self) -> list[tuple[str, Facts]]:
        top, known = self._leaders
        if known:
            return []
        weights = self.Q, self.K, self.V
        found: list[tuple[str, Facts]] = []
        for root in top:
            reading = ExactFacts(*weights, chosen=root)
            reading.roots = self.roots
            found.append((f"{root.value} leads", reading))
        for symbol in sorted((top[0].value - top[1].value).free_symbols, key=str)[:1]:
            for value in sp.solve(top[0].value - top[1].value, symbol):
                equal = [m.subs(symbol, value) for m in weights]
                found.append((f"{symbol} = {value}", ExactFacts(*equal)))
        return found

    def positive(self) -> tuple[int, int]:
        sure = unknown = 0
        for root in self.roots:
            sign = self._half_plane(root)
            sure += root.size if sign else 0
            unknown += root.size if sign is None else 0
        return sure, unknown

    def _half_plane(self, root: Root) -> bool | None:
        """Is the real part positive?"""
        if root.minimal is None:
            return positive(sp.re(root.value))
        if root.real:
            return positive(root.value)
        flipped = root.minimal.compose(sp.Poly(-self.x, self.x, domain=sp.QQ))
        # A root on the imaginary axis is minus its conjugate: its polynomial is even.
        if flipped.monic() == root.minimal.monic() and self._imaginary(root):
            return False
        for digits in (DIGITS, 4 * DIGITS, 16 * DIGITS):
            value = sp.re(_approximate(root, digits))
            if abs(value) > sp.Rational(1, 10 ** (digits - 10)) * sp.ceiling(1 + abs(root.near)):
                return bool(value > 0)
        return None

    def _imaginary(self, root: Root) -> bool:
        """Is this root of an even polynomial on the imaginary axis? Its square is then negative."""
        even = sp.Poly(root.minimal.all_coeffs()[::2], self.x, domain=sp.QQ)
        middle = sp.Rational(str(sp.re(sp.expand(root.near**2))))
        return bool(even.count_roots(middle - TINY, middle + TINY) == 1)

    def leading(self) -> Any:
        return self._leaders[0][0].value

    def normal(self) -> Any:
        if self._vectors is None:
            return None
        column, row = (v.subs(self.x, self.leading()) for v in self._vectors)
        length = sp.sqrt((column.T * column)[0, 0])
        return (row * length / (row * column)[0, 0]).applyfunc(
            sp.simplify if not self.rational else sp.sympify
        )


def _roots_of(minimal: Any, size: int) -> list[Root]:
    """Roots of an irreducible polynomial: exact if real, in 70 digits always."""
    near = minimal.nroots(n=DIGITS + 10, maxsteps=500)
    exact = minimal.real_roots(radicals=False)
    near.sort(key=lambda z: abs(sp.im(z)))
    real, pairs = near[: len(exact)], near[len(exact) :]
    real.sort(key=sp.re)
    found = [
        Root(value, size, minimal, sp.re(z), True) for value, z in zip(exact, real, strict=True)
    ]
    return found + [Root(z, size, minimal, z, False) for z in pairs]


def _matrix(name: str, value: Any) -> Any:
    try:
        matrix = sp.Matrix(value) if hasattr(value, "shape") or isinstance(value, list) else None
        matrix = sp.Matrix([[sp.sympify(value)]]) if matrix is None else matrix
    except (TypeError, ValueError, sp.SympifyError) as error:
        raise TypeError(f"{name} must be a matrix of real numbers: {error}.") from None
    matrix = matrix.applyfunc(lambda e: e.replace(lambda s: s.is_Float, sp.Rational))
    for entry in matrix:
        if entry.is_real is not True:
            raise ValueError(
                f"{name} must have real entries: got {entry}. "
                "Declare symbols with real=True or positive=True."
            )
    return sp.ImmutableMatrix(matrix)


def _approximate(root: Root, digits: int) -> Any:
    """A root of a rational polynomial in more digits."""
    if digits == DIGITS:
        return root.near
    if root.real:
        return sp.N(root.value, digits + 10, maxn=10 * digits)
    roots = root.minimal.nroots(n=digits + 10, maxsteps=1000)
    return min(roots, key=lambda z: abs(z - root.near))


def _square(value: Any) -> Any:
    re, im = value.as_real_imag()
    return re * re + im * im


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 30 or sp.sympify(value).free_symbols else str(sp.N(value, 6))


def _listed(column: Any, facts: ExactFacts) -> str:
    text = ", ".join(_short(e.subs(facts.x, facts.leading())) for e in column)
    return f"({text})"
