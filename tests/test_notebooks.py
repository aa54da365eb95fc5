"""The notebooks are run, not believed; what does not depend on coins must come out as it is written down."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def script() -> Any:
    """scripts/run_notebooks.py as a module."""
    for needed in ("nbclient", "nbformat", "ipykernel"):
        pytest.importorskip(needed)
    spec = importlib.util.spec_from_file_location("run_notebooks", ROOT / "scripts" / "run_notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shown(cell: Any) -> list[tuple[str, str]]:
    """What a cell printed, in order: kinds of output, with the text where coins have no part in it."""
    random = "random" in cell.metadata.get("tags", [])
    found = []
    for output in cell.outputs:
        text = output.get("text") or output.get("data", {}).get("text/plain", "")
        kinds = ",".join(sorted(output.get("data", {})))
        found.append((f"{output.output_type} {kinds}", "" if random else text))
    return found


def test_there_are_two() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["mechanisms", "telemetry"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_is_written_down(path: Path, tmp_path: Path) -> None:
    """Cells that depend on secret coins are tagged `random`: their own assertions say what must hold."""
    module = script()
    written = module.nbformat.read(path, as_version=4)
    now = module.executed(path, tmp_path)
    pairs = [pair for pair in zip(written.cells, now.cells, strict=True) if pair[0].cell_type == "code"]
    for before, after in pairs:
        assert shown(before) == shown(after), before.source
    drawn = sum("image/png" in kinds for _, after in pairs for kinds, _ in shown(after))
    assert drawn >= 1
    assert any("assert " in before.source for before, _ in pairs)


def test_an_error_in_a_cell_is_noticed(tmp_path: Path) -> None:
    module = script()
    cell = module.nbformat.v4.new_code_cell("import hubbub\nhubbub.run([], epsilon=1.0, max_entries=1)")
    module.nbformat.write(module.nbformat.v4.new_notebook(cells=[cell]), tmp_path / "bad.ipynb")
    with pytest.raises(Exception, match="Name the columns"):
        module.executed(tmp_path / "bad.ipynb", tmp_path)
