"""Discovery: what is found, how much of it is false, and what it costs, beside PEM where everybody holds one key.

    python benchmarks/discovery.py strings [--people 650000] [--runs 5] [--epsilon 1 2 3 4] [--shuffled 1]
    python benchmarks/discovery.py words [...]       English words with their frequencies (needs wordfreq)
    python benchmarks/discovery.py sets FILE.npz     records of several keys: columns user and item, numbers as text
    python benchmarks/discovery.py speed             seconds and memory for a million people

F1 is that of the most frequent 32, 128 and 512 keys against the first that are found. A find is false if nobody holds
it. Recall is of keys above the share that the planner says is found with 90%.

PEM (Wang, Li, Jha: Locally differentially private heavy hitter identification) asks equal groups for ever longer
prefixes with local hashing and keeps the best k of each. Here its counts are drawn from their exact laws, one by one,
as if no two candidates ever shared a hash function's bucket by more than chance, which is kind to it.
"""

from __future__ import annotations

import argparse
import resource
import string
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hubbub.model.record import GRID, Entries
from hubbub.model.tree import Tree
from hubbub.plan.proposal import Wish
from hubbub.plan.prospects import Prospect, Spelling, prospect
from hubbub.protocol.task import Task
from hubbub.server.discovery import discover
from hubbub.server.fold import aggregate
from hubbub.simulation.rehearsal import simulate

TOPS = (32, 128, 512)


def zipf_strings(count: int, seed: int) -> list[str]:
    """Different strings of six letters, in no order."""
    rng = np.random.default_rng(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        rows = rng.integers(97, 123, (count, 6)).astype(np.uint8)
        found.update(dict.fromkeys(bytes(row).decode() for row in rows))
    return list(found)[:count]


def f1(found: Sequence[int], truth: Sequence[int], count: int) -> float:
    """Of the first `count` found keys against the first `count` true ones."""
    hits = len(set(found[:count]) & set(truth[:count]))
    return 2 * hits / (len(found[:count]) + count)


def planned(users: int, entries: int, spelling: Spelling, epsilon: float, shuffled: bool) -> Prospect:
    delta = 1e-6 if shuffled else 0.0
    wish = Wish(epsilon, entries, delta=delta, users=users)
    return prospect(wish, spelling, "shuffled" if shuffled else "local")


def measure(plan: Prospect, names: list[str], records: Entries, seed: int) -> dict[str, float]:
    """One simulated collection; `records` have places in `names` as ids."""
    task = salted(plan.task("benchmark"), seed)
    ids = task.keys.ids_of(names)
    coded = Entries(ids[records.ids.astype(np.int64)], records.values, records.offsets)
    state = simulate(task, coded, seed).state
    started = time.process_time()
    found = discover(task, state)
    seconds = time.process_time() - started
    # Keys that are cut alike are one key.
    known, place = np.unique(ids, return_inverse=True)
    held = np.bincount(place[records.ids.astype(np.int64)], minlength=len(known))
    truth = known[np.argsort(-held, kind="stable")].tolist()
    real = set(known[held > 0].tolist())
    got = found.ids.tolist()
    popular = set(known[held >= plan.share * len(records)].tolist())
    shares = dict(zip(known.tolist(), held / len(records), strict=True))
    true = np.array([shares.get(key, 0.0) for key in got])
    inside = (found.estimate.low <= true) & (true <= found.estimate.high)
    return {
        **{f"f1 {count}": f1(got, truth, count) for count in TOPS},
        "found": len(got),
        "false": sum(key not in real for key in got) / max(1, len(got)),
        "popular": len(popular),
        "recall": len(popular & set(got)) / max(1, len(popular)),
        "covered": float(inside.mean()) if len(got) else 1.0,
        "seconds": seconds,
    }


def salted(task: Task, seed: int) -> Task:
    """The same task with other codes, chosen by the seed."""
    keys = task.keys.model_copy(update={"salt": f"{seed:032x}"})
    return task.model_copy(update={"keys": type(keys)(**keys.model_dump())})


def pem(
    names: list[str], held: NDArray[np.int64], tree: Tree, epsilon: float, top: int, seed: int
) -> list[int]:
    """The ids of the `top` keys that PEM finds: equal groups, one per level of the tree, `top` prefixes kept."""
    rng = np.random.default_rng(seed)
    ids = np.array([tree.id_of(name) for name in names], dtype=np.uint64)
    buckets = round(np.exp(epsilon)) + 1
    hit = np.exp(epsilon) / (np.exp(epsilon) + buckets - 1)
    order = rng.permutation(np.repeat(np.arange(len(names)), held))
    groups = np.array_split(order, len(tree.levels))
    kept = np.zeros(1, dtype=np.uint64)
    for level, group in enumerate(groups):
        grow = np.uint64(tree.base ** tree.levels[level])
        rest = np.uint64(tree.base ** (tree.longest - tree.lengths[level]))
        pieces = tree.pieces(level)[0].astype(np.uint64)
        candidates = (kept[:, None] * grow + pieces).reshape(-1)
        prefixes, counts = np.unique(ids[group] // rest, return_counts=True)
        place = np.minimum(np.searchsorted(prefixes, candidates), len(prefixes) - 1)
        own = np.where(prefixes[place] == candidates, counts[place], 0)
        votes = rng.binomial(own, hit) + rng.binomial(len(group) - own, 1 / buckets)
        kept = candidates[np.argsort(-votes, kind="stable")[:top]]
    return [int(key) for key in kept]


def table(title: str, rows: list[dict[str, float]], more: str = "") -> None:
    """Means over repetitions on one line."""
    means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    print(title, " ".join(f"{name}={value:.4g}" for name, value in means.items()), more, flush=True)


def one_key(
    names: list[str], weights: NDArray[np.float64], given: argparse.Namespace, spelling: Spelling
) -> None:
    """Everybody holds one key; local epsilons beside PEM, then shuffled ones."""
    jobs = [(epsilon, False) for epsilon in given.epsilon] + [(epsilon, True) for epsilon in given.shuffled]
    for epsilon, shuffled in jobs:
        plan = planned(given.people, 1, spelling, epsilon, shuffled)
        rows, rivals = [], []
        for run in range(given.runs):
            rng = np.random.default_rng(1000 + run)
            own = rng.choice(len(names), given.people, p=weights / weights.sum())
            records = Entries(
                own.astype(np.uint64),
                np.full(given.people, GRID),
                np.arange(given.people + 1, dtype=np.int64),
            )
            rows.append(measure(plan, names, records, 77 + run))
            if not shuffled:
                held = np.bincount(own, minlength=len(names))
                numbers = np.array([plan.tree.id_of(name) for name in names], dtype=np.int64)
                truth = numbers[np.argsort(-held, kind="stable")].tolist()
                rivals.append(f1(pem(names, held, plan.tree, epsilon, 32, run), truth, 32))
        more = f"| PEM f1 32={np.mean(rivals):.4g}" if rivals else ""
        model = "shuffled" if shuffled else "local"
        table(f"{model} epsilon {epsilon:g}, found from {plan.share:.3g}:", rows, more)


def sets(path: str, given: argparse.Namespace) -> None:
    """Records of up to 32 keys out of a file."""
    with np.load(path) as data:
        user, item, people = data["user"].astype(np.int64), data["item"].astype(np.int64), int(data["n"])
        names = [str(key) for key in range(int(data["d"]))]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(user, minlength=people))]).astype(np.int64)
    records = Entries(item.astype(np.uint64), np.full(len(item), GRID), offsets)
    spelling = Spelling(max(map(len, names)), string.digits)
    for epsilon, shuffled in [(e, False) for e in given.epsilon] + [(e, True) for e in given.shuffled]:
        plan = planned(people, given.entries, spelling, epsilon, shuffled)
        rows = [measure(plan, names, records, 77 + run) for run in range(given.runs)]
        table(
            f"{'shuffled' if shuffled else 'local'} epsilon {epsilon:g}, found from {plan.share:.3g}:", rows
        )


def speed() -> None:
    """From a million reports to the list: six bytes in three levels, 2^20 codes, three maps."""
    people, names = 1_000_000, zipf_strings(120_000, 5)
    weights = 1 / np.arange(1, len(names) + 1)
    own = np.random.default_rng(1).choice(len(names), people, p=weights / weights.sum())
    for epsilon, shuffled in ((4.0, False), (1.0, True)):
        task = salted(planned(people, 1, Spelling(6), epsilon, shuffled).task("speed"), 1)
        records = Entries(task.keys.ids_of(names)[own], np.full(people, GRID), np.arange(people + 1))
        packed = simulate(task, records, 1).packed
        for _ in range(2):  # the second time everything is compiled
            wall, started = time.perf_counter(), time.process_time()
            found = discover(task, aggregate(task, packed))
            wall, used = time.perf_counter() - wall, time.process_time() - started
        looks = [look.candidates for look in found.looks]
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{task.mechanism.epsilon:.3g}: {used:.1f} s of a core ({wall:.1f} s), {looks} candidates, {most:.2f} GiB"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["strings", "words", "sets", "speed"])
    parser.add_argument("file", nargs="?")
    parser.add_argument("--people", type=int, default=650_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--entries", type=int, default=32)
    parser.add_argument("--epsilon", type=float, nargs="*", default=[1, 2, 3, 4])
    parser.add_argument("--shuffled", type=float, nargs="*", default=[1])
    given = parser.parse_args()
    if given.what == "speed":
        speed()
    elif given.what == "sets":
        sets(given.file, given)
    elif given.what == "strings":
        names = zipf_strings(120_000, 5)
        one_key(names, 1 / np.arange(1, len(names) + 1), given, Spelling(6))
    else:
        import wordfreq

        spelled = Spelling(10, string.ascii_lowercase + "'")
        listed = wordfreq.top_n_list("en", 120_000)
        words = [word for word in listed if set(word) <= set(spelled.alphabet)]
        one_key(words, np.array([wordfreq.word_frequency(word, "en") for word in words]), given, spelled)


if __name__ == "__main__":
    main()
