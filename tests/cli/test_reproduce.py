"""hubbub reproduce: every entry of the catalogue runs, repeats itself, and the page compares."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hubbub.cli import main
from hubbub.experiments.catalogue import catalogue

QUICK = ["wang-fig2", "aumuller-fig4", "aumuller-table2"]


@pytest.mark.parametrize("name", QUICK)
def test_an_experiment_runs_and_repeats(name: str, tmp_path: Path) -> None:
    tables = []
    for folder in ("a", "b"):
        result = CliRunner().invoke(main, ["reproduce", name, "-o", str(tmp_path / folder), "--json"])
        assert result.exit_code == 0, result.output
        files = [Path(file) for file in json.loads(result.stdout)["files"]]
        assert {file.suffix for file in files} >= {".csv", ".md"}
        tables.append(files[0].read_bytes())
    assert tables[0] == tables[1]
    page = (tmp_path / "a" / f"{name}.md").read_text()
    assert f"hubbub reproduce {name} --quick" in page
    if (tmp_path / "a" / f"{name}.png").exists():
        assert f"({name}.png)" in page


def test_figure_4_is_what_was_published(tmp_path: Path) -> None:
    """20,000 trials: the mean absolute error has a standard error of about 1%, the margin is seven of them."""
    assert CliRunner().invoke(main, ["reproduce", "aumuller-fig4", "-o", str(tmp_path)]).exit_code == 0
    with (tmp_path / "aumuller-fig4.csv").open() as file:
        rows = {float(r["collision"]): r for r in csv.DictReader(file) if r["curve"] == "argmax"}
    assert float(rows[0.1]["mean_absolute"]) == pytest.approx(6.4, rel=0.07)
    assert float(rows[0.01]["mean_absolute"]) == pytest.approx(4.8, rel=0.07)


def test_the_list_and_what_is_not_on_it(tmp_path: Path) -> None:
    listed = CliRunner().invoke(main, ["reproduce", "--list", "--json"])
    assert set(json.loads(listed.stdout)["experiments"]) == set(catalogue())
    unknown = CliRunner().invoke(main, ["reproduce", "nothing", "-o", str(tmp_path / "x")])
    assert unknown.exit_code == 1
    assert "nothing called 'nothing'" in unknown.stderr
    assert not (tmp_path / "x").exists()
    assert CliRunner().invoke(main, ["reproduce"]).exit_code == 2
