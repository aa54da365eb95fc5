"""Pictures and texts for Figures 6 to 16 of Wang et al. (see `wang`)."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hubbub.experiments.runner import Comparison, Row
from hubbub.experiments.verdicts import claimed
from hubbub.experiments.wang_rates import published_coco
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.mechanism import Mechanism
from hubbub.primitives.envelope import write_atomic
from hubbub.primitives.errors import optional
from hubbub.privacy.bounds import published_setting as published_collision

#: Mechanism -> colour and marker: earlier ones in greys, the paper's own in blues, hubbub's in strong colours.
STYLES: dict[str, tuple[str, str]] = {
    "PCKV-UE": ("#9a9a9a", "s"),
    "PrivKV": ("#b9a58a", "^"),
    "PCKV-GRR": ("#c9c9c9", "v"),
    "PCKV-AGRR": ("#8a9a86", "D"),
    "SUCCINCT": ("#c4a3b8", "P"),
    "Collision": ("#7fa8d1", "o"),
    "CoCo": ("#4a78a8", "X"),
    "sparse_sum, tuned": ("#e69f00", "<"),
    "sketch_response, events": ("#009e73", "s"),
    "sketch_response, signed": ("#d1242f", "D"),
}
EARLIER = ("PCKV-UE", "PrivKV", "PCKV-GRR", "PCKV-AGRR")


@dataclass(frozen=True)
class Curves:
    """What a figure shows: columns of the rows, one line of panels each."""

    title: str
    columns: tuple[str, ...]


FREQUENCY_TVE = Curves("Total error of frequencies", ("ln_frequency_projected_tve",))
FREQUENCY_MAE = Curves("Largest error of frequencies", ("ln_frequency_projected_mae",))
MEAN = Curves("Errors of means, not post-processed", ("ln_mean_mae", "ln_mean_tve"))
MEAN_MAE = Curves("Largest error of means, post-processed", ("ln_mean_projected_mae",))
MEAN_TVE = Curves("Total error of means, post-processed", ("ln_mean_projected_tve",))

_BOUND = "order of the lower bound"
_AXES = {"tve": "total error (TVE)", "mae": "largest error (MAE)"}


def lower_bound(measure: str, users: int, keys: int, entries: int, epsilon: float) -> float:
    """The order of Theorem 3 (sum of all errors) or Theorem 9 (largest error), with 1 for the unknown constant."""
    if measure == "tve":
        return min(keys * math.sqrt(entries / users) / epsilon, entries)
    return min(math.sqrt(entries * math.log(keys / entries) / users) / epsilon, 1.0)


def pictures(rows: Sequence[Row], path: Path, users: int, keys: int, figures: dict[int, Curves]) -> None:
    """One picture for the frequencies (the page's own), one for the means."""
    frequency = {number: curves for number, curves in figures.items() if "frequency" in curves.columns[0]}
    means = {number: curves for number, curves in figures.items() if number not in frequency}
    for place, shown in ((path, frequency), (path.with_name(f"{path.stem}-means.png"), means)):
        lines = [(f"Fig. {number}", column) for number, curves in shown.items() for column in curves.columns]
        _draw(rows, place, users, keys, lines)


def _draw(rows: Sequence[Row], path: Path, users: int, keys: int, lines: Sequence[tuple[str, str]]) -> None:
    """A line of panels per figure and column, one panel for each s; at the end, total errors relative to CoCo's."""
    figure_class = optional("matplotlib.figure", "plots").Figure
    compared = "ln_mean_tve" if "mean" in lines[0][1] else "ln_frequency_projected_tve"
    entries = sorted({row["entries"] for row in rows})
    figure = figure_class(figsize=(2.9 * len(entries) + 2, 2.5 * len(lines) + 2.8), layout="constrained")
    panels = figure.subplots(len(lines) + 1, len(entries), squeeze=False, sharex=True, sharey="row")
    for place, held in enumerate(entries):
        shown = [row for row in rows if row["entries"] == held]
        for across, (label, column) in zip(panels, lines, strict=False):
            panel = across[place]
            _lines(panel, shown, column)
            # The theorems are for epsilon up to 1.
            private = sorted({row["epsilon"] for row in shown if row["epsilon"] <= 1})
            order = [lower_bound(column[-3:], users, keys, held, epsilon) for epsilon in private]
            panel.plot(private, order, "k--", linewidth=1, label=_BOUND)
            panel.set(xscale="log", yscale="log")
            panel.set_title(f"{label}: s = {held}", fontsize="medium")
        coco = {row["epsilon"]: row[compared] for row in shown if row["mechanism"] == "CoCo"}
        _lines(panels[-1, place], shown, compared, coco)
        panels[-1, place].set(ylim=(0.6, 2.0), xlabel="epsilon")
    for across, (_, column) in zip(panels, lines, strict=False):
        across[0].set_ylabel(_AXES[column[-3:]])
    panels[-1, 0].set_ylabel("means: TVE / CoCo's" if "mean" in compared else "TVE / CoCo's")
    labels = {
        label: handle
        for panel in panels.flat
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    named = [name for name in (*STYLES, _BOUND) if name in labels]
    figure.legend([labels[name] for name in named], named, loc="outside right upper", fontsize="small")
    _save(figure, path)


def _lines(panel: Any, rows: Sequence[Row], column: str, base: dict[float, float] | None = None) -> None:
    """A line per mechanism; with a base, its error divided by that."""
    for name, (colour, marker) in STYLES.items():
        points = [
            (row["epsilon"], math.exp(row[column] - (base[row["epsilon"]] if base else 0)))
            for row in rows
            if row["mechanism"] == name and column in row
        ]
        if points:
            x, y = zip(*points, strict=True)
            panel.plot(x, y, color=colour, marker=marker, markersize=4, linewidth=1.3, label=name)
    panel.grid(alpha=0.25)


def _save(figure: Any, path: Path) -> None:
    """As a small file: few colours are enough for lines."""
    image = optional("PIL.Image", "plots")
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=90)
    small = io.BytesIO()
    image.open(buffer).convert("RGB").quantize(128).save(small, "PNG", optimize=True)
    write_atomic(path, small.getvalue())


def _saved(rows: Sequence[Row], column: str, ours: str, others: Iterable[str]) -> float:
    """By how many percent errors are lower, in the mean of logarithms over all points and all others."""
    value = {(row["entries"], row["epsilon"], row["mechanism"]): row[column] for row in rows if column in row}
    gaps = [
        value[entries, epsilon, ours] - value[entries, epsilon, other]
        for entries, epsilon in {(entries, epsilon) for entries, epsilon, _ in value}
        for other in others
    ]
    return 100 * (1 - math.exp(math.fsum(gaps) / len(gaps)))


def saved_budget(rows: Sequence[Row]) -> Comparison:
    """Section 6: "save about 20%-30% privacy budget"; against the best earlier bound, over local epsilons."""
    found = []
    for reports in sorted({row["reports"] for row in rows}):
        saved = [100 * row["saved"] for row in rows if row["reports"] == reports]
        what = f"{reports:,} reports: budget saved on average, in percent (text: about 20 to 30)"
        found.append(claimed(what, 20, math.fsum(saved) / len(saved)))
    return found


def about_bounds(rows: Sequence[Row]) -> str:
    """Figure 2 in numbers, and what is not a bound."""
    columns = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in columns if name not in ("reports", "epsilon", "saved")]
    chosen = [
        min((row for row in rows if row["reports"] == reports), key=lambda row: abs(row["epsilon"] - epsilon))
        for reports in sorted({row["reports"] for row in rows})
        for epsilon in (0.45, 1.15, 2.2, 5.0)
    ]
    lines = [f"| reports | local epsilon | {' | '.join(names)} | saved |", "|---" * (len(names) + 3) + "|"]
    for row in chosen:
        cells = [f"{row[name]:.4g}" if row.get(name) is not None else "" for name in names]
        share = f"{100 * row['saved']:.0f}%"
        lines.append(f"| {row['reports']:,} | {row['epsilon']:.2f} | {' | '.join(cells)} | {share} |")
    gap = max(row["hubbub"] / row["as published (no bound)"] - 1 for row in rows)
    return "\n\n".join(
        [
            "Central epsilon at delta 1e-6, by every bound, at some local epsilons; all rows are in the file.",
            "\n".join(lines),
            "The paper prints curves and one sentence: its bound saves about 20% to 30%. Its Theorem 5 is drawn as "
            "published; it is not an upper bound for t > 2s, where it rests on a reduction whose authors have since "
            "corrected it. hubbub's column is proven ([shuffling](../shuffle.md)) and lies above Theorem 5 by at most "
            f"{100 * gap:.2g}%, most with few reports. "
            '"Saved" compares hubbub\'s bound with the best earlier proven one at each point. An empty cell: the bound '
            "says nothing there.",
        ]
    )


def claims(rows: Sequence[Row]) -> Comparison:
    """What Section 8 says in percent; it prints no other numbers."""

    def saved(column: str, ours: str, others: Iterable[str], epsilon: float | None = None) -> float:
        return _saved([row for row in rows if epsilon in (None, row["epsilon"])], column, ours, others)

    def spread(column: str, ours: str, others: Iterable[str], because: str) -> str:
        ends = [choose(row["epsilon"] for row in rows) for choose in (min, max)]
        found = (f"{saved(column, ours, others, end):.0f}% at epsilon {end:g}" for end in ends)
        return f"{' and '.join(found)}; {because}"

    best = _saved(_with_best(rows, "ln_mean_mae"), "ln_mean_mae", "Collision", ["best earlier"])
    noise = "where epsilon is small, projected errors are those of a guess, whoever guesses"
    gain = "CoCo's gain is in the opposite collisions, which matter less the larger epsilon is"
    flat = "true means are next to 0 here, and the projection draws all estimates there"
    return [
        claimed(
            "frequencies, TVE: Collision below the four earlier mechanisms, in percent (text: more than 60)",
            60,
            saved("ln_frequency_projected_tve", "Collision", EARLIER),
            spread("ln_frequency_projected_tve", "Collision", EARLIER, noise),
        ),
        claimed(
            "frequencies, MAE: the same",
            60,
            saved("ln_frequency_projected_mae", "Collision", EARLIER),
            spread("ln_frequency_projected_mae", "Collision", EARLIER, noise),
        ),
        claimed(
            "means, MAE, not post-processed: Collision below the best earlier one at each point (text: about 30)",
            30,
            best,
        ),
        claimed(
            "means, MAE, not post-processed: CoCo below Collision (text: more than 15)",
            15,
            saved("ln_mean_mae", "CoCo", ["Collision"]),
            spread("ln_mean_mae", "CoCo", ["Collision"], gain),
        ),
        claimed(
            "means, TVE, not post-processed: CoCo below Collision",
            15,
            saved("ln_mean_tve", "CoCo", ["Collision"]),
            spread("ln_mean_tve", "CoCo", ["Collision"], gain),
        ),
        claimed(
            "means, MAE, post-processed: CoCo below Collision",
            15,
            saved("ln_mean_projected_mae", "CoCo", ["Collision"]),
            spread("ln_mean_projected_mae", "CoCo", ["Collision"], flat),
        ),
    ]


def _with_best(rows: Sequence[Row], column: str) -> list[Row]:
    """The rows, and one more at each point for the lowest error of the earlier mechanisms."""
    best: dict[tuple[int, float], float] = {}
    for row in rows:
        if row["mechanism"] in (*EARLIER, "SUCCINCT"):
            point = row["entries"], row["epsilon"]
            best[point] = min(best.get(point, math.inf), row[column])
    added = [
        {"entries": entries, "epsilon": epsilon, "mechanism": "best earlier", column: value}
        for (entries, epsilon), value in best.items()
    ]
    return [*rows, *added]


def remarks(rows: Sequence[Row], users: int, keys: int, figures: dict[int, Curves]) -> str:
    """What was run, what differs from the paper, and what came out, in sentences with the measured numbers."""
    repetitions = {row["repetitions"] for row in rows}
    shown = "; ".join(
        f"Figure {number}: {curves.title.lower()}" for number, curves in sorted(figures.items())
    )
    parts = [
        f"![Means, {users:,} users, {keys} keys](wang-n{users}-d{keys}-means.png)",
        f"{shown}. The first picture has the frequencies, the second the means. Repetitions: "
        f"{', '.join(str(count) for count in sorted(repetitions))} (the paper: 100). Lines are exponentials of mean "
        "natural logarithms, which the table has with their standard errors (columns `ln_...` and `..._error`).",
        _text_on_crowd(rows, users, keys),
        _text_on_figures(),
        "The dashed lines are the orders of Theorem 3 (TVE) and Theorem 9 (MAE), for epsilon up to 1. The theorems "
        "leave a constant open; the lines have 1 in its place, so only their slope says something.",
        _text_on_differences(rows, users),
        _text_on_results(rows),
    ]
    return "\n\n".join(parts)


def _text_on_crowd(rows: Sequence[Row], users: int, keys: int) -> str:
    most = max(row["entries"] for row in rows)
    zero = math.sqrt(2 * keys * most / (math.pi * users))
    columns = ("ln_mean_tve", "ln_mean_projected_tve")
    best = min(row[name] for row in rows for name in columns if row["entries"] == most and name in row)
    return (
        f"Every user has exactly s of {keys} keys, all sets as likely, each with value +1 or -1 at even odds. TVE is "
        "the sum and MAE the maximum of the absolute errors; frequencies are those of a key with a sign, 2d of them. "
        "Mechanisms that give frequency f and mean m of a key are taken to say (f + m) / 2 for + and (f - m) / 2 for "
        "-. Post-processing projects these onto what is possible: not negative, with sum s. SUCCINCT, the tuned "
        "`sparse_sum` and `sketch_response, signed` estimate means alone; they have no frequencies and nothing to "
        "project. The last line of panels in each picture has total errors relative to those of CoCo.\n\n"
        "A caution about the setting: with even odds all true means are next to 0. Somebody who answers 0 for every "
        f"key without asking anybody has a TVE of about {zero:.2g} at s = {most}; the best of all mechanisms here has "
        f"{math.exp(best):.2g}. Errors without post-processing hardly depend on the true means, but projected means "
        "do: whatever pulls both signs of a key together looks good. CoCo's t is chosen for means, which makes its "
        "frequencies very noisy at small epsilon; projection then keeps both signs of a few keys, their difference is "
        "small, and so is the error of its projected means. That says nothing about means that are not 0."
    )


def _text_on_figures() -> str:
    return (
        "Which figure is which: some captions are missing in the text at hand. Figures 6 to 11 are frequencies, TVE "
        "before MAE, for (n, d) = (100,000, 256), (100,000, 512), (10,000, 256). Figure 12 is means without "
        "post-processing; whether it shows TVE or MAE is lost, so both are drawn. Figure 13 is MAE with "
        "post-processing. Figures 14, 15 and 16 are TVE with post-processing for the three settings."
    )


def _text_on_differences(rows: Sequence[Row], users: int) -> str:
    points = sorted({(row["epsilon"], row["entries"]) for row in rows})
    collision = _range(_bucket_cost(published_collision(*point, values="signed"), users) for point in points)
    coco = _range(_bucket_cost(published_coco(*point), users) for point in points)
    return (
        "What differs from the paper. (1) Collision and CoCo are as published: keyed hashing, t = floor(s e^eps + 2s - "
        "1), and for CoCo the next even number from s e^eps + s + 2, for frequencies, too. hubbub's defaults, "
        "linear hashing and a power of two of buckets, decode much faster; their predicted variance of a mean differs "
        f"by {collision} (Collision) and {coco} (CoCo, worst at small epsilon). (2) PrivKV is one three-way randomized "
        "response with all of epsilon, as this paper describes it, not the two steps of its authors. (3) PCKV fills "
        "short records up with dummy keys; here no record is short, but dummies are among the answers of PCKV-GRR. (4) "
        "SUCCINCT has the constants of its paper's text, a clip of sqrt(2 s ln(4 n / beta)), beta = 0.1. Its authors' "
        "program has a clip of sqrt(s ln n) / 2.5, and one-bit noise where Laplace noise would exceed it; with the "
        "constants of the text it is far worse. The tuned `sparse_sum` is the same idea with the clip and the noise of "
        "lowest predicted variance, corrected for clipping."
    )


def _bucket_cost(published: Mechanism, users: int) -> float:
    """How much more variance hubbub's default number of buckets has, in percent."""
    ours = make_mechanism(
        published.name, epsilon=published.epsilon, max_entries=published.max_entries, values="signed"
    )
    return 100 * (ours.variance("mean", users) / published.variance("mean", users) - 1)


def _range(percents: Iterable[float]) -> str:
    found = list(percents)
    return f"{min(found):+.1f}% to {max(found):+.1f}%"


def _text_on_results(rows: Sequence[Row]) -> str:
    def below(column: str, ours: str, other: str) -> str:
        percent = _saved(rows, column, ours, [other])
        return f"{abs(percent):.0f}% {'below' if percent >= 0 else 'above'} {other}"

    signed, events, tuned = "sketch_response, signed", "sketch_response, events", "sparse_sum, tuned"
    covered = [
        100 * row[name] for row in rows for name in ("mean_coverage", "frequency_coverage") if name in row
    ]
    found = [
        f"Means, not post-processed: `{signed}` is {below('ln_mean_tve', signed, 'CoCo')} in TVE and "
        f"{below('ln_mean_mae', signed, 'CoCo')} in MAE; `{tuned}` is {below('ln_mean_tve', tuned, 'CoCo')} and "
        f"{below('ln_mean_tve', tuned, 'SUCCINCT')} in TVE.",
        f"SUCCINCT with the constants of its text is {below('ln_mean_tve', 'SUCCINCT', 'PCKV-UE')} in TVE, and nowhere "
        f"less than {_least_factor(rows):.1f} times CoCo.",
        f"Frequencies: `{events}` is {below('ln_frequency_projected_tve', events, 'Collision')} in TVE and "
        f"{below('ln_frequency_projected_mae', events, 'Collision')} in MAE.",
        "The percentages in the table are averages over all points. For projected errors that includes small epsilon, "
        "where nothing but noise is left and all errors are those of a guess.",
        f"95% intervals covered the truth in {min(covered):.1f}% to {max(covered):.1f}% of keys, "
        f"{math.fsum(covered) / len(covered):.1f}% on average.",
        f"Bytes per report: `sketch_response` {_bytes(rows, signed)}, Collision and CoCo {_bytes(rows, 'CoCo')}, "
        f"PCKV-UE {_bytes(rows, 'PCKV-UE')}, PCKV-GRR and PrivKV {_bytes(rows, 'PrivKV')}.",
    ]
    return "What came out, over all points:\n\n" + "\n".join(f"- {sentence}" for sentence in found)


def _least_factor(rows: Sequence[Row]) -> float:
    """The least that the TVE of SUCCINCT is, in multiples of CoCo's at the same point."""
    value = {(row["entries"], row["epsilon"], row["mechanism"]): row["ln_mean_tve"] for row in rows}
    return min(
        math.exp(error - value[entries, epsilon, "CoCo"])
        for (entries, epsilon, mechanism), error in value.items()
        if mechanism == "SUCCINCT"
    )


def _bytes(rows: Sequence[Row], mechanism: str) -> str:
    sizes = sorted({row["bytes"] for row in rows if row["mechanism"] == mechanism})
    return str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
