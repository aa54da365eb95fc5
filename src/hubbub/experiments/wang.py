"""The paper on Collision and CoCo (Wang et al.): its figures."""

from __future__ import annotations

from hubbub.experiments.runner import Experiment, Job, Row
from hubbub.privacy.bounds import compare, draw, published_setting


def shuffle_bounds(epsilons: list[float]) -> list[Row]:
    """Figure 2: central epsilon by every bound, Collision with four entries, delta 1e-6."""
    return compare(
        lambda epsilon: published_setting(epsilon, max_entries=4), epsilons, (1000, 10_000, 1_000_000), 1e-6
    )


def experiments() -> list[Experiment]:
    """Figure 2."""
    few, many = [0.1, 0.5, 1.0, 2.0, 3.0, 5.0], [0.1 + 0.35 * i for i in range(15)]
    return [
        Experiment(
            "wang-fig2",
            "Bounds on shuffling, Collision with four entries (Wang et al., Figure 2)",
            lambda request: [Job(shuffle_bounds, {"epsilons": few if request.quick else many})],
            draw,
            remarks="The curve of the paper's Theorem 5 is drawn as published; it is not an upper bound for t > 2s. "
            'The column "saved" compares hubbub\'s proven bound with the best earlier proven one.',
        )
    ]
