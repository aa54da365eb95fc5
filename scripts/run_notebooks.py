"""Run the notebooks in docs/notebooks and write down what came out.

    python scripts/run_notebooks.py            all of them
    python scripts/run_notebooks.py telemetry  one

The tests run them, too, and keep nothing (tests/test_notebooks.py).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "docs" / "notebooks"


def executed(path: Path, folder: Path) -> Any:
    """The notebook with what it printed and drew, run in a folder; an error in a cell is an error here."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    source = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
    )
    client.execute(
        env={**os.environ, "PYTHONPATH": source, "PYTHONWARNINGS": "error::DeprecationWarning:hubbub"}
    )
    notebook.metadata.pop("language_info", None)
    return notebook


def main(names: list[str]) -> None:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not names or path.stem in names:
            nbformat.write(executed(path, path.parent), path)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
