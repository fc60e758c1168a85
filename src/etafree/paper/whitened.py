r"""A Huber loss of data whitened within groups: its posteriors, its samplers, its target.

The paper's three readings of the posterior (section 5 and the supplement of Tamano and Tomo, arXiv
2511.15320), whatever the working covariance that whitened the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from etafree.calibrate import calibrate
from etafree.criterion import Criterion
from etafree.data.groups import Groups
from etafree.data.rows import Rows
from etafree.draws import Draws
from etafree.errors import InputError
from etafree.foundation import arguments
from etafree.foundation.arguments import Array, as_positive
from etafree.losses import Huber, NormalLaplace
from etafree.penalties import NoPenalty, Penalty
from etafree.posterior import GeneralizedPosterior, LogPrior
from etafree.result import Calibration
from etafree.samplers import sample
from etafree.sandwich import target
from etafree.target import Target
from etafree.totals.nuisance import Nuisance

KINDS = ("huber", "appendix", "published")


def whitened_criterion(
    data: tuple[Array, Array],
    c: float,
    penalty: Penalty,
    names: Sequence[str],
    *,
    groups: Groups,
    rows: Rows | None,
    nuisance: tuple[Nuisance, ...],
) -> Criterion:
    """Return the Huber criterion of whitened `data`, its groups as clusters.

    What `nuisance` estimated of the working covariance is on record, and part of the target.
    """
    criterion = Criterion(Huber(c), data, penalty, names=names)
    for each in nuisance:
        total = replace(criterion.total, nuisance=nuisance)
        criterion = replace(criterion, total=total).with_plug_ins(each.values)
    kept = criterion.rows if rows is None else rows
    return replace(criterion, rows=replace(kept, clusters=groups.labels[groups.codes]))


@dataclass(frozen=True, eq=False, init=False)
class WhitenedHuber:
    """A Huber loss of rows whitened within groups, which are the default clusters.

    Attributes
    ----------
    criterion : Criterion
        The penalized Huber loss of the whitened data.
    groups : Groups
        Rows that are whitened together.
    c : float
        Huber's threshold on the whitened scale.
    """

    criterion: Criterion
    groups: Groups
    c: float

    def posterior(
        self, eta: float, kind: str = "huber", *, scaled: bool = False
    ) -> GeneralizedPosterior:
        """Return the generalized posterior ``"huber"`` or ``"appendix"`` at a learning rate.

        Parameters
        ----------
        eta : float
            Learning rate.
        kind : {"huber", "appendix"}
            ``huber`` is exact. ``appendix`` is what the paper's augmentation samples: the
            normal-Laplace loss, with the ridge as a prior that eta does not multiply.
        scaled : bool
            Let eta multiply the ridge of ``appendix`` too.

        Returns
        -------
        GeneralizedPosterior
            For `etafree.sample`.

        Raises
        ------
        InputError
            `eta` is not positive, or `kind` has no density.
        """
        arguments.as_choice(kind, "kind", KINDS)
        arguments.as_bool(scaled, "scaled")
        if kind == "huber":
            return GeneralizedPosterior(self.criterion, eta)
        if kind == "published":
            raise InputError("kind", "'published' has no density", "draw from it with sample()")
        loss = NormalLaplace(self.c, as_positive(eta, "eta"))
        criterion = self.criterion.with_loss(loss)
        if scaled or self.criterion.strength == 0:
            return GeneralizedPosterior(criterion, eta)
        prior = LogPrior.from_penalty(self.criterion.penalty, self.criterion.p)
        return GeneralizedPosterior(criterion.with_penalty(NoPenalty()), eta, prior)

    def sample(
        self,
        eta: float,
        kind: str = "huber",
        *,
        draws: int = 4000,
        seed: object = 0,
        chains: int = 4,
        burn_in: int = 500,
        scaled: bool = False,
    ) -> Draws:
        """Draw from one of the model's posteriors.

        Parameters
        ----------
        eta : float
            Learning rate.
        kind : {"huber", "appendix", "published"}
            ``huber`` goes through `etafree.sample`; the others run Gibbs sampling (the published
            one scales the prior by eta, as the figure did).
        draws : int
            At least this many; chains have the same length.
        seed : int, SeedSequence or Generator
            The same seed gives the same draws.
        chains, burn_in : int
            Of Gibbs sampling: how many, and iterations that each drops.
        scaled : bool
            As for `posterior`.

        Returns
        -------
        Draws
            With the learning rate they were made at.
        """
        arguments.as_choice(kind, "kind", KINDS)
        draws, chains = arguments.as_count(draws, "draws"), arguments.as_count(chains, "chains")
        burn_in = arguments.as_count(burn_in, "burn_in", least=0)
        arguments.as_bool(scaled, "scaled")
        if kind == "huber":
            return sample(self.posterior(eta), draws, seed)
        from etafree.samplers.gibbs import gibbs_chains

        eta = as_positive(eta, "eta")
        criterion, p = self.criterion, self.criterion.p
        factor = eta if scaled or kind == "published" else 1.0
        precision = factor * criterion.size * criterion.penalty_share(np.zeros(p))
        slope = criterion.strength * criterion.penalty.gradient(np.zeros(p))
        pull = -factor * criterion.size * slope
        chained = gibbs_chains(
            criterion.total.X[None],
            criterion.total.y[None],
            np.zeros(chains, dtype=np.intp),
            np.full(chains, eta),
            self.c,
            np.tile(precision, (chains, 1, 1)),
            np.tile(pull, (chains, 1)),
            draws=-(-draws // chains),
            burn_in=burn_in,
            seed=arguments.as_seeds(seed),
            rule=kind,
        )
        return Draws(chained, criterion.names, eta, f"Gibbs, {kind}")

    def target(self, **options: Any) -> Target:
        """Return the sandwich target; groups are clusters; `options` as for `etafree.target`."""
        return target(self.criterion, **{"clusters": self.groups, **options})

    def calibrate(self, draws: object, **options: Any) -> Calibration:
        """Calibrate draws; the groups are the clusters unless others are given.

        Parameters
        ----------
        draws : Draws or array
            Of this model.
        **options : optional
            As for `etafree.calibrate`.

        Returns
        -------
        Calibration
            With the groups as clusters.
        """
        return calibrate(draws, self.criterion, **{"clusters": self.groups, **options})
