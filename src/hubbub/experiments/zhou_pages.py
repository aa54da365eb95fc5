"""What the pages of the Zhou et al. runs show and say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from hubbub.experiments.accuracy import with_error
from hubbub.experiments.datasets import PUBLISHED
from hubbub.experiments.runner import Comparison, Row
from hubbub.experiments.verdicts import printed
from hubbub.primitives.errors import optional

#: Colour, marker and width of every curve: published ones muted, ours strong.
STYLES = {
    "harmony": ("#b9b2a3", "v", 1.2),
    "pckv_grr": ("#a98d63", "^", 1.2),
    "gaussian": ("#8f9aa8", "D", 1.2),
    "sampled": ("#7fa08a", "s", 1.2),
    "repeated": ("#9a7fa0", "P", 1.2),
    "sparse_sum as published": ("#6d8fc4", "o", 1.4),
    "sparse_sum for a distance as published": ("#6d8fc4", "X", 1.4),
    "sparse_sum with delta as published": ("#94b4dd", "X", 1.4),
    "sparse_sum tuned": ("#e07a1f", "o", 2.0),
    "sketch_response": ("#c2185b", "o", 2.4),
    "planner's pick": ("#00695c", "*", 2.4),
}
_AXES = {
    "entries": "entries per record, k",
    "epsilon": "epsilon",
    "keys": "keys, d",
    "distance": "l1 distance, L",
}
_METRICS = {"L_inf": "largest error", "MSE": "mean squared error"}


def lower_bound(row: Row) -> float:
    """Order of the least largest error: Theorem 15 for records, Bassily and Smith's for entries; constant 1."""
    k, d, n, epsilon = row["entries"], row["keys"], row["users"], float(row["epsilon"])
    inside = k * math.log(d / k) if row["unit"] == "record" else math.log(d)
    return min(1.0, math.sqrt(max(inside, 0.0) / n) / epsilon)


def draw_panels(rows: Sequence[Row], path: Path) -> None:
    """Largest and mean squared error over what is varied: one above the other, or side by side for one parameter."""
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    shape = (2, len(panels)) if len(panels) > 1 else (1, 2)
    figure = optional("matplotlib.figure", "plots").Figure(
        figsize=(4.2 * shape[1] + 0.6, 3.4 * shape[0] + 0.9), layout="constrained"
    )
    grid = figure.subplots(*shape, squeeze=False).T.reshape(len(panels), 2)
    for column, panel in zip(grid, panels, strict=True):
        shown = [row for row in rows if row["panel"] == panel]
        for axes, (metric, words) in zip(column, _METRICS.items(), strict=True):
            _curves(axes, shown, panel, metric)
            axes.set(yscale="log", xlabel=_AXES[panel], ylabel=words)
            if panel != "epsilon":
                axes.set_xscale("log", base=10 if panel == "keys" else 2)
            axes.grid(True, which="major", color="#e6e6e6", linewidth=0.6)
            axes.set_axisbelow(True)
        if panel != "distance":
            _bound(column[0], shown, panel)
        column[0].set_title(_title(shown, panel), fontsize=10)
    handles = {
        label: handle
        for axes in grid.flat
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    order = [name for name in (*STYLES, "lower bound (order)") if name in handles]
    columns = 4 if len(panels) > 1 else 3
    figure.legend(
        [handles[name] for name in order],
        order,
        loc="outside lower center",
        ncols=columns,
        fontsize=9,
        frameon=False,
    )
    figure.savefig(path, dpi=85)


def _curves(axes: object, rows: Sequence[Row], panel: str, metric: str) -> None:
    plot = axes.plot  # type: ignore[attr-defined]
    for name, (colour, marker, width) in STYLES.items():
        mine = [row for row in rows if row["mechanism"] == name and (panel != "distance" or row["distance"])]
        points = sorted((row[panel], row[metric]) for row in mine)
        look = {"color": colour, "linewidth": width, "label": name}
        if points:
            plot(*zip(*points, strict=True), marker=marker, markersize=5, **look)
        elif panel == "distance":
            for row in rows:
                if row["mechanism"] == name:
                    axes.axhline(row[metric], linestyle="-.", **look)  # type: ignore[attr-defined]


def _bound(axes: object, rows: Sequence[Row], panel: str) -> None:
    points = sorted({(row[panel], lower_bound(row)) for row in rows if lower_bound(row) > 0})
    axes.plot(*zip(*points, strict=True), "--", color="black", linewidth=1, label="lower bound (order)")  # type: ignore[attr-defined]


def _title(rows: Sequence[Row], panel: str) -> str:
    fixed = (("k", "entries"), ("d", "keys"), ("epsilon", "epsilon"))
    parts = [f"{letter} = {rows[0][name]:,g}" for letter, name in fixed if name != panel]
    return ", ".join([f"n = {rows[0]['users']:,}", *parts])


# Words


def _at(rows: Sequence[Row], mechanism: str, **where: object) -> Row | None:
    wanted = {"mechanism": mechanism, **where}
    return next((row for row in rows if all(row[name] == value for name, value in wanted.items())), None)


_COMMON = (
    "Every estimate is the unbiased one, scored as it is; `L_inf_cut` and `MSE_cut` in the table are scored as the "
    "authors' program does, with estimates cut to [-1, 1]. `coverage` is the share of keys whose 95% interval holds "
    "the truth, and `bytes` the length of a report on hubbub's wire (the paper sends 5 bytes of seed and 4 for every "
    "number).",
    "Records have exactly k different keys, drawn by Zipf's law (1.4), and values from a normal law (1, 0.3) cut to "
    "[-1, 1], as the text says. The authors' program draws keys with replacement (about 26 different ones of 64) and "
    "uses values of 1 and -1.",
    "The naive Gaussian has delta 1e-5 and is not simulated user by user, which would take n d numbers: the sum of the "
    "noise of all users is drawn at once, by its law. PCKV is PCKV-GRR with amplification, padded with dummy keys; "
    "PCKV-UE is left out, whose reports have 1.6 bits for every key. Everything else is privatized, packed, unpacked "
    "and aggregated report by report.",
)


def about_figure(rows: Sequence[Row]) -> str:
    """Remarks under Figures 1 to 3, with measured numbers."""
    unit = next((row["unit"] for row in rows if row["distance"]), rows[0]["unit"])
    own = {"record": _about_records, "entry": _about_entries, "l1": _about_distances}[unit](rows)
    bound = (
        "The dashed line is the order of the lower bound on the largest error ("
        + (
            "Theorem 15, (1/epsilon) sqrt(k ln(d/k) / n)"
            if unit == "record"
            else "one entry, (1/epsilon) sqrt(ln d / n)"
        )
        + "); the paper gives no constant, and 1 is drawn."
    )
    sampled = (
        "Over epsilon and d, only the 100 keys with the largest means are asked for, as in the paper, which prints "
        "no numbers for this figure."
    )
    parts = [*own, *_COMMON, *([bound, sampled] if unit != "l1" else [])]
    return "\n\n".join(parts)


def _about_records(rows: Sequence[Row]) -> list[str]:
    here = {"panel": "entries", "entries": 64}
    text, tuned, sketch = (
        _at(rows, name, **here) for name in ("sparse_sum as published", "sparse_sum tuned", "sketch_response")
    )
    if text is None or tuned is None or sketch is None:
        return []
    eta = math.sqrt(64 * math.log(text["users"])) / 2.5
    program = (eta * (math.e + 1) / (math.e - 1)) ** 2 / text["users"]
    return [
        f"At k = 64, d = 4096 and epsilon 1 the mean squared error is {text['MSE']:.3g} with the constants of the "
        f"paper's text (clip sqrt(2k ln(4n/beta)), beta = 0.1, Laplace noise), {tuned['MSE']:.3g} with the clip and "
        f"noise that predict the lowest variance, and {sketch['MSE']:.3g} with sketch_response.",
        "The text's constants do not give the paper's curves: the authors' program clips at sqrt(k ln n) / 2.5 and "
        "sends one bit by randomized response, without correcting for what the clip takes away, which comes to about "
        f"{program:.2g} here. So the curve `as published` lies far above the one in the paper. "
        + _claim(rows),
        _dense(rows),
    ]


def _clearly_below(one: Row, two: Row) -> bool:
    """Whether a mean squared error is lower by more than chance: three standard errors, or 20% if there are none."""
    errors = [row.get("MSE_error") or row["MSE"] / 20 for row in (one, two)]
    return bool(one["MSE"] + 3 * math.hypot(*errors) < two["MSE"])


def _claim(rows: Sequence[Row]) -> str:
    """Where the text's constants and the tuned ones lose to an earlier mechanism, over k."""
    earlier = ("sampled", "gaussian", "harmony", "pckv_grr")
    lost: dict[str, list[int]] = {}
    for row in rows:
        if row["panel"] == "entries" and row["mechanism"].startswith("sparse_sum"):
            others = [_at(rows, name, panel="entries", entries=row["entries"]) for name in earlier]
            if any(other is not None and _clearly_below(other, row) for other in others):
                lost.setdefault(row["mechanism"], []).append(row["entries"])
    found = [
        f"`{name}` has an earlier mechanism below it at k = {', '.join(map(str, sorted(lost[name])))}"
        if name in lost
        else f"`{name}` has no earlier mechanism below it at any k that was run"
        for name in ("sparse_sum as published", "sparse_sum tuned")
    ]
    return f"Against sampling, Gaussian, Harmony and PCKV: {found[0]}; {found[1]}."


def _dense(rows: Sequence[Row]) -> str:
    """What wins when records hold all keys."""
    shown = [row for row in rows if row["panel"] == "keys" and row["keys"] == 64]
    if not shown:
        return ""
    best = min(shown, key=lambda row: row["MSE"])
    sketch, pick = _at(shown, "sketch_response"), _at(shown, "planner's pick")
    text = f"With as many keys as entries (d = k = 64) the lowest error is that of {best['mechanism']}"
    text += f" ({best['MSE']:.2g}; sketch_response {sketch['MSE']:.2g})" if sketch else ""
    text += ", as the paper says of dense vectors." if best["mechanism"] in ("harmony", "pckv_grr") else "."
    if pick is not None and pick is not best:
        text += (
            f" The planner, which reckons with keys that few people have, picks {pick['parameters'].split()[0]} there "
            f"({pick['MSE']:.2g})."
        )
    return text


def _about_entries(rows: Sequence[Row]) -> list[str]:
    here = {"panel": "entries", "entries": 64}
    text, fold, ours = (
        _at(rows, name, **here) for name in ("sparse_sum as published", "repeated", "planner's pick")
    )
    if text is None or fold is None or ours is None:
        return []
    return [
        f"At k = 64, d = 4096 and epsilon 1 the mean squared error is {text['MSE']:.2g} with the paper's number of "
        f"bins ({text['bytes']} bytes a report), {fold['MSE']:.2g} with k-fold repetition ({fold['bytes']} bytes), and "
        f"{ours['MSE']:.2g} with the bins that the planner takes when bytes do not count ({ours['bytes']} bytes): more "
        "bins mean less noise from other keys. That the error hardly depends on k holds here, too.",
        "sampled, harmony, pckv_grr and sketch_response hide the whole record, which is more than is asked for here; "
        "the paper has no numbers for them at this level.",
    ]


def _about_distances(rows: Sequence[Row]) -> list[str]:
    picks = [row for row in rows if row["mechanism"] == "planner's pick"]
    flat, clipped = _at(rows, "sketch_response"), _at(rows, "sparse_sum as published")
    if not picks or flat is None or clipped is None:
        return []
    made = [row["distance"] for row in picks if row["parameters"].split()[0] == "sparse_sum"]
    turn = (
        f"one of the first up to L = {max(made):g} and of the second beyond" if made else "one of the second"
    )
    loose = [row for row in rows if row["mechanism"] == "sparse_sum with delta as published"]
    wins = [f"{row['distance']:g}" for row in loose if row["MSE"] < min(clipped["MSE"], flat["MSE"])]
    return [
        f"Mechanisms for an l1 distance L pay for it; those that hide the whole record (lines without points) do not. "
        f"The planner picks {turn}. The regime with delta, in its published form, is better than everything that "
        "hides the record "
        + (
            f"at L = {', '.join(wins)}."
            if wins
            else "at no L that was run: the paper, too, found no use for it."
        )
        + f" The clip of the paper's text has a mean squared error of {clipped['MSE']:.2g}, the same for all L.",
        "The regime with delta exists only where L / b >= ln(2b / delta) (L from 16 on here). "
        "The naive Gaussian is calibrated to the l2 distance sqrt(2L). k-fold repetition protects an entry or the "
        "record, not a distance, and is left out. The paper does not say d and epsilon for this figure; d = 4096 and "
        "epsilon 1 are taken, as in its other figures.",
    ]


# Tables IV to VI: (level, mechanism) -> bytes, largest error, mean squared error as printed
_PRINTED = {
    "Clothing": {
        ("entry", "repeated"): (28, 0.092, 0.00059),
        ("record", "sampled"): (8, 0.18, 0.0034),
        ("entry", "gaussian"): (5512, 0.17, 0.0023),
        ("record", "gaussian"): (5512, 0.41, 0.014),
        ("record", "harmony"): (8, 1.0, 0.13),
        ("record", "pckv_grr"): (8, 0.70, 0.038),
        ("entry", "sparse_sum as published"): (9, 0.040, 0.00019),
        ("record", "sparse_sum as published"): (9, 0.098, 0.00095),
    },
    "Renting": {
        ("entry", "repeated"): (48, 0.085, 0.00050),
        ("record", "sampled"): (8, 0.29, 0.0052),
        ("entry", "gaussian"): (23400, 0.12, 0.0010),
        ("record", "gaussian"): (23400, 0.40, 0.012),
        ("record", "harmony"): (8, 1.0, 0.24),
        ("record", "pckv_grr"): (8, 1.0, 0.074),
        ("entry", "sparse_sum as published"): (13, 0.033, 0.00083),
        ("record", "sparse_sum as published"): (9, 0.11, 0.00091),
    },
    "Movies": {
        ("entry", "repeated"): (404, 0.25, 0.0033),
        ("record", "sampled"): (8, 1.0, 0.29),
        ("entry", "gaussian"): (109052, 0.12, 0.00082),
        ("record", "gaussian"): (109052, 1.0, 0.081),
        ("record", "harmony"): (8, 1.0, 0.49),
        ("record", "pckv_grr"): (8, 1.0, 0.24),
        ("entry", "sparse_sum as published"): (105, 0.034, 0.000065),
        ("record", "sparse_sum as published"): (9, 0.25, 0.0021),
    },
}
_LEVELS = {"entry": "event level", "record": "user level"}


_WIRE = "hubbub packs bits; the paper sends 5 bytes of seed and 4 for every number"
#: Why errors differ where they do: (level, mechanism) -> reason; details are below the table.
_WHY = {
    (
        "record",
        "sparse_sum as published",
    ): "the authors' program has other constants than the text, see below",
    ("entry", "gaussian"): "less noise is enough for neighbours 2 apart, see below",
    ("record", "gaussian"): "less noise is enough for neighbours 2 sqrt(k) apart, see below",
    ("entry", "sparse_sum as published"): "a misprint, see below",
}


def beside_the_table(rows: Sequence[Row]) -> Comparison:
    """Printed numbers and ours, estimates cut to [-1, 1] as the authors' program does before it scores."""
    found: Comparison = []
    for (unit, mechanism), (width, largest, square) in _PRINTED[rows[0]["panel"]].items():
        row = _at(rows, mechanism, unit=unit)
        if row is not None:
            what, why = f"{_LEVELS[unit]}, {mechanism}", _WHY.get((unit, mechanism), "")
            found += [
                printed(f"{what}: bytes", width, row["bytes"], why=_WIRE),
                printed(f"{what}: L_inf", largest, row["L_inf_cut"], row.get("L_inf_cut_error", 0.0), why, 2),
                printed(f"{what}: MSE", square, row["MSE_cut"], row.get("MSE_cut_error", 0.0), why, 2),
            ]
    return found


def about_table(rows: Sequence[Row]) -> str:
    """Remarks under Tables IV to VI: every mechanism, what the data is, and what differs."""
    name, first = rows[0]["panel"], rows[0]
    described = PUBLISHED[name]
    zero = _at(rows, "0 for every key", unit="record")
    assert zero is not None
    eta = math.sqrt(described.limit * math.log(first["users"])) / 2.5
    program = (eta * (math.e + 1) / (math.e - 1)) ** 2 / first["users"]
    theirs = _PRINTED[name]["record", "sparse_sum as published"][2]
    alone = [
        "## All mechanisms",
        "\n".join(_table(rows)),
        "Estimates are unbiased and scored as they are; the comparison above cuts them to [-1, 1] first, as the "
        "authors' program does. Errors are means of "
        f"{first['repetitions']} repetitions, every one with its own draw from long records. Mechanisms that hide the "
        "record stand under event level as well, where they hide more than is asked for.",
        "## What differs",
        f"{described.compare(first['users'], first['keys'], first['records'])} The data is {described.title}.",
        f"**The means are small.** Whoever collects nothing and answers 0 for every key has a largest error of "
        f"{zero['L_inf']:.3g} and a mean squared error of {zero['MSE']:.2g}" + _what_zero_means(rows, zero),
        "**User level of Algorithm 1.** `as published` has the constants of the paper's text. The authors' program "
        "clips at eta = sqrt(k ln n) / 2.5 instead and sends one bit by randomized response, without correcting for "
        f"what the clip takes away. The noise of that is (eta (e + 1) / (e - 1))^2 / n = {program:.2g} here; "
        f"{theirs:.2g} is printed. `sparse_sum tuned` is the same idea, unbiased, with the clip of the lowest "
        "predicted variance.",
        *_misprint(rows),
        "**Naive Gaussian.** Delta is 1e-5, and the noise is that of the analytic Gaussian for neighbours 2 apart (one "
        "value from -1 to 1), or 2 sqrt(k) for whole records. The paper's numbers are those of about twice the "
        "variance, as for neighbours sqrt(2) further apart. The noise of all users together is drawn by its law, not "
        "user by user.",
        "**PCKV** is PCKV-GRR with amplification and dummy keys as padding; so the paper's numbers come out.",
        "**Planner's pick.** It reckons with records of k entries; these are shorter, so its many bins gain little.",
        "Bytes are those of hubbub's wire; the paper sends 5 bytes of seed and 4 for every number.",
    ]
    return "\n\n".join(alone)


def _what_zero_means(rows: Sequence[Row], zero: Row) -> str:
    errors = [row["L_inf"] for row in rows if row["bytes"]]
    if min([*errors, *(largest for _, largest, _ in _PRINTED[zero["panel"]].values())]) <= zero["L_inf"]:
        return "."
    return (
        ": less than every mechanism here, and less than every error in the paper's table. The table compares "
        "noise; with this many users for this many keys, hardly anything can be learned about single keys."
    )


def _misprint(rows: Sequence[Row]) -> list[str]:
    """The printed event-level MSE that does not go with its own largest error."""
    row = _at(rows, "sparse_sum as published", unit="entry")
    if rows[0]["panel"] != "Renting" or row is None:
        return []
    return [
        "**A misprint.** At event level the paper prints a mean squared error of 0.00083 beside a largest error of "
        f"0.033. Both cannot be: here the largest error is {row['L_inf']:.3g} with a mean squared error of "
        f"{row['MSE']:.2g}, so a zero seems to be missing."
    ]


def _table(rows: Sequence[Row]) -> list[str]:
    lines = ["| level | mechanism | bytes | L_inf | MSE | coverage |", "|---|---|---|---|---|---|"]
    for unit, level in _LEVELS.items():
        for row in sorted((row for row in rows if row["unit"] == unit), key=lambda row: row["MSE"]):
            covered = f"{100 * row['coverage']:.1f}%" if row["bytes"] else ""
            cells = (
                level,
                row["mechanism"],
                f"{row['bytes']:,}",
                with_error(row, "L_inf"),
                with_error(row, "MSE"),
            )
            lines.append(f"| {' | '.join([*cells, covered])} |")
    return lines
