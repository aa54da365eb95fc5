"""Reports over hash buckets that say as much as a report can: what a forger would send.

A report moves the estimate of a key by its votes for the key's bucket. What a vote is worth is not written down a
second time: it is asked of the mechanism's own estimates, see `vote_worth`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hubbub.mechanisms.shared.tallies import Votes
from hubbub.model.hashing import cohort_of, hash_entries
from hubbub.model.influence import corners, of_both
from hubbub.model.keys import Keys
from hubbub.primitives.arrays import Floats, Int64s, UInt64s

if TYPE_CHECKING:
    from hubbub.mechanisms.shared.hashed import Hashed

#: Numbers (reports times outcomes) that are worked on at a time.
_CHUNK = 1 << 22


def vote_worth(mechanism: Hashed) -> tuple[Floats, Floats]:
    """What one report adds to n times frequency and mean: [2] without a vote, and [2, sides, channels] for each vote.

    Estimates are linear in votes: these are the estimates for keys of a made-up state, one report with no vote for the
    first key, and one vote of one kind for each of the others. NaN where something is not estimated.
    """
    sides = 2 if mechanism.sided else 1
    kinds = [(side, channel) for side in range(sides) for channel in range(mechanism.channels)]
    keys = Keys(kind="closed", size=1 + len(kinds), salt="0" * 32)
    walsh = mechanism.model_copy(update={"family": "walsh"})
    state = walsh.empty(keys)
    state.count, state.per_code = 1, mechanism.buckets
    ids = keys.all_ids()
    for (side, channel), own in zip(kinds, ids[1:, None], strict=True):
        place = keys.other_side(own) if side else own
        state.totals[channel, 0, keys.codes(place, 0).astype(np.int64)] = 1
    signed = np.array([votes.signed for votes in mechanism.no_votes])
    signs = np.concatenate([keys.signs(keys.other_side(ids) if side else ids)[None] for side in range(sides)])
    found = of_both(walsh.moments(state, keys, ids))
    worth = np.full((2, sides, mechanism.channels), np.nan)
    for number, (side, channel) in enumerate(kinds, 1):
        worth[:, side, channel] = (found[:, number] - found[:, 0]) * (
            signs[side, number] if signed[channel] else 1
        )
    return found[:, 0], worth


def hashed_contributions(mechanism: Hashed, keys: Keys, reports: UInt64s, ids: UInt64s) -> Floats:
    """[2, reports, keys]: what each report adds to n times frequency and mean."""
    alone, worth = vote_worth(mechanism)
    votes = mechanism.votes_of(reports)
    found = np.repeat(alone[:, None], len(reports) * len(ids), axis=1).reshape(2, len(reports), len(ids))
    for side in range(worth.shape[1]):
        for place, key in enumerate(keys.other_side(ids) if side else ids):
            for channel, cast in enumerate(mechanism.votes_for(keys, reports, votes, key)):
                found[:, :, place] += worth[:, side, channel, None] * cast
    return found * _listened(keys, reports)[:, None]


def loudest_fields(mechanism: Hashed, keys: Keys, reports: UInt64s, ids: UInt64s, weights: Floats) -> UInt64s:
    """The reports of the same seeds that add most to n times the weighted sum [2, keys] of frequencies and means."""
    _, worth = vote_worth(mechanism)
    kinds = [votes.signed for votes in mechanism.no_votes]
    prices = np.einsum("qk,qsc->skc", np.nan_to_num(weights), np.nan_to_num(worth))
    changed = reports.copy()
    step = max(1, _CHUNK // max(mechanism.buckets * len(kinds), _outcomes(mechanism)))
    for start in range(0, len(reports), step):
        seeds = np.ascontiguousarray(reports[start : start + step, 0])
        order, alone = np.arange(len(seeds)), np.arange(len(seeds) + 1, dtype=np.int64)
        wanted = np.zeros((len(seeds), len(kinds), mechanism.buckets))
        for side in range(len(prices)):
            for place, key in enumerate(keys.other_side(ids) if side else ids):
                same = np.full(len(seeds), key, dtype=np.uint64)
                bucket, sign = hash_entries(mechanism.family, keys, seeds, same, alone, mechanism.buckets)
                for channel, signed in enumerate(kinds):
                    wanted[order, channel, bucket] += prices[side, place, channel] * (sign if signed else 1)
        fields = reports[start : start + step, 1:].astype(np.int64)
        changed[start : start + step, 1:] = mechanism.best_fields(wanted, fields)
    return changed


def hashed_effects(mechanism: Hashed) -> Floats:
    """[corners, 2]: what a report can add for one key, under whatever seed.

    A key's place and sign can be any, and where it has two sides, their places can be the same one or two. What a
    report can say is the same for all places and signs, so one of each kind stands for all. That there is a seed for
    each of them is nearly certain: under one in `buckets` the sides are in the same place.
    """
    alone, worth = vote_worth(mechanism)
    kinds = [(0,)] if worth.shape[1] == 1 else [(0, 0), (0, 1)]
    spots = [spot for spot in kinds if max(spot) < mechanism.buckets]

    def furthest(way: Floats) -> Floats:
        found = []
        for spot in spots:
            wanted = np.zeros((1, mechanism.channels, mechanism.buckets))
            for side, place in enumerate(spot):
                wanted[0, :, place] += way @ np.nan_to_num(worth[:, side])
            blank = np.zeros((1, len(mechanism.report_fields())), dtype=np.int64)
            votes = mechanism.votes(mechanism.best_fields(wanted, blank))
            cast = np.array([[vote.of(np.array([place]))[0] for vote in votes] for place in spot])
            found.append(alone + (worth * cast).sum(axis=(1, 2)))
        return max(found, key=lambda each: float(np.nan_to_num(each) @ way))

    return corners(furthest)


def best_of_all(mechanism: Hashed, wanted: Floats, fields: Int64s) -> Int64s:
    """Of all fields there are those with the largest sum of wanted [n, channels, buckets] times votes.

    For reports that vote for one bucket. Where the given fields are as good as any, they stay.
    """
    limits = tuple(field.limit for field in mechanism.report_fields())
    every = np.stack(np.unravel_index(np.arange(_outcomes(mechanism)), limits), axis=1).astype(np.int64)
    total = _gained(wanted, mechanism.votes(every))
    given = np.ravel_multi_index(tuple(fields.T), limits)
    order, best = np.arange(len(wanted)), np.argmax(total, axis=1)
    stays = total[order, given] >= total[order, best]
    chosen: Int64s = every[np.where(stays, given, best)]
    return chosen


def _gained(wanted: Floats, votes: tuple[Votes, ...]) -> Floats:
    parts = [wanted[:, at, vote.bucket] * vote.values[:, 0] for at, vote in enumerate(votes)]
    return np.asarray(np.sum(parts, axis=0))


def _outcomes(mechanism: Hashed) -> int:
    """Reports under one seed, where they name one bucket; about as many numbers where they do not."""
    alone = all(votes.values.shape[1] == 1 for votes in mechanism.no_votes)
    return int(np.prod([field.limit for field in mechanism.report_fields()])) if alone else mechanism.buckets


def _listened(keys: Keys, reports: UInt64s) -> Floats:
    """1 for reports that estimates are made from, 0 for those that only take part in a search."""
    if keys.tree is None:
        return np.ones(len(reports))
    return np.isin(cohort_of(keys, reports[:, 0]), np.array(keys.asked)).astype(np.float64)
