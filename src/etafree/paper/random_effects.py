r"""Linear model with random intercepts and slopes, and a Huber loss on whitened residuals.

:math:`y_g = X_g\beta + Z_gb_g + \varepsilon_g` with working covariance :math:`V_g = \sigma^2I +
Z_gDZ_g^\top`. With :math:`Z_g = Q_gR_g`, columns of :math:`Q_g` orthonormal, and :math:`\sigma^2I +
R_gDR_g^\top = U\Lambda U^\top`, its symmetric inverse root is :math:`V_g^{-1/2} = \sigma^{-1}I +
QU(\Lambda^{-1/2}-\sigma^{-1}I)U^\top Q^\top`: nothing larger than q by q is factored, and groups
may have any size.

Components are robust in the way of Fellner: with :math:`D=\sigma^2\Lambda\Lambda^\top` and the
groups' spherical effects :math:`u_g` that minimise :math:`\sum_j\rho_c(e_j)+|u_g|^2/2`, :math:`e=
(y-X\beta)/\sigma-Z\Lambda u`, they solve jointly with :math:`\beta`

.. math::
    \sum_g(s_gs_g^\top-E\,ss^\top)\Lambda=0,\quad \sum_g(|\psi_c(e_g)|^2-E|\psi_c(e)|^2)=0,
    \qquad s_g=Z_g^\top\psi_c(e_g).

Expectations are those at the normal model, to first order about errors (`Moments`). As c grows the
equations are those of maximum likelihood. The factor lets D lie on the boundary, at a lower rank. A
row's influence is bounded, since an outlier moves :math:`s_g` by less than :math:`2c|z|`; clipping
whitened residuals instead would not do, because whitening spreads an outlier over its group.

References
----------
Fellner, W. H. (1986). Robust estimation of variance components. Technometrics 28, 51-60.
Richardson, A. M. and Welsh, A. H. (1995). Robust restricted maximum likelihood in mixed linear
models. Biometrics 51, 1429-1439. Zhou, H. et al. (2019). MM algorithms for variance components
models. J. Comput. Graph. Statist. 28, 350-361.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import erfc, exp, pi, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etafree.criterion import Criterion, check_penalty
from etafree.data.formula import Context, design
from etafree.data.groups import Groups
from etafree.data.rows import Rows
from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_array, as_positive, axis_names
from etafree.foundation.linalg import eigh, eigvalsh, inv, least_squares, orthonormal, solve
from etafree.losses import Huber
from etafree.optimize import minimise
from etafree.paper.whitened import WhitenedHuber, whitened_criterion
from etafree.penalties import NoPenalty, Penalty, Ridge
from etafree.totals.linear import LinearTotal
from etafree.totals.nuisance import Nuisance

#: Steps of the safe iteration before each attempt of Newton's, and such attempts.
SAFE_STEPS, ATTEMPTS = 25, 15
#: Variances of effects, over that of errors and in units of Z, that count as zero.
ZERO = 1e-7
#: Mean equation of a row, in units of one, at which the components are found.
SOLVED = 1e-10


def squared_slope(c: float) -> tuple[float, float]:
    r"""Return :math:`a=E\,\psi_c'(N)` and :math:`\kappa=E\,\psi_c(N)^2`, N standard normal.

    Examples
    --------
    >>> a, kappa = squared_slope(1.345)
    >>> round(a, 4), round(kappa, 4), squared_slope(1e6)
    (0.8214, 0.7102, (1.0, 1.0))
    """
    tail = erfc(c / sqrt(2))
    bell = c * exp(-0.5 * min(c, 1e3) ** 2) / sqrt(2 * pi)
    return 1 - tail, 1 - tail - 2 * bell + c * c * tail


class Frames(NamedTuple):
    """Orthonormal bases of the groups' columns of Z: ``Z_g = basis_g @ factor_g``."""

    groups: Groups
    basis: Array  #: (n, q).
    factor: Array  #: (G, q, q).
    order: NDArray[np.intp]  #: Rows by group.
    starts: NDArray[np.intp]  #: Where each group's begin.

    @classmethod
    def of(cls, Z: Array, groups: Groups) -> Frames:
        """Return the bases of the groups' rows of Z, those of one size at a time.

        A group of fewer than q rows has zeros below, which V keeps apart from its own rows.
        """
        q, sizes = Z.shape[1], groups.sizes()
        order = np.argsort(groups.codes, kind="stable")
        starts = np.cumsum(sizes) - sizes
        basis, factor = np.zeros_like(Z), np.zeros((len(sizes), q, q))
        for size in np.unique(sizes):
            same = np.flatnonzero(sizes == size)
            rows = order[starts[same][:, None] + np.arange(size)]
            padded = np.zeros((len(same), max(size, q), q))
            padded[:, :size] = Z[rows]
            made, factor[same] = orthonormal(padded)
            basis[rows] = made[:, :size]
        return cls(groups, basis, factor, order, starts)

    def sums(self, values: Array) -> Array:
        """Return sums (G, ...) of the rows' values (n, ...)."""
        return np.asarray(np.add.reduceat(values[self.order], self.starts, axis=0))


class Working(NamedTuple):
    r"""The working covariance :math:`\sigma^2I+Z_gDZ_g^\top` of every group, diagonal."""

    frames: Frames
    D: Array
    sigma2: float
    rotation: Array  #: (G, q, q), eigenvectors in the basis.
    values: Array  #: (G, q), eigenvalues.
    axes: Array  #: (n, q), rows of the eigenvectors.

    @classmethod
    def of(cls, frames: Frames, D: Array, sigma2: float) -> Working:
        """Return the eigenvectors and eigenvalues of the groups' covariances."""
        within = frames.factor @ D @ frames.factor.swapaxes(1, 2)
        values, rotation = eigh(sigma2 * np.eye(len(D)) + within, "D")
        axes = np.einsum("nq,nqr->nr", frames.basis, rotation[frames.groups.codes])
        return cls(frames, D, sigma2, rotation, np.maximum(values, sigma2), axes)

    def along(self, rows: Array) -> Array:
        """Return the coordinates (G, q, k) of columns (n, k) along the eigenvectors."""
        return self.frames.sums(self.axes[:, :, None] * rows[:, None, :])

    def back(self, coordinates: Array) -> Array:
        """Return the columns (n, k) of coordinates (G, q, k)."""
        each = coordinates[self.frames.groups.codes]
        return np.asarray(np.einsum("nq,nqk->nk", self.axes, each))

    def whiten(self, rows: Array) -> Array:
        r"""Return :math:`V^{-1/2}` times columns (n, k)."""
        a = self.sigma2**-0.5
        scaled = (self.values**-0.5 - a)[:, :, None] * self.along(rows)
        return np.asarray(a * rows + self.back(scaled))

    def slope(self, rows: Array, direction: Array) -> Array:
        r"""Return the derivative of :math:`V^{-1/2}` times columns (n, k) as D moves.

        :math:`QU\{L\circ(U^\top RER^\top U)\}U^\top Q^\top` for a symmetric E, with
        :math:`L_{ij}=-1/\{s_is_j(s_i+s_j)\}` the divided differences of the inverse root at
        :math:`s^2`, the eigenvalues.
        """
        s = np.sqrt(self.values)
        turned = self.rotation.swapaxes(1, 2) @ self.frames.factor
        moved = turned @ direction @ turned.swapaxes(1, 2)
        pairs = s[:, :, None] * s[:, None, :] * (s[:, :, None] + s[:, None, :])
        return self.back(-(moved / pairs) @ self.along(rows))


class Moments(NamedTuple):
    r"""Second moments of the groups' slopes at the normal model, to first order, and how they move.

    With :math:`S=Z^\top Z`, :math:`\Delta=\Lambda\Lambda^\top` and :math:`B=(I+a\Delta S)^{-1}`,
    :math:`E\,ss^\top=B^\top(\kappa S+a^2S\Delta S)B` and :math:`E|\psi|^2=\kappa m-
    2a\kappa\,\mathrm{tr}(SB\Delta)+a^2\mathrm{tr}\{SB(\Delta+\kappa\Delta S\Delta)B^\top\}`.
    """

    S: Array  #: (G, q, q).
    delta: Array
    B: Array
    inner: Array  #: E s s', (G, q, q).
    square: Array  #: E |psi|^2, (G,).
    a: float
    kappa: float

    @classmethod
    def of(cls, S: Array, sizes: Array, factor: Array, c: float) -> Moments:
        """Return the moments at a factor of the relative covariance."""
        a, kappa = squared_slope(c)
        delta = factor @ factor.T
        B = inv(np.eye(len(delta)) + a * delta @ S, "D")
        inner = B.swapaxes(1, 2) @ (kappa * S + a * a * S @ delta @ S) @ B
        spread = B @ (delta + kappa * delta @ S @ delta) @ B.swapaxes(1, 2)
        first, second = (np.einsum("gij,gji->g", S, part) for part in (B @ delta, spread))
        square = kappa * sizes - 2 * a * kappa * first + a * a * second
        return cls(S, delta, B, inner, square, a, kappa)

    def moved(self, delta: Array) -> tuple[Array, float]:
        """Return how the sums over groups of both move with the relative covariance."""
        S, B, a, kappa = self.S, self.B, self.a, self.kappa
        BT, change = B.swapaxes(1, 2), -a * B @ delta @ S @ B
        half = BT @ (kappa * S + a * a * S @ self.delta @ S) @ change
        inner = half + half.swapaxes(1, 2) + a * a * BT @ S @ delta @ S @ B
        middle = self.delta + kappa * self.delta @ S @ self.delta
        turned = delta @ S @ self.delta
        spread = change @ middle @ BT
        spread = 2 * spread + B @ (delta + kappa * (turned + turned.swapaxes(1, 2))) @ BT
        first, second = (
            float(np.einsum("gij,gji->", S, part))
            for part in (change @ self.delta + B @ delta, spread)
        )
        return inner.sum(axis=0), -2 * a * kappa * first + a * a * second


def _effects(frames: Frames, Z: Array, rho: Array, factor: Array, c: float) -> Array:
    r"""Return the spherical effects u (G, r): least :math:`\sum\rho_c(e)+|u|^2/2` in each group.

    By Newton's steps where they lower a group's sum, and reweighted least squares elsewhere.
    """
    codes, columns = frames.groups.codes, Z @ factor
    r = factor.shape[1]
    u = np.zeros((len(frames.starts), r))

    def errors(at: Array) -> Array:
        return np.asarray(rho - np.sum(columns * at[codes], axis=1))

    def objective(at: Array) -> Array:
        e = np.abs(errors(at))
        loss = np.where(e <= c, 0.5 * e * e, c * e - 0.5 * c * c)
        return np.asarray(frames.sums(loss) + 0.5 * np.sum(at * at, axis=1))

    def step(weights: Array, gradient: Array) -> Array:
        inner = frames.sums((weights[:, None] * columns)[:, :, None] * columns[:, None, :])
        return solve(np.eye(r) + inner, gradient[:, :, None], "D")[:, :, 0]

    for _ in range(200):
        e = errors(u)
        gradient = frames.sums(np.clip(e, -c, c)[:, None] * columns) - u
        if float(np.abs(gradient).max(initial=0.0)) <= 1e-12 * (1 + c):
            break
        newton = u + step((np.abs(e) <= c).astype(np.float64), gradient)
        safe = u + step(c / np.maximum(np.abs(e), c), gradient)
        better = objective(newton) <= objective(safe)
        u = np.where(better[:, None], newton, safe)
    return u


class _State(NamedTuple):
    """The equations of the components, at components and the coefficients given them."""

    working: Working
    moments: Moments
    c: float
    factor: Array  #: D = sigma2 * factor @ factor.T, (q, r).
    beta: Array
    raw: Array  #: Columns of X, y and Z.
    X: Array  #: Whitened.
    slopes: Array  #: Huber's psi of whitened residuals.
    within: Array  #: Its derivative.
    rho: Array  #: Residuals over the errors' standard deviation.
    u: Array  #: Spherical effects (G, r).
    psi: Array  #: Of what the effects leave of `rho`.
    inside: Array  #: Its derivative.
    s: Array  #: Z'psi, (G, q).
    excess: Array  #: Sum over groups of s s' less its expectation.

    @classmethod
    def of(
        cls, working: Working, c: float, factor: Array, raw: Array, beta: Array | None
    ) -> _State:
        """Return the state; coefficients are those of a Huber regression if none are given."""
        q, frames, root = len(factor), working.frames, np.sqrt(working.sigma2)
        white = working.whiten(raw[:, :-q])
        X, y, Z = white[:, :-1], white[:, -1], raw[:, -q:]
        if beta is None:
            beta = minimise(Criterion(Huber(c), (X, y))).theta
        residual = y - X @ beta
        rho = (raw[:, -q - 1] - raw[:, : -q - 1] @ beta) / root
        u = _effects(frames, Z, rho, factor, c)
        e = rho - np.sum(Z @ factor * u[frames.groups.codes], axis=1)
        psi = np.clip(e, -c, c)
        s = frames.sums(Z * psi[:, None])
        S = frames.factor.swapaxes(1, 2) @ frames.factor
        moments = Moments.of(S, frames.groups.weights(None), factor, c)
        excess = s.T @ s - moments.inner.sum(axis=0)
        slopes, (within, inside) = np.clip(residual, -c, c), (np.abs(v) <= c for v in (residual, e))
        parts = (slopes, within.astype(np.float64), rho, u, psi, inside.astype(np.float64))
        return cls(working, moments, c, factor, beta, raw, X, *parts, s, excess)

    def at(self, factor: Array, sigma2: float, beta: Array | None = None) -> _State:
        """Return the state at other components."""
        working = Working.of(self.working.frames, sigma2 * factor @ factor.T, sigma2)
        return _State.of(working, self.c, factor, self.raw, beta)

    def equations(self) -> Array:
        """Return the equations (q r + 1,): of the factor by rows, and of the errors' variance."""
        scale = self.psi @ self.psi - self.moments.square.sum()
        return np.append((self.excess @ self.factor).ravel(), scale)

    def by_group(self) -> Array:
        """Return the groups' terms of the equations, (G, q r + 1)."""
        excess = self.s[:, :, None] * self.s[:, None, :] - self.moments.inner
        scale = self.working.frames.sums(self.psi**2) - self.moments.square
        return np.column_stack([(excess @ self.factor).reshape(len(scale), -1), scale])

    def moved(self, rho: Array, factor: Array | None = None) -> Array:
        """Return how the equations move with scaled residuals and the factor; effects follow."""
        frames, Z = self.working.frames, self.raw[:, -len(self.factor) :]
        codes, columns = frames.groups.codes, Z @ self.factor
        if factor is not None:
            rho = rho - np.sum(Z @ factor * self.u[codes], axis=1)
        weighted = self.inside[:, None] * columns
        pull = frames.sums(weighted * rho[:, None])
        if factor is not None:
            pull = pull + self.s @ factor
        inner = frames.sums(weighted[:, :, None] * columns[:, None, :])
        u = solve(np.eye(inner.shape[1]) + inner, pull[:, :, None], "D")[:, :, 0]
        psi = self.inside * (rho - np.sum(columns * u[codes], axis=1))
        product = frames.sums(Z * psi[:, None]).T @ self.s
        excess, scale = product + product.T, 2 * float(self.psi @ psi)
        if factor is None:
            return np.append((excess @ self.factor).ravel(), scale)
        half = factor @ self.factor.T
        inner, square = self.moments.moved(half + half.T)
        change = (excess - inner) @ self.factor + self.excess @ factor
        return np.append(change.ravel(), scale - square)

    def directions(self) -> Iterator[tuple[Array, Array, Array, Array]]:
        """Yield each parameter's change of whitened X and y, of residuals, of the factor and of D.

        Parameters are the factor's entries by rows, and the logarithm of the errors' variance,
        which scales V as a whole.
        """
        w, q = self.working, len(self.factor)
        rows = self.raw[:, :-q]
        for place in np.ndindex(*self.factor.shape):
            unit = np.zeros_like(self.factor)
            unit[place] = 1.0
            half = w.sigma2 * unit @ self.factor.T
            yield w.slope(rows, half + half.T), np.zeros_like(self.rho), unit, half + half.T
        yield -0.5 * w.whiten(rows), -0.5 * self.rho, np.zeros_like(self.factor), w.D

    def jacobian(self) -> Array:
        """Return the derivative of the equations in the parameters; coefficients follow them.

        Below it are the rotations of the factor, which change nothing and are held.
        """
        q, r = self.factor.shape
        rows = self.raw[:, : -q - 1] / np.sqrt(self.working.sigma2)
        hessian, n = self.hessian(), len(self.rho)
        columns = []
        for moved, rho, unit, _ in self.directions():
            residual = moved[:, -1] - moved[:, :-1] @ self.beta
            gradient = -moved[:, :-1].T @ self.slopes - self.X.T @ (self.within * residual)
            follow = -least_squares(hessian, gradient)
            turn = self.factor.T @ unit
            held = n * (turn - turn.T)[np.tril_indices(r, -1)]
            columns.append(np.append(self.moved(rho - rows @ follow, unit), held))
        return np.column_stack(columns)

    def solve(self, right: Array) -> Array:
        """Return the changes of the parameters that change the equations so, (qr + 1, k)."""
        r = self.factor.shape[1]
        held = np.zeros((r * (r - 1) // 2, right.shape[1]))
        return least_squares(self.jacobian(), np.vstack([right, held]), 1e-10)

    def hessian(self) -> Array:
        """Return the Hessian of the Huber regression of whitened rows."""
        return np.asarray((self.within[:, None] * self.X).T @ self.X)


def _factor_of(D: Array, least: float) -> Array:
    """Return a factor (q, r) of a relative covariance, without directions of variance `least`."""
    values, vectors = eigh(D, "D")
    kept = values > least
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))


def _safe_step(state: _State) -> _State:
    r"""Return the state after a step that keeps variances positive, coefficients reweighted once.

    :math:`\Delta\leftarrow N^{-1/2}(N^{1/2}\Delta T\Delta N^{1/2})^{1/2}N^{-1/2}`, the
    minorise-maximise step of maximum likelihood, with :math:`T=\sum s_gs_g^\top` and N its
    expectation. Variances stay above a small number, so that directions stay free.
    """
    N = state.moments.inner.sum(axis=0)
    T, delta = state.excess + N, state.moments.delta
    values, vectors = eigh(N, "Z")
    values = np.maximum(values, 1e-12 * values[-1])
    root, back = ((vectors * values**power) @ vectors.T for power in (0.5, -0.5))
    middle, turn = eigh(root @ delta @ T @ delta @ root, "Z")
    values, vectors = eigh(back @ (turn * np.sqrt(np.maximum(middle, 0.0))) @ turn.T @ back, "D")
    ratio = float(state.psi @ state.psi / max(state.moments.square.sum(), 1e-3 * len(state.psi)))
    sigma2 = state.working.sigma2 * float(np.sqrt(np.clip(ratio, 0.01, 100.0)))
    values = values * state.working.sigma2 / sigma2
    c, residual = state.c, state.working.whiten(state.raw[:, : -len(N)])
    weight = np.sqrt(c / np.maximum(np.abs(residual[:, -1] - residual[:, :-1] @ state.beta), c))
    beta = least_squares(residual[:, :-1] * weight[:, None], residual[:, -1] * weight)
    return state.at(vectors * np.sqrt(np.clip(values, 1e-3 * ZERO, 1 / ZERO)), sigma2, beta)


def _newton(state: _State) -> _State | None:
    """Return the state where the equations hold, by damped Newton steps; None where these fail."""
    n = len(state.psi)
    state = state.at(state.factor, state.working.sigma2)
    equations = state.equations()
    for _ in range(30):
        norm = float(np.abs(equations).max())
        if norm <= SOLVED * n:
            return state
        step = state.solve(-equations[:, None])[:, 0]
        step *= min(1.0, 1.0 / float(np.abs(step).max()))
        for _ in range(8):
            factor = state.factor + step[:-1].reshape(state.factor.shape)
            tried = state.at(factor, state.working.sigma2 * float(np.exp(step[-1])))
            equations = tried.equations()
            if float(np.abs(equations).max()) < norm:
                break
            step *= 0.5
        else:
            return state if norm <= 1e3 * SOLVED * n else None
        state = tried
    return None


def _of_lower_ranks(state: _State) -> Iterator[_State]:
    """Yield the state, then without the direction of its smallest variance, and so on.

    A maximum at the boundary is regular along its own rank, where Newton's steps reach it; from a
    higher rank safe steps come nearer and nearer, and Newton's are singular at the end.
    """
    values, vectors = eigh(state.moments.delta, "D")
    factor = vectors * np.sqrt(np.maximum(values, 0.0))
    yield state
    for rank in range(len(values) - 1, -1, -1):
        yield state.at(factor[:, len(values) - rank :], state.working.sigma2)


def _at_a_maximum(state: _State) -> bool:
    """Return whether no variance that is zero would grow: zero always solves the equations."""
    values, vectors = eigh(state.moments.delta, "D")
    null = vectors[:, values <= ZERO]
    slack = 1e-6 * float(np.abs(state.excess).max() + len(state.psi))
    return bool(not null.size or eigvalsh(null.T @ state.excess @ null)[-1] <= slack)


def solve_components(raw: Array, q: int, groups: Groups, c: float) -> _State:
    """Return the state at the components, `raw` being the columns of X, y and Z (of unit size)."""
    if len(groups) == len(raw):
        raise InputError("groups", "has no group of two or more", "pass D= and sigma2=")
    X, y, Z = raw[:, : -q - 1], raw[:, -q - 1], raw[:, -q:]
    scale = float(Criterion(Huber(c, scale="mad"), (X, y)).loss.scale)
    factor, sigma2 = np.eye(q) / np.sqrt(q), 0.5 * scale**2
    working = Working.of(Frames.of(Z, groups), sigma2 * factor @ factor.T, sigma2)
    state = _State.of(working, c, factor, raw, None)
    for _ in range(ATTEMPTS):
        for _ in range(SAFE_STEPS):
            state = _safe_step(state)
        for start in _of_lower_ranks(state):
            found = _newton(start)
            if found is not None and _at_a_maximum(found):
                return found.at(_factor_of(found.moments.delta, ZERO), found.working.sigma2)
    advice = "pass D= and sigma2=, or fewer columns of Z"
    raise InputError("Z", "has components that the data do not determine", advice)


@dataclass(frozen=True, eq=False)
class EffectVariances(Nuisance):
    r"""The components D and :math:`\sigma^2`, found jointly with coefficients without a penalty.

    With equations :math:`q`, their total derivative J in the parameters (coefficients following)
    and :math:`Q_\beta` in the coefficients, a group's influence on the parameters is
    :math:`-J^{-1}(q_g-Q_\beta A^{-1}\psi_g)`; D of lower rank moves along its own rank.
    """

    state: _State
    size: Array  #: Of the columns of Z (q,), which the state has at unit size.
    names: tuple[str, ...]

    @property
    def D(self) -> Array:
        """The covariance of effects."""
        return np.asarray(self.state.working.D / np.outer(self.size, self.size))

    @property
    def values(self) -> Mapping[str, float]:
        entries = [float(self.D[place]) for place in _places(len(self.size))]
        return dict(zip(self.names, [*entries, self.state.working.sigma2], strict=True))

    def influence(self) -> Array:
        """Return the influences (n, k): a group's is spread evenly over its rows."""
        state, groups = self.state, self.state.working.frames.groups
        rows = state.raw[:, : -len(self.size) - 1] / np.sqrt(state.working.sigma2)
        through = np.column_stack([state.moved(-column) for column in rows.T])
        back = least_squares(state.hessian(), through.T)
        own = (state.by_group() / groups.sizes()[:, None])[groups.codes]
        terms = own + state.slopes[:, None] * (state.X @ back)
        each = -state.solve(terms.T).T
        unit = np.outer(self.size, self.size)
        moves = [move / unit for *_, move in state.directions()]
        scale = np.zeros(len(moves))
        scale[-1] = state.working.sigma2
        entries = [[move[place] for move in moves] for place in _places(len(self.size))]
        return np.asarray(each @ np.array([*entries, scale]).T)

    def slope(self, total: LinearTotal, theta: Array) -> Array:
        """Return the slopes (p, k) of the gradient of whitened rows, in D's entries and sigma2."""
        working, q = self.state.working, len(self.size)
        rows = self.state.raw[:, :-q]
        moved = []
        for place in _places(q):
            unit = np.zeros((q, q))
            unit[place] = unit[place[::-1]] = 1.0
            moved.append(working.slope(rows, unit * np.outer(self.size, self.size)))
        whole = -0.5 * working.whiten(rows) - working.slope(rows, working.D)
        moved.append(whole / working.sigma2)  # I = (V - ZDZ') / sigma2
        u = total.predictor(theta)
        first, second = total.loss.first(u, total.y), total.loss.second(u, total.y)
        along = np.append(theta, -1.0)  # of the residual: u - y
        return np.column_stack(
            [first @ m[:, :-1] + (second * (m @ along)) @ total.X for m in moved]
        )


def _places(q: int) -> list[tuple[int, int]]:
    """Return the places of the lower triangle of a q by q matrix, by rows."""
    return [(j, k) for j in range(q) for k in range(j + 1)]


@dataclass(frozen=True, eq=False, init=False)
class RandomEffects(WhitenedHuber):
    r"""Linear model with random intercepts and slopes, a Huber loss and an optional ridge.

    :math:`\sum_g\sum_j\rho_c\{(V_g^{-1/2}(y_g-X_g\beta))_j\}`, :math:`V_g=\sigma^2I+Z_gDZ_g^\top`:
    residuals are whitened within groups by the symmetric root. With Z a column of ones and given
    components it is `RandomIntercept`.

    Parameters
    ----------
    X : (n, p) array
        Design matrix; no intercept is added.
    y : (n,) array
        Response.
    groups : (n,) labels
        Groups share effects; they are the default clusters. They may have any size.
    Z : (n, q) array
        Columns whose coefficients vary between groups; a column of ones for the intercept.
    c : float
        Huber's threshold on the whitened scale. A large one gives generalized least squares at
        components of maximum likelihood.
    D : (q, q) array, optional
        Covariance of the effects. If neither it nor `sigma2` is given, both solve robust equations
        in the way of Fellner, jointly with the coefficients, and the target includes how they vary.
    sigma2 : float, optional
        Variance of errors.
    penalty : Ridge, optional
        On the coefficients; none if not given. The components are found without it.
    names : sequence of str, optional
        Parameter names.

    Attributes
    ----------
    criterion : Criterion
        The penalized Huber loss of the whitened data.

    Raises
    ------
    InputError
        Data cannot be used, one of `D` and `sigma2` is missing or out of range, or the data do not
        determine them.

    See Also
    --------
    RandomIntercept : The paper's model, its variances from medians.

    References
    ----------
    Fellner, W. H. (1986). Robust estimation of variance components. Technometrics 28, 51-60.
    Tamano, S. and Tomo, Y. (2025). arXiv:2511.15320, section 5.

    Examples
    --------
    >>> import etafree as ef
    >>> rng = np.random.default_rng(0)
    >>> g = np.repeat(np.arange(60), 6)
    >>> X = np.column_stack([np.ones(360), rng.standard_normal(360)])
    >>> b = rng.standard_normal((60, 2)) * [1.0, 0.5]
    >>> y = X @ [1.0, 2.0] + np.sum(X * b[g], axis=1) + rng.standard_normal(360)
    >>> model = ef.RandomEffects(X, y, g, Z=X, names=["one", "x"])
    >>> model.target().stacked
    ('D[0, 0]', 'D[1, 0]', 'D[1, 1]', 'sigma2')
    >>> draws = model.sample(eta=0.5, draws=200, seed=1)
    >>> model.calibrate(draws).target.clusters
    60
    """

    D: Array
    sigma2: float

    def __init__(
        self,
        X: object,
        y: object,
        groups: object,
        Z: object,
        *,
        c: float = 1.345,
        D: object = None,
        sigma2: float | None = None,
        penalty: Ridge | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        plain = Criterion(Huber(as_positive(c, "c")), (X, y), names=names)
        self._build(plain, groups, Z, axis_names(Z), D, sigma2, penalty)

    @classmethod
    def from_formula(
        cls,
        formula: str,
        data: object,
        groups: object,
        random: str,
        *,
        c: float = 1.345,
        D: object = None,
        sigma2: float | None = None,
        penalty: Ridge | None = None,
        context: Context = None,
    ) -> RandomEffects:
        """Return the model of formulas and a DataFrame.

        Rows with missing values are dropped; a ridge leaves the intercept alone.

        Parameters
        ----------
        formula : str
            Such as ``"y ~ x"``.
        data : DataFrame
            With a row per observation.
        groups : (n,) labels or column name
            Groups share effects.
        random : str
            What varies between them, such as ``"1 + x"``.
        c, D, sigma2, penalty : optional
            As for the model.
        context : mapping, optional
            Functions of your own that the formulas call.

        Returns
        -------
        RandomEffects
            Its names are those of the design matrix.

        Raises
        ------
        InputError
            A formula does not fit the table, `random` has missing values of its own, or the data do
            not determine `D` and `sigma2`.

        Examples
        --------
        >>> import etafree as ef
        >>> import pandas as pd
        >>> df = pd.DataFrame({"y": [1.0, 2.0, 4.0, 4.5], "x": [0, 1, 0, 1], "g": list("aabb")})
        >>> model = ef.RandomEffects.from_formula(
        ...     "y ~ x", df, "g", "1 + x", D=[[1.0, 0.2], [0.2, 0.5]], sigma2=1.0
        ... )
        >>> model.criterion.names
        ('Intercept', 'x')
        """
        fixed = design(formula, data, context)
        if not isinstance(random, str):
            raise InputError("random", f"is {random!r}", 'pass a text such as "1 + x"')
        table = fixed.rows.table
        used = table if fixed.rows.kept is None else table.iloc[fixed.rows.kept]
        response = formula.split("~")[0]
        effects = design(f"{response} ~ {random.strip().removeprefix('~')}", used, context)
        if effects.rows.dropped:
            problem = f"has missing values in {effects.rows.dropped} rows that the formula keeps"
            raise InputError("random", problem, "drop these rows first")
        plain = Criterion(Huber(as_positive(c, "c")), (fixed.X, fixed.y), names=fixed.names)
        labels = fixed.rows.align(groups, "groups")
        model = cls.__new__(cls)
        place = (fixed.intercept, fixed.rows)
        model._build(plain, labels, effects.X, effects.names, D, sigma2, penalty, *place)
        return model

    def _build(
        self,
        plain: Criterion,
        labels: object,
        columns: object,
        effects: tuple[str, ...] | None,
        D: object,
        sigma2: float | None,
        penalty: Penalty | None,
        intercept: int | None = None,
        rows: Rows | None = None,
    ) -> None:
        """Whiten the data of a `plain` Huber regression and set the attributes."""
        if (D is None) != (sigma2 is None):
            raise InputError("D", "and sigma2 go together", "give both or none")
        check_penalty(penalty)
        X, y, c = plain.total.X, plain.total.y, float(plain.loss.c)
        groups = Groups.of(Rows(len(y)).align(labels, "groups"), len(y), "groups")
        Z = as_array(columns, "Z", ndim=2)
        if len(Z) != len(y) or not Z.shape[1]:
            problem = f"has shape {Z.shape} for {len(y)} rows"
            raise InputError("Z", problem, "pass a column per effect and a row per observation")
        q = Z.shape[1]
        size = np.sqrt(np.mean(Z**2, axis=0))
        if not np.all(size > 0):
            raise InputError("Z", f"has only zeros in column {int(np.argmin(size))}", "drop it")
        raw = np.column_stack([X, y, Z / size])
        nuisance: tuple[EffectVariances, ...] = ()
        if D is None:
            names = effects or tuple(map(str, range(q)))
            entries = (f"D[{names[j]}, {names[k]}]" for j, k in _places(q))
            found = EffectVariances(solve_components(raw, q, groups, c), size, (*entries, "sigma2"))
            nuisance, working = (found,), found.state.working
            covariance = found.D
        else:
            covariance = _checked_covariance(D, q)
            frames = Frames.of(Z / size, groups)
            unit = covariance * np.outer(size, size)
            working = Working.of(frames, unit, as_positive(sigma2, "sigma2"))
        white = working.whiten(raw[:, :-q])
        fitted = (penalty or NoPenalty()).fitted_to(X.shape[1], intercept)
        criterion = whitened_criterion(
            (white[:, :-1], white[:, -1]),
            c,
            fitted,
            plain.names,
            groups=groups,
            rows=rows,
            nuisance=nuisance,
        )
        vars(self).update(
            criterion=criterion, groups=groups, D=covariance, sigma2=working.sigma2, c=c
        )

    def __repr__(self) -> str:
        sds = ", ".join(f"{sd:.4g}" for sd in np.sqrt(np.diagonal(self.D)))
        return (
            f"RandomEffects(n={self.criterion.n}, p={self.criterion.p}, {len(self.groups)} "
            f"groups, sd of effects {sds}, sigma2={self.sigma2:.4g}, c={self.c:g}, "
            f"{self.criterion.penalty.describe(self.criterion.size)})"
        )


def _checked_covariance(value: object, q: int) -> Array:
    """Return a covariance of effects, which may be singular."""
    D = as_array(value, "D", shape=(q, q))
    if not np.allclose(D, D.T, rtol=1e-10, atol=1e-12 * float(np.abs(D).max())):
        raise InputError("D", "is not symmetric", "pass the covariance of the effects")
    D = 0.5 * (D + D.T)
    smallest = float(eigvalsh(D, "D")[0])
    if smallest < -1e-10 * float(np.abs(D).max()):
        problem = f"has a negative eigenvalue, {smallest:.3g}"
        raise InputError("D", problem, "pass the covariance of the effects")
    return D
