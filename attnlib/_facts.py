"""What theorems ask about (Q, K, V), answered in double precision.

`Facts` is the interface between theorems and arithmetic: `NumericFacts` here, `ExactFacts` in
`_exact`. Every answer is True, False, or None where rounding (or SymPy) cannot decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from ._check import FloatArray
from .attention import exponent
from .spectrum import EPS, Cluster, LowRank, Spectrum, norm


class Fact(NamedTuple):
    """An answer: the value found, whether it holds, by how much, and a remark."""

    value: Any
    holds: bool | None
    margin: float = float("nan")
    detail: str = ""


@dataclass(frozen=True)
class Scenario:
    """One way in which eigenvalues that precision cannot tell apart may lie."""

    text: str
    cluster: Cluster | None
    kind: str  # "leads", "together", "apart", "pair" or "tie"


class Facts(Protocol):
    """What a theorem may ask. lam_1 is the eigenvalue of largest modulus, F its eigenspace."""

    d: int

    def ask(self, name: str, arguments: tuple[int, ...] = ()) -> Fact:
        """The answer of a method below, found once."""

    def dimension_one(self) -> Fact:
        """d = 1."""

    def value_multiple(self, sign: int) -> Fact:
        """V = lam I with sign * lam > 0."""

    def leading_positive(self) -> Fact:
        """lam_1 is real and positive."""

    def leading_simple(self) -> Fact:
        """lam_1 is simple."""

    def leading_dominant(self) -> Fact:
        """|lam_1| exceeds the modulus of every other eigenvalue."""

    def leading_semisimple(self) -> Fact:
        """V = lam_1 Id on its generalised eigenspace F."""

    def form_positive(self) -> Fact:
        """<Q phi_1, K phi_1> > 0."""

    def score_symmetric(self) -> Fact:
        """A = Q^T K is symmetric."""

    def score_definite(self, sign: int) -> Fact:
        """The symmetric part of sign * A is positive definite."""

    def scenarios(self) -> list[tuple[str, Facts]]:
        """The ways in which what is undecided about the spectrum may be; empty if all is known."""

    def positive(self) -> tuple[int, int]:
        """How many eigenvalues of V have positive real part, and for how many it is undecided."""

    def leading(self) -> Any:
        """lam_1."""

    def normal(self) -> Any:
        """phi_1*, the left eigenvector, with phi_1*(phi_1) = 1."""


class Answers:
    """Keeps answers: theorems share hypotheses."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, tuple[int, ...]], Fact] = {}

    def ask(self, name: str, arguments: tuple[int, ...] = ()) -> Fact:
        key = name, arguments
        if key not in self._answers:
            self._answers[key] = getattr(self, name)(*arguments)
        return self._answers[key]


def joint(answers: Iterable[bool | None]) -> bool | None:
    """What a set of possible answers amounts to: the common one, or None."""
    seen = set(answers)
    return seen.pop() if len(seen) == 1 else None


def sign_of(value: float, error: float) -> bool | None:
    """Is a number known to within `error` positive?"""
    if value > error:
        return True
    return False if value < -error or error == 0.0 else None


class NumericFacts(Answers):
    """`Facts` of float64 weights: a comparison within its rounding error is undecided."""

    def __init__(
        self,
        Q: FloatArray,
        K: FloatArray,
        V: FloatArray | LowRank,
        spectrum: Spectrum | None = None,
        scenario: Scenario | None = None,
    ) -> None:
        super().__init__()
        self.d = V.shape[0]
        # Positive factors of Q and K change no hypothesis; powers of two are exact.
        self.shift = exponent(Q), exponent(K)
        self.Q, self.K = np.ldexp(Q, -self.shift[0]), np.ldexp(K, -self.shift[1])
        self.V = V
        self.spectrum = spectrum or Spectrum.of(V)
        self.scenario, self.kind = scenario, scenario.kind if scenario else ""

    @cached_property
    def leaders(self) -> tuple[Cluster, ...]:
        """Clusters that may lead: one, unless moduli tie."""
        if self.scenario is not None and self.scenario.cluster is not None:
            return (self.scenario.cluster,)
        return self.spectrum.candidates

    def dimension_one(self) -> Fact:
        return Fact(self.d, self.d == 1, 1.0 - self.d)

    def value_multiple(self, sign: int) -> Fact:
        lead = self.leaders[0]
        lam = float(lead.centre.real)
        where = f"lam = {lam:.6g}"
        if lead.size < self.d:
            others = [c for c in self.spectrum.clusters if c is not lead]
            gap = max(abs(c.centre - lead.centre) for c in others)
            return Fact(lam, False, -gap, f"eigenvalues differ by {gap:.3g}")
        if lead.exact or lead.size == 1:
            return Fact(lam, sign * lam > 0, sign * lam, f"{where}, exactly")
        if sign * lam <= lead.radius:
            return Fact(lam, False, sign * lam, where)
        same = None if lead.departure <= lead.noise else False
        if same is None and self.scenario is not None:
            same = self.kind == "together"
        detail = f"{where}, |V - lam I| = {lead.departure:.2g}, rounding {lead.noise:.2g}"
        return Fact(lam, same, lead.noise - lead.departure, detail)

    def _is_positive(self, cluster: Cluster) -> bool | None:
        if not cluster.real or cluster.centre.real < -cluster.radius or self.kind == "pair":
            return False
        if cluster.exact:
            return cluster.centre.real > 0
        if cluster.centre.real <= cluster.radius:
            return None
        known = cluster.size == 1 or self.spectrum.symmetric or self.kind in ("together", "apart")
        return True if known else None

    def leading_positive(self) -> Fact:
        holds = joint(self._is_positive(c) for c in self.leaders)
        if holds is None and self.ask("leading_dominant").holds is False:
            holds = False  # an exact tie: no eigenvalue leads
        lead = self.leaders[0]
        value = self.leading()
        margin = -abs(lead.centre.imag) if not lead.real else float(lead.centre.real)
        detail = f"known to within {lead.radius:.1g}"
        if isinstance(value, complex):
            detail = "a complex pair leads"
        elif holds is None and lead.merged:
            detail += ": may be a complex pair"
        if len(self.leaders) > 1 and not self._conjugate:
            detail = "equal in modulus: " + ", ".join(show(c.centre) for c in self.leaders[:4])
        return Fact(value, holds, margin, detail)

    def leading_simple(self) -> Fact:
        lead = self.leaders[0]
        if self.kind in ("together", "apart"):
            holds: bool | None = self.kind == "apart"
        else:
            each = (True if c.size == 1 else False if c.exact else None for c in self.leaders)
            holds = joint(each)
        detail = "" if holds else f"{lead.size} eigenvalues within {lead.radius:.1g}"
        if holds is False and lead.exact:
            detail = f"{lead.size} equal eigenvalues, exactly"
        return Fact(lead.size if not holds else 1, holds, 1.0 - lead.size, detail)

    @property
    def _conjugate(self) -> bool:
        """The leaders are one complex pair."""
        if len(self.leaders) != 2:
            return False
        a, b = self.leaders
        return a.centre == b.centre.conjugate() and not a.real

    def leading_dominant(self) -> Fact:
        lead = self.leaders[0]
        rest = [c for c in self.spectrum.clusters if c is not lead]
        gap = abs(lead.centre) - max((abs(c.centre) for c in rest), default=0.0)
        slack = lead.radius + max((c.radius for c in rest), default=0.0)
        if self.kind == "tie" or self._conjugate:
            holds: bool | None = False
        elif len(self.leaders) == 1:
            holds = not (lead.exact and lead.centre == 0 and bool(rest))
        else:
            moduli = {abs(c.centre) for c in self.leaders}
            holds = False if all(c.exact for c in self.leaders) and len(moduli) == 1 else None
        return Fact(gap, holds, gap, f"gap of moduli, known to within {slack:.1g}")

    def leading_semisimple(self) -> Fact:
        lead = self.leaders[0]
        holds = joint(self._is_semisimple(c) for c in self.leaders)
        detail = f"dim F = {lead.size}, |V - lam Id| on F known to within {lead.noise:.1g}"
        if holds is False:
            detail += ": a Jordan block, or nearly"
        return Fact(lead.departure, holds, lead.noise - lead.departure, detail)

    def _is_semisimple(self, cluster: Cluster) -> bool | None:
        if cluster.size == 1 or cluster.exact or self.kind == "apart":
            return True
        if cluster.departure > cluster.noise:
            return False
        return True if self.kind == "together" else None

    def form_positive(self) -> Fact:
        real = [c for c in self.leaders if self._is_positive(c) is not False and len(c.members)]
        if not real:
            real = [c for c in self.leaders if c.real and len(c.members)]
        if not real:
            return Fact("none", False, detail="no real leading eigenvector")
        if self._skew:
            return Fact(0.0, False, 0.0, "A is skew: <Q x, K x> = 0 for every x, exactly")
        answers = [self._form(c) for c in real]
        low, high, error = answers[0]
        holds = joint(_between(*answer) for answer in answers)
        detail = ""
        if holds is None and self.ask("score_definite", (1,)).holds:
            holds, detail = True, "; the symmetric part of A is positive definite"
        elif holds is None and self.ask("score_definite", (-1,)).holds:
            holds, detail = False, "; the symmetric part of A is negative definite"
        scale = 2.0 ** float(np.clip(sum(self.shift), -1000, 1000))
        value = low if holds is not False else high
        known = f"known to within {error * scale:.1g}" if error < np.inf else "direction unknown"
        detail = f"|phi_1| = 1, {known}{detail}"
        return Fact(value * scale, holds, value * scale, detail)

    @property
    def _skew(self) -> bool:
        """A = c K or c Q^T exactly, and skew."""
        pairs = ((self.Q, self.K), (self.K, self.Q))
        return any(_scalar(one) and not (other + other.T).any() for one, other in pairs)

    def _form(self, cluster: Cluster) -> tuple[float, float, float]:
        """Least and largest value of <Qx, Kx> over unit x in F, and their error."""
        x, _ = self.spectrum.splitting(cluster)
        q, k = self.Q @ x, self.K @ x
        form = q.T @ k
        values = np.linalg.eigvalsh(0.5 * (form + form.T)) if len(form) > 1 else form[0]
        turn = self.spectrum.wobble(cluster, x)
        size = norm(self.Q) * norm(self.K)
        slope = norm(self.K.T @ q + self.Q.T @ k)
        terms = norm(np.abs(self.Q) @ np.abs(x)) * norm(np.abs(self.K) @ np.abs(x))
        error = 2.0 * EPS * (self.d + len(self.Q)) * terms
        if turn > 0.0:
            error += 2.0 * slope * turn + size * turn * turn
        return float(values[0]), float(values[-1]), error

    @cached_property
    def _score(self) -> tuple[FloatArray, float]:
        """A, and the size of its rounding errors (0 if the product is exact)."""
        # Few rows: einsum, on one core, does not wait for a busy machine as a threaded BLAS does.
        few = 4 * len(self.Q) < self.d
        product = np.einsum("ki,kj->ij", self.Q, self.K) if few else self.Q.T @ self.K
        if _diagonal(self.Q) and _diagonal(self.K):
            return product, 0.0  # signs are exact
        size = norm(self.Q) * norm(self.K)
        return product, 4.0 * (len(self.Q) + self.d) ** 0.5 * EPS * size

    def score_symmetric(self) -> Fact:
        product, error = self._score
        odd = norm(product - product.T)
        detail = f"|A - A^T|, in units of |A|; rounding of the product {error:.1g}"
        return Fact(odd / _unit(product), odd <= error, error - odd, detail)

    def score_definite(self, sign: int) -> Fact:
        k = len(self.Q)
        if k < self.d:
            return Fact(0.0, False, 0.0, f"rank at most {k} < d = {self.d}: singular")
        product, error = self._score
        unit = _unit(product)
        if np.array_equal(self.Q, self.K) and sign > 0 and error:
            low = np.linalg.svd(self.Q, compute_uv=False)
            least, noise = float(low[-1]), 4.0 * self.d**0.5 * EPS * float(low[0])
            holds = True if least > noise else None
            least, noise = least * least / unit, noise * noise / unit
        else:
            symmetric = 0.5 * sign * (product + product.T)
            values = np.linalg.eigvalsh(symmetric) if error else np.diagonal(symmetric)
            least = float(values.min()) / unit
            noise = error / unit
            holds = sign_of(least, noise)
        detail = f"least eigenvalue / |A|, known to within {noise:.1g}"
        return Fact(least, holds, least, detail)

    def positive(self) -> tuple[int, int]:
        return self.spectrum.positive

    def leading(self) -> float | complex:
        lead = self.leaders[0]
        return float(lead.centre.real) if lead.real else complex(lead.centre)

    def normal(self) -> FloatArray:
        basis, dual = self.spectrum.splitting(self.leaders[0])
        column = basis[:, 0]
        return np.array(dual[0] * np.sign(column[np.abs(column).argmax()]))

    def scenarios(self) -> list[tuple[str, Facts]]:
        leaders = self.spectrum.candidates
        tie = len(leaders) > 1 and self.leading_dominant().holds is None
        found: list[Scenario] = []
        for c in leaders:
            if c.centre.imag < 0.0 and not c.real:
                continue
            at = show(c.centre if not c.real else c.centre.real)
            lead = "" if not tie else " and lead"
            if c.merged:
                one = f"{c.size} eigenvalues near {at}"
                found.append(Scenario(f"the {one} coincide{lead}", c, "together"))
                found.append(Scenario(f"of {one} a real one leads", c, "apart"))
                if not self.spectrum.symmetric:
                    found.append(Scenario(f"of {one} a complex pair leads", c, "pair"))
            elif tie and not len(c.members):
                found.append(Scenario("a structural zero leads", c, "leads"))
            elif tie:
                found.append(Scenario(f"{at} leads", c, "leads"))
        if tie:
            found.append(Scenario("moduli are equal", None, "tie"))
        return [(s.text, NumericFacts(self.Q, self.K, self.V, self.spectrum, s)) for s in found]

    def perturbation(
        self, decided: Callable[[FloatArray], bool]
    ) -> tuple[FloatArray, float] | None:
        """Least E of the form tau basis diag(m, .., 1) dual that decides: pushes lam_1 outward.

        None if there is none below a hundredth of |V|.
        """
        clusters = [c for c in self.leaders if c.real and len(c.members)]
        if not clusters or self.spectrum.exact:
            return None
        chosen = max(clusters, key=lambda c: c.centre.real)
        basis, dual = self.spectrum.splitting(chosen)
        if not np.isfinite(dual).all():
            dual = basis.T
        push = (basis * np.arange(chosen.size, 0.0, -1.0)) @ dual
        if chosen.centre.real < 0.0:
            push = -push
        step = push * (4.0 * self.spectrum.error / norm(push))
        while norm(step) <= 0.01 * self.spectrum.norm:
            if decided(self.spectrum.dense + step):
                return step, float(np.linalg.norm(step, 2))
            step *= 4.0
        return None


def _between(low: float, high: float, error: float) -> bool | None:
    return joint((sign_of(low, error), sign_of(high, error)))


def _unit(product: FloatArray) -> float:
    return norm(product) or 1.0


def _scalar(matrix: FloatArray) -> bool:
    return _diagonal(matrix) and bool((np.diagonal(matrix) == matrix[0, 0]).all())


def _diagonal(matrix: FloatArray) -> bool:
    if matrix.shape[0] != matrix.shape[1]:
        return False
    return np.count_nonzero(matrix) == np.count_nonzero(np.diagonal(matrix))


def show(value: Any) -> str:
    """A number in few characters."""
    if isinstance(value, complex):
        if value.imag == 0.0:
            return f"{value.real:.6g}"
        return f"{value.real:.6g} {'+' if value.imag > 0 else '-'} {abs(value.imag):.6g}i"
    if isinstance(value, bool | np.bool_ | int | np.integer) or not isinstance(value, float):
        return str(value)
    return f"{value:.6g}"
