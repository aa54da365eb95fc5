"""Central releases: one compact private file that answers "how much for this key?" for any key.

    publish(table, epsilon=1.0, ...) -> Release     plan, project, with secret coins
    Release.save(path), Release.open(path)          one versioned file, memory-mapped
    Release[key], Release.query(keys)               estimates with intervals
    describe(path)                                  what a file says about itself

The files follow the paper (Aumüller, Lebeda, Pagh): laplace (Algorithm 1), alp (2, 4, 10 and Section 6), walk
(3, 5), threshold (6, 9), artifact (7, 8), maximum (11), sizes (Section 10), figures (Section 9).
"""

from __future__ import annotations

from hubbub.release.artifact import Release, describe
from hubbub.release.design import Plan, plan
from hubbub.release.goal import Goal
from hubbub.release.publisher import build, publish

__all__ = ["Goal", "Plan", "Release", "build", "describe", "plan", "publish"]
