"""Runs scikit-learn's orthogonal matching pursuit on a dense matrix. Needs no hubbub.

Reads {"problem": file with `matrix` and `values`, "sparsity"}; answers with the best time of three and the keys found.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import metadata


def main() -> None:
    import numpy as np
    from sklearn.linear_model import orthogonal_mp

    question = json.load(sys.stdin)
    with np.load(question["problem"]) as problem:
        matrix, values = problem["matrix"], problem["values"]
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        found = orthogonal_mp(matrix, values, n_nonzero_coefs=question["sparsity"])
        seconds.append(time.perf_counter() - start)
    answer = {
        "seconds": min(seconds),
        "places": np.flatnonzero(found).tolist(),
        "version": metadata.version("scikit-learn"),
    }
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
