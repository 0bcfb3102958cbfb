"""What became of the tokens at t = infinity: leaders, closed forms and the certificate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from ._cascade import Cascade, Fall
from ._check import FloatArray, as_count, as_number, as_times, as_tokens
from ._clusters import Clusters
from ._collapse import Collapse, collapse_rate, expand
from ._follow import Modes
from ._march import Work, alone
from ._path import Outcome, Path, following_on, spread
from .dynamics import SelfAttention
from .integration import Trajectory
from .shapes import Shape, hull_vertices, shape_of


@dataclass(eq=False)
class Limit:
    """The state at t = infinity of one system and one set of tokens.

    Attributes
    ----------
    certified : bool
        Whether the limits have been shown to be these, within `error`, for every state within the
        error of the integration. If not, all below is the best available picture.
    leaders_certified : bool
        Whether the follower law has been shown to hold too, from `time` on, for ever: `leaders`,
        `leader_of`, `attention` and `rest` are then certified as well. Where two tokens of a cluster
        share its lead only the clusters and their limits are.
    time : float
        Depth of certification (or where the run ended).
    reason : str
        Why leaders are not certified; empty if they are.
    leaders : (L,) int array
        The tokens that lead themselves.
    leader_of : (n,) int array
        The leader of each token; -1 where none is known.
    attention : (n, n) array
        Limit P* of the attention matrix. Equal tokens share.
    points : (n, d) array
        Limits of z_i = e^{-tV} x_i in the directions that V expands (its invariant subspace with
        positive real part, along the rest). For V = I: the limits of z.
    rest : (n, d) array
        Limits of x_i in the other directions, where it has one: for those that V contracts the
        constant offset to the leader. (Purely imaginary eigenvalues: z follows the leader.)
    rates : (d,) complex array
        Eigenvalues of V, real parts falling: x grows like e^{rate t} in each mode.
    modes : (n, d) array
        `points` in eigenvector coordinates of V (left eigenvectors), in the order of `rates`.
    error : float
        Bound on the error of `points`, in the same units: all that the true flow can still deviate
        (proved), and what integration and rounding left unknown (estimated by a second run, with
        a margin of ten).
    mode_error : (d,) array
        The same mode by mode; inf where V does not expand.
    falls : tuple of Fall
        Leaders lost on the way after attention first was 0/1: when, who, to whom.
    shape : Shape
        What the limits form: `shape_of(points)`, or hyperplanes of the leading direction.
    rest_error : (n,) array
        The same for `rest`, token by token (after falls at large depth: an estimate).
    asymptotics : Collapse or None
        For V = -lam I (no leaders; x -> 0, P -> 1/n, by the theorem, with certified = True): the
        whitening law and its first correction.
    codimension : int or None
        k, if this run verifies Conjecture 4.3 for its datum: all tokens on at most three parallel
        affine subspaces of codimension k.
    """

    system: SelfAttention
    certified: bool
    time: float
    reason: str
    leaders: np.ndarray
    leader_of: np.ndarray
    attention: FloatArray
    points: FloatArray
    rest: FloatArray
    rates: np.ndarray
    modes: np.ndarray
    error: float
    falls: tuple[Fall, ...]
    shape: Shape
    codimension: int | None
    rest_error: FloatArray
    mode_error: FloatArray
    leaders_certified: bool
    asymptotics: Collapse | None = None
    _path: Path | Trajectory | None = field(default=None, repr=False)

    def at(self, t: ArrayLike) -> FloatArray:
        """Original coordinates at any depth up to the end of what is known (certified: any)."""
        return self._evaluate(t, "tokens")

    def rescaled_at(self, t: ArrayLike) -> FloatArray:
        """Rescaled coordinates z = e^{-tV} x at any depth (inf where float64 ends)."""
        return self._evaluate(t, "rescaled")

    def attention_at(self, t: float) -> FloatArray:
        """Attention matrix at any depth."""
        return self._known().attention(as_number("t", t, at_least=0.0))

    def _known(self) -> Path | Trajectory:
        if self._path is None:
            raise ValueError("this limit holds no trajectory: integrate(system, tokens, t) has it.")
        return self._path

    def _evaluate(self, t: ArrayLike, what: str) -> FloatArray:
        path = self._known()
        if isinstance(path, Trajectory):  # collapse
            return path.at(t) if what == "tokens" else path.rescaled_at(t)
        flat, single = as_times("t", t, 0.0, path.end)
        out = np.array([getattr(path, what)(float(time)) for time in flat])
        return out[0] if single else out

    def __str__(self) -> str:
        verdict = (
            f"certified from t = {self.time:.4g}, error {self.error:.1e}"
            if self.certified
            else f"not certified: {self.reason}"
        )
        if self.certified and not self.leaders_certified:
            verdict += f", leaders are not: {self.reason}"
        falls = f", {len(self.falls)} falls" if self.falls else ""
        leaders = f"{len(self.leaders)} leader{'' if len(self.leaders) == 1 else 's'}"
        return f"Limit: {self.shape}; {leaders}{falls}; {verdict}"


def limit(
    system: SelfAttention,
    tokens: ArrayLike,
    *,
    rtol: float = 1e-11,
    max_steps: int = 20_000,
    max_falls: int = 1000,
) -> Limit:
    """The limit at t = infinity of dx_i/dt = sum_j P_ij V x_j, with a certificate.

    Integrates until attention is 0/1 and the follower law provably holds for ever (book: *How the
    numbers are made*); on the way leaders may fall one by one, and are followed in closed form.

    Parameters
    ----------
    system : SelfAttention
    tokens : (n, d) array
        Initial tokens.
    rtol : float
        Tolerance of the integration before closed forms take over.
    max_steps, max_falls : int
        Budgets.

    Returns
    -------
    Limit
        Certified, or with the reason why not and the best available picture.

    Examples
    --------
    >>> where = limit(SelfAttention(1, 1, 1), [[-0.5], [0.5]])
    >>> where.certified, round(float(where.points[1, 0]), 9)
    (True, 0.187376768)
    """
    if not isinstance(system, SelfAttention):
        raise TypeError(f"system must be a SelfAttention: got {type(system).__name__}.")
    start = as_tokens(tokens, system.d)
    rtol = as_number("rtol", rtol, above=0.0)
    max_steps = as_count("max_steps", max_steps, at_least=1)
    max_falls = as_count("max_falls", max_falls, at_least=0)
    return alone(finding(system, start, rtol, max_steps, max_falls))


def finding(
    system: SelfAttention,
    start: FloatArray,
    rtol: float = 1e-11,
    max_steps: int = 20_000,
    max_falls: int = 1000,
) -> Work[Limit]:
    """`limit`, for whoever takes the steps; nothing is checked."""
    lam = collapse_rate(system)
    if lam is not None:
        return _collapsed(system, start, expand(system, start, lam, rtol))
    outcome = yield from following_on(system, start, np.inf, rtol, max_steps, max_falls)
    if outcome.clusters is not None:
        return _clustered(system, outcome, outcome.clusters)
    if outcome.cascade is None:
        return _picture(system, outcome)
    return _certified(system, outcome, outcome.cascade)


def _certified(system: SelfAttention, outcome: Outcome, cascade: Cascade) -> Limit:
    state, modes, inverse = cascade.state, outcome.modes, outcome.inverse
    first_of = _first_occurrence(inverse)
    points, rest = state.limit_modes()
    right, unit = modes.right, 2.0**modes.exponent
    p = np.zeros((len(state.pi), len(state.pi)))
    p[np.arange(len(p)), state.leader_of] = 1.0
    z = (points @ right.T).real[inverse] * unit
    leader_of = first_of[state.leader_of][inverse]  # of equal tokens the first stands for all
    leaders = np.unique(leader_of)
    size = np.abs(right)
    error = float((size[:, modes.expanding] @ state.eps[modes.expanding]).max(initial=0.0)) * unit
    radius = state.eps_offset * np.exp(np.minimum(state.tau, 690.0))[:, None]
    rest_error = (radius[:, ~modes.expanding] @ size[:, ~modes.expanding].T).max(
        axis=1, initial=0.0
    )
    shape = _shape_in(modes, z, leaders, leader_of)
    verified = cascade.certified and len(leaders) <= 3 and _good_lead(modes)
    return Limit(
        system=system,
        certified=cascade.certified,
        time=cascade.time,
        reason=cascade.reason,
        leaders=leaders,
        leader_of=leader_of,
        attention=spread(p, inverse, outcome.counts),
        points=z,
        rest=(rest @ right.T).real[inverse] * unit,
        rates=modes.values,
        modes=points[inverse] * unit,
        error=error,
        falls=tuple(
            Fall(f.time, int(first_of[f.token]), int(first_of[f.new_leader])) for f in cascade.falls
        ),
        shape=shape,
        codimension=int(modes.expanding.sum()) if verified else None,
        rest_error=rest_error[inverse] * unit,
        mode_error=np.where(modes.expanding, state.eps, np.inf) * unit,
        leaders_certified=cascade.certified,
        _path=outcome.path,
    )


def _clustered(system: SelfAttention, outcome: Outcome, clusters: Clusters) -> Limit:
    """Certified clusters and their limits; who leads inside them is the best available picture."""
    seen, modes, inverse = _picture(system, outcome), outcome.modes, outcome.inverse
    unit = 2.0**modes.exponent
    label = clusters.label[inverse]
    chief = np.array([int(np.flatnonzero(label == c)[0]) for c in range(len(clusters.centre))])
    z = (clusters.centre @ modes.right.T).real[label] * unit
    radius = np.where(modes.expanding, clusters.radius.max(axis=0), np.inf) * unit
    reach = clusters.radius @ np.abs(modes.right).T * unit
    return replace(
        seen,
        certified=True,
        time=clusters.time,
        points=z,
        modes=clusters.centre[label] * unit,
        error=float(reach.max()),
        mode_error=radius,
        shape=_shape_in(modes, z, chief, chief[label]),
    )


def _shape_in(modes: Modes, z: FloatArray, leaders: np.ndarray, leader_of: np.ndarray) -> Shape:
    """The shape of a limit: its points are leaders, free in the directions V does not expand."""
    index = {int(leader): k for k, leader in enumerate(leaders)}
    label = np.array([index[int(leader)] for leader in leader_of])
    expanding, d = int(modes.expanding.sum()), modes.d
    leading = int((np.abs(modes.values - modes.values[0]) <= 1e-13 * modes.size).sum())
    centres = z[leaders]
    free = np.linalg.svd(modes.left[modes.expanding].conj(), full_matrices=True)[2][expanding:]
    free = _real_basis(free, d - expanding)
    if expanding == d:
        kind = "point" if len(leaders) == 1 else "polytope"
        if len(leaders) > 1 and np.linalg.matrix_rank(centres - centres[0], tol=1e-9) == 1:
            kind = "points on a line"
    elif expanding == 1:
        kind = "parallel hyperplanes"
    else:
        kind = "polytope x subspace" if leading == expanding else "parallel subspaces"
    size = float(np.ptp(z, axis=0).max()) or float(np.abs(z).max()) or 1.0
    return Shape(kind, centres, label, free, hull_vertices(centres), 0.0, 0.0, size)


def _real_basis(rows: np.ndarray, count: int) -> FloatArray:
    """Orthonormal real rows spanning the same space (which is closed under conjugation)."""
    both = np.vstack([rows.real, rows.imag])
    return np.linalg.svd(both, full_matrices=True)[2][:count]


def _collapsed(system: SelfAttention, tokens: FloatArray, asymptotics: Collapse) -> Limit:
    """V = -lam I: everything goes to the origin, by the theorem; how is in the asymptotics."""
    n, d = tokens.shape
    zero = np.zeros((n, d))
    path = asymptotics.trajectory
    return Limit(
        system=system,
        certified=True,
        time=0.0,
        reason="",
        leaders=np.empty(0, dtype=int),
        leader_of=np.full(n, -1),
        attention=np.full((n, n), 1.0 / n),
        points=zero,
        rest=zero.copy(),
        rates=np.diagonal(system.V).copy(),
        modes=zero.copy(),
        error=0.0,
        falls=(),
        shape=shape_of(zero),
        codimension=None,
        rest_error=np.zeros(n),
        mode_error=np.zeros(d),
        leaders_certified=True,
        asymptotics=asymptotics,
        _path=path,
    )


def _good_lead(modes: Modes) -> bool:
    """Leading eigenvalue real, positive, simple, largest in modulus, and <Q phi, K phi> > 0."""
    lam = modes.values
    others = np.abs(lam[1:])
    simple = lam[0].imag == 0 and lam[0].real > others.max(initial=0.0) * (1 + 1e-12)
    return bool(simple and modes.form[0, 0].real > 0)


def _first_occurrence(inverse: np.ndarray) -> np.ndarray:
    first = np.empty(inverse.max() + 1, dtype=int)
    for index in range(len(inverse) - 1, -1, -1):
        first[inverse[index]] = index
    return first


def _picture(system: SelfAttention, outcome: Outcome) -> Limit:
    """Not certified: what the last integrated state looks like."""
    path, modes = outcome.path, outcome.modes
    t = float(path.first.knots[-1])
    state = path.first.states[-1]
    split = path.frame.split
    shown = state.copy()
    shown[:, split:] = 0.0
    z = np.ldexp(shown @ path.frame.basis.T, modes.exponent)[outcome.inverse]
    p = path.attention(t)
    best = p.argmax(axis=1)
    sure = p[np.arange(len(p)), best] * outcome.counts[outcome.inverse][best] > 0.99
    leader_of = np.where(sure, best, -1)
    leaders = np.flatnonzero(leader_of == np.arange(len(p)))
    return Limit(
        system=system,
        certified=False,
        time=t,
        reason=outcome.reason,
        leaders=leaders,
        leader_of=leader_of,
        attention=p,
        points=z,
        rest=np.full_like(z, np.nan),
        rates=modes.values,
        modes=z @ modes.left.T,
        error=float("inf"),
        falls=(),
        shape=shape_of(z),
        codimension=None,
        rest_error=np.full(len(z), np.inf),
        mode_error=np.full(modes.d, np.inf),
        leaders_certified=False,
        _path=path,
    )
