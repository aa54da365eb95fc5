"""Other people's shuffle bounds, for comparison with `hubbub.privacy.shuffle` (Wang et al., Figure 2).

No guarantee of hubbub rests on this file. Every function says what it is: an upper bound, and where it
applies, a lower bound, or, for the theorem as published, neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.mechanism import Mechanism
from hubbub.primitives.errors import Refused
from hubbub.privacy.shuffle import (
    Crowd,
    above_exp,
    any_mechanism,
    check_delta,
    crowd_of,
    invert,
    response,
    response_weights,
)

Weights = tuple[int, int, int, int]

#: Relative precision of delta that is enough for a table.
_EXCESS = 1e-5


def efmrtt19(reports: int, epsilon: float, delta: float) -> float:
    """Upper bound for any epsilon-LDP mechanism, in closed form (Erlingsson et al. 2019).

    12 epsilon sqrt(log(1 / delta) / n), proven for epsilon < 1/2, n > 1000, delta < 1/100; refused elsewhere.
    """
    check_delta(delta)
    if not (0 < epsilon < 0.5 and reports > 1000 and delta < 0.01):
        raise Refused(
            "EFMRTT19 is proven for epsilon below 1/2, more than 1000 reports and delta below 1/100 only."
        )
    return 12 * epsilon * math.sqrt(math.log(1 / delta) / reports)


def clones(reports: int, epsilon: float) -> Crowd:
    """Upper bound for any epsilon-LDP mechanism (Feldman, McMillan, Talwar 2021, Theorem 3.2).

    Every other report is a clone of one of the victim's two laws, each with probability e^-eps / 2, and
    the two laws differ no more than randomized response.
    """
    ratio = above_exp(epsilon)
    own, cover = ratio / (ratio + 1), 1 / (2 * ratio)
    return Crowd(reports, own, 1 - own, Fraction(0), cover, Fraction(0), "clones")


def blanket_generic(reports: int, epsilon: float, delta: float) -> float:
    """Upper bound for any epsilon-LDP mechanism: privacy blanket with Bennett's inequality (Balle et al. 2019).

    The blanket is e^-eps times the victim's law P. (P - alpha P') / P = 1 - alpha r, where the ratio r of the
    two laws has mean 1 and lies between e^-eps and e^eps; so its variance is at most e^eps + e^-eps - 2.
    """
    share, variance = math.exp(-epsilon), 2 * math.cosh(epsilon) - 2

    def at(central: float) -> float:
        alpha = math.exp(central)
        return _bennett(reports, share, 1 - alpha / math.exp(epsilon), alpha**2 * variance, alpha - 1)

    return invert(at, delta, 1e-9 * epsilon, epsilon)


def blanket_specific(reports: int, weights: Weights, delta: float) -> float:
    """Upper bound for responses (see `response`): the blanket of mass t V / Omega with Bennett's inequality.

    The variance of the amplification variable is that of the worst pair.
    """
    favoured, outcomes, weight, unit = weights
    ratio = weight / unit
    share = outcomes / (favoured * ratio + outcomes - favoured)
    part = favoured / outcomes

    def at(central: float) -> float:
        alpha = math.exp(central)
        square = part * ((ratio - alpha) ** 2 + (1 - alpha * ratio) ** 2) + (1 - 2 * part) * (1 - alpha) ** 2
        variance = share**2 * square - (1 - alpha) ** 2
        return _bennett(reports, share, share * (ratio - alpha), variance, alpha - 1)

    return invert(at, delta, 1e-9, math.log(ratio))


def _bennett(n: int, share: float, top: float, variance: float, drift: float) -> float:
    """Upper bound on E[(L_1 + ... + L_m)_+] / (share n), m ~ Bin(n, share), L <= top with mean -drift.

    Bennett: P(sum > u) <= exp(-m v / b^2 f(b (drift + u/m) / v)), with the variance v of L, b = top + drift and
    f(x) = (1 + x) log(1 + x) - x. f is convex, so the integral over u >= 0 is at most
    exp(-m k) b / log(1 + b drift / v), where k = v / b^2 f(b drift / v); the mean of exp(-m k) is known.
    """
    reach = top + drift
    if top <= 0:
        return 0.0
    if drift <= 0 or variance <= 0:
        return 1.0
    slope = math.log1p(reach * drift / variance)
    rate = variance / reach**2 * ((1 + reach * drift / variance) * slope - reach * drift / variance)
    decay = math.exp(n * math.log1p(share * math.expm1(-rate))) - math.exp(n * math.log1p(-share))
    return min(1.0, max(decay, 1e-300) * reach / (slope * share * n))


def published(reports: int, favoured: int, outcomes: int, weight: int, unit: int) -> Crowd:
    """Theorem 5 of Wang et al. as published, mixture weight a = s / Omega. NOT AN UPPER BOUND for t > 2s.

    It lets other reports fall on the outcomes that neither record favours as if nobody could tell them from
    the victim's; the lemma for that (stronger clones, Lemma 3.5) has an erratum. At s=1, t=3, epsilon=1, n=4
    and central epsilon 0.6 it says 0.0415, where others who hold 0, 2, 2 make it 0.0489.
    """
    omega = favoured * weight + (outcomes - favoured) * unit
    own, cover = Fraction(favoured * weight, omega), Fraction(favoured * unit, omega)
    return Crowd(
        reports, own, cover, 1 - own - cover, cover, 1 - 2 * cover, "as published: not an upper bound"
    )


def lower_bound(reports: int, favoured: int, outcomes: int, weight: int, unit: int) -> Crowd:
    """Theorem 6 of Wang et al.: what is reached, so no bound can be lower. Computed to a relative 1e-6.

    All others hold one record whose favoured set meets neither of the victim's, which takes t >= 3s. The pair
    of laws is that of `published`.
    """
    if outcomes < 3 * favoured:
        raise Refused(
            f"The lower bound needs three disjoint favoured sets (t >= 3s); {outcomes} outcomes are fewer than "
            f"3 * {favoured}."
        )
    return published(reports, favoured, outcomes, weight, unit)


#: Column title -> central epsilon of a mechanism; in the order of Figure 2.
BOUNDS: dict[str, Callable[[Mechanism, int, float], float]] = {
    "EFMRTT19": lambda mechanism, n, delta: efmrtt19(n, mechanism.epsilon, delta),
    "blanket, generic": lambda mechanism, n, delta: blanket_generic(n, mechanism.epsilon, delta),
    "blanket, specific": lambda mechanism, n, delta: blanket_specific(n, _weights(mechanism), delta),
    "clones": lambda mechanism, n, delta: clones(n, mechanism.epsilon).epsilon(delta, _EXCESS),
    "any mechanism": lambda mechanism, n, delta: any_mechanism(n, mechanism.epsilon).epsilon(delta, _EXCESS),
    "hubbub": lambda mechanism, n, delta: crowd_of(mechanism, n).epsilon(delta, _EXCESS),
    "as published (no bound)": lambda mechanism, n, delta: published(n, *_weights(mechanism)).epsilon(
        delta, _EXCESS
    ),
    "lower bound": lambda mechanism, n, delta: lower_bound(n, *_weights(mechanism)).epsilon(delta, _EXCESS),
}

#: The columns that are upper bounds by others.
EARLIER = ("EFMRTT19", "blanket, generic", "blanket, specific", "clones", "any mechanism")


def _weights(mechanism: Mechanism) -> Weights:
    weights = response_weights(mechanism)
    if weights is None:
        raise Refused(f"{mechanism.name} is not a response mechanism.")
    response(2, *weights)
    return weights


def published_setting(epsilon: float, max_entries: int, **parameters: Any) -> Mechanism:
    """Collision as in Figure 2 of Wang et al.: t = floor(s e^eps + 2s - 1) buckets."""
    buckets = math.floor(max_entries * math.exp(epsilon) + 2 * max_entries - 1)
    chosen = {"family": "prf", "buckets": buckets, **parameters}
    return make_mechanism("collision", epsilon=epsilon, max_entries=max_entries, **chosen)


def compare(
    make: Callable[[float], Mechanism], epsilons: Iterable[float], reports: Sequence[int], delta: float
) -> list[dict[str, Any]]:
    """One row per number of reports and local epsilon: the central epsilon of every bound that applies, or None.

    "saved" is the share of the best earlier upper bound that is saved by hubbub's.
    """
    rows = []
    for n in reports:
        for epsilon in epsilons:
            mechanism = make(epsilon)
            row: dict[str, Any] = {"reports": n, "epsilon": epsilon}
            for name, bound in BOUNDS.items():
                try:
                    row[name] = min(bound(mechanism, n, delta), epsilon)
                except Refused:
                    row[name] = None
            row["saved"] = 1 - row["hubbub"] / min(row[name] for name in EARLIER if row[name] is not None)
            rows.append(row)
    return rows


def draw(rows: Sequence[dict[str, Any]], path: str | Path) -> None:
    """The comparison as a figure, one panel per number of reports (Wang et al., Figure 2)."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Refused("Figures need matplotlib: pip install 'hubbub[plots]'.") from None
    sizes = sorted({row["reports"] for row in rows})
    figure = Figure(figsize=(4.2 * len(sizes) + 2.2, 4), layout="constrained")
    panels = figure.subplots(1, len(sizes), squeeze=False)[0]
    for panel, n in zip(panels, sizes, strict=True):
        for name in BOUNDS:
            points = [(r["epsilon"], r[name]) for r in rows if r["reports"] == n and r[name] is not None]
            if points:
                style = {"hubbub": "-", "lower bound": ":", "as published (no bound)": "--"}.get(name, "-.")
                panel.plot(*zip(*points, strict=True), style, label=name)
        panel.set(yscale="log", xlabel="local epsilon", title=f"{n:,} reports")
    panels[0].set_ylabel("central epsilon")
    handles = {
        label: h for panel in panels for h, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize="small")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as problem:
        raise Refused(f"{path} cannot be written: {problem}.") from None
