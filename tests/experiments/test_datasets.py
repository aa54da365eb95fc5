"""The data sets of Table III in their original formats and in the compact one, from made-up files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import refused
from hubbub.experiments.datasets import (
    PUBLISHED,
    Dataset,
    load,
    read_compact,
    read_modcloth,
    read_movielens,
    read_renttherunway,
)
from hubbub.model.record import GRID

#: user, item, rating in the order of the file; user 9 rates nothing, and user 7 rates item 40 twice.
RENTALS = [
    ("7", "40", "10"),
    ("7", "41", "8"),
    ("5", "40", "2"),
    ("9", "42", None),
    ("7", "40", "4"),
    ("5", "41", "6"),
]
RENTED = {"5": {"40": -1.0, "41": 0.0}, "7": {"40": -0.5, "41": 0.5}, "9": {}}


def rental_lines() -> str:
    lines = []
    for user, item, rating in RENTALS:
        record = {"fit": "small", "user_id": user, "item_id": item, "review_text": "é", "size": 14}
        lines.append(json.dumps(record | ({} if rating is None else {"rating": rating})) + "\n")
    return "".join(lines)


def as_records(dataset: Dataset, users: list[str], items: list[str]) -> dict[str, dict[str, float]]:
    ids, values, offsets = dataset.entries.ids, dataset.entries.values, dataset.entries.offsets
    return {
        user: {
            items[int(ids[j])]: float(values[j] / GRID) for j in range(int(offsets[i]), int(offsets[i + 1]))
        }
        for i, user in enumerate(users)
    }


def test_renting_as_distributed(tmp_path: Path) -> None:
    plain = tmp_path / "renttherunway_final_data.json"
    plain.write_text(rental_lines(), encoding="utf-8")
    packed = tmp_path / "renttherunway_final_data.json.gz"
    packed.write_bytes(gzip.compress(rental_lines().encode()))
    for path in (plain, packed):
        dataset = read_renttherunway(path)
        assert dataset.keys == 3
        assert as_records(dataset, ["5", "7", "9"], ["40", "41", "42"]) == RENTED
        assert dataset.rated.tolist() == [2, 3, 0]
        assert (dataset.left(2), dataset.left(3)) == (4, 5)


def test_clothing_as_distributed(tmp_path: Path) -> None:
    """Ratings are numbers, missing ones are null or not there."""
    path = tmp_path / "modcloth_final_data.json"
    lines = [
        {"item_id": "12", "waist": "29", "quality": 5.0, "user_name": "A", "user_id": "3"},
        {"item_id": "12", "quality": 1.0, "user_id": "30"},
        {"item_id": "13", "quality": 4.0, "user_id": "3"},
        {"item_id": "14", "quality": None, "user_id": "31"},
        {"item_id": "13", "user_id": "31"},
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    found = as_records(read_modcloth(path), ["3", "30", "31"], ["12", "13", "14"])
    assert found == {"3": {"12": 1.0, "13": 0.5}, "30": {"12": -1.0}, "31": {}}


def test_movies_as_distributed(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    path.write_text("userId,movieId,rating,timestamp\n1,10,5.0,964982703\n1,2,0.5,1\n3,10,2.75,2\n")
    dataset = read_movielens(path)
    assert as_records(dataset, ["1", "3"], ["2", "10"]) == {"1": {"2": -1.0, "10": 1.0}, "3": {"10": 0.0}}
    assert dataset.rated.tolist() == [2, 1]


def compact(**changes: Any) -> dict[str, Any]:
    """The rentals above in the compact form; users 5, 7, 9 and items 40, 41, 42 by their order."""
    arrays = {
        "user": np.array([0, 0, 1, 1], dtype=np.int32),
        "item": np.array([0, 1, 0, 1], dtype=np.int32),
        "value": np.array([-1, 0, -0.5, 0.5], dtype=np.float32),
        "extra_user": np.array([1], dtype=np.int32),
        "extra_item": np.array([0], dtype=np.int32),
        "extra_value": np.array([1], dtype=np.float32),
        "n": np.int32(3),
        "d": np.int32(3),
    }
    return {name: array for name, array in {**arrays, **changes}.items() if array is not None}


def test_both_forms_hold_the_same(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "renttherunway.npz", **compact())
    (tmp_path / "rent.json").write_text(rental_lines(), encoding="utf-8")
    one, two = read_compact(tmp_path / "renttherunway.npz"), read_renttherunway(tmp_path / "rent.json")
    assert one.keys == two.keys
    for left, right in (
        (one.entries.ids, two.entries.ids),
        (one.entries.values, two.entries.values),
        (one.entries.offsets, two.entries.offsets),
        (one.rated, two.rated),
    ):
        assert np.array_equal(left, right)


def test_sets_have_values_of_one(tmp_path: Path) -> None:
    path = tmp_path / "sets.npz"
    no_values = {"value": None, "extra_user": None, "extra_item": None, "extra_value": None}
    np.savez_compressed(path, **compact(**no_values))
    assert read_compact(path).entries.values.tolist() == [GRID] * 4


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"user": None}, "needs the arrays user, item, value"),
        ({"item": np.array([0, 1], dtype=np.int32)}, "one-dimensional and of one length"),
        ({"user": np.array([0, 0, 1, 3], dtype=np.int32)}, "user must hold whole numbers from 0 to 2"),
        ({"item": np.array([0, -1, 0, 1], dtype=np.int32)}, "item must hold whole numbers from 0 to 2"),
        ({"item": np.array([0.0, 1.0, 0.0, 1.0])}, "item must hold whole numbers"),
        ({"value": np.array([0, np.nan, 0, 0])}, "none of them missing"),
        ({"value": np.array([0, 1.5, 0, 0])}, "from -1 to 1"),
        ({"value": np.array(["1", "1", "1", "1"])}, "from -1 to 1"),
        ({"user": np.array([0, 0, 1, 0]), "item": np.array([0, 1, 1, 0])}, "occurs twice"),
        ({"extra_item": None}, "needs the arrays extra_user, extra_item, extra_value"),
        ({"n": None}, "'n' must be one whole number"),
        ({"d": np.float64(3)}, "'d' must be one whole number"),
        ({"d": np.int32(0)}, "'d' must be one whole number"),
        ({"n": np.array([3])}, "'n' must be one whole number"),
        ({"user": np.array([0, 0, 1, None], dtype=object)}, "not a readable NPZ file"),
    ],
)
def test_bad_compact_files_are_refused(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    np.savez_compressed(path, **compact(**changes))
    with refused(str(path), reason):
        read_compact(path)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.npz"
    np.savez_compressed(path, **compact())
    path.write_bytes(path.read_bytes()[:300])
    with refused("not a readable NPZ file"):
        read_compact(path)
    packed = tmp_path / "cut.json.gz"
    packed.write_bytes(gzip.compress(rental_lines().encode())[:60])
    with refused("cannot be read"):
        read_renttherunway(packed)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            '{"user_id": "1", "item_id": "2", "rating": "11"}',
            "line 1: rating must be between 2 and 10, not 11",
        ),
        ('{"user_id": "1", "item_id": "2", "rating": "NaN"}', "line 1: rating must be between"),
        (
            '\n{"user_id": "1", "rating": "2"}',
            "line 2: a JSON object with user_id, item_id and rating is needed",
        ),
        ('{"user_id": "1", "item_id": "2", "rating": "good"}', "line 1: a JSON object"),
        ("[1, 2]", "line 1: a JSON object"),
        ("{", "line 1: a JSON object"),
        ("\n", "has no records"),
    ],
)
def test_bad_lines_are_refused(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with refused(str(path), reason):
        read_renttherunway(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("user,movie\n1,2\n", "does not begin with the line userId,movieId,rating,timestamp"),
        ("userId,movieId,rating,timestamp\n1,2,9,3\n", "line 2: a rating must be between 0.5 and 5, not 9"),
        ("userId,movieId,rating,timestamp\n1,2,,3\n", "not a table of numbers"),
    ],
)
def test_bad_ratings_are_refused(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    path.write_text(text)
    with refused(str(path), reason):
        read_movielens(path)


def test_missing_data_is_asked_for_by_name(tmp_path: Path) -> None:
    for name, title, file in (
        ("Clothing", "ModCloth", "modcloth_final_data.json"),
        ("Renting", "RentTheRunway", "renttherunway_final_data.json"),
        ("Movies", "MovieLens 20M", "ratings.csv"),
    ):
        with refused(title, f"or {file} into {tmp_path}", "--data"):
            PUBLISHED[name].find(tmp_path)
        with refused(file, "into a folder"):
            PUBLISHED[name].find(None)
        (tmp_path / file).touch()
        assert PUBLISHED[name].find(tmp_path) == tmp_path / file


def test_table_iii_is_compared() -> None:
    renting = PUBLISHED["Renting"]
    assert renting.compare(105571, 5850, 183051) == (
        "Against Table III, the file has 105,571 users (as printed), 5,850 keys (as printed) and 183,051 records of "
        "at most 11 per user (183,052 printed)."
    )
    assert "2 users (105,571 printed)" in renting.compare(2, 3, 4)


def test_long_records_are_cut_at_random(tmp_path: Path) -> None:
    """Every entry of a record of five is kept with probability 2/5: 6,000 cuts, six standard errors."""
    path = tmp_path / "renttherunway.npz"
    users = 6000
    np.savez_compressed(
        path,
        user=np.repeat(np.arange(users), 5),
        item=np.tile(np.arange(5), users),
        n=np.int64(users),
        d=np.int64(5),
    )
    dataset = load("Renting", str(path))
    assert load("Renting", str(path)) is dataset
    share = dataset.cut(2, seed=1).frequency
    margin = 6 * (0.4 * 0.6 / users) ** 0.5
    assert np.abs(share - 0.4).max() < margin < 0.3 * 0.4
    assert share.sum() == pytest.approx(2)
    assert np.array_equal(dataset.cut(2, seed=1).frequency, share)
