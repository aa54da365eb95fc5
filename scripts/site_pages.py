"""What `make docs` does besides building the pages in docs/: a hook of mkdocs, see mkdocs.yml.

The site has some files from beside docs/, and links to them are turned accordingly, so that the same pages can be read
in the repository and on the site. Notebooks become pages, with what came out when scripts/run_notebooks.py ran them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

#: Files of the repository that the pages link to.
BESIDE = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "examples/spark_aggregate.py")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of a folder where the folder is named, and those that are named nowhere last."""
    docs = Path(config.docs_dir)
    nav = [_spread(item, docs) for item in config.nav or []]
    missing = [page.name for page in sorted(docs.glob("*.md")) if page.name not in set(_pages(nav))]
    config.nav = [*nav, {"More": missing}] if missing else nav
    return config


def _spread(item: Any, docs: Path) -> Any:
    """A part of the navigation, with pages in the place of folders."""
    if isinstance(item, str) and item.endswith("/"):
        found = sorted(page for ending in ("md", "ipynb") for page in (docs / item).glob(f"*.{ending}"))
        return [page.relative_to(docs).with_suffix(".md").as_posix() for page in found]
    if isinstance(item, list):
        return [_spread(part, docs) for part in item]
    return {name: _spread(part, docs) for name, part in item.items()} if isinstance(item, dict) else item


def _pages(item: Any) -> list[str]:
    """All pages in a part of the navigation."""
    if isinstance(item, str):
        return [item]
    return [page for part in (item.values() if isinstance(item, dict) else item) for page in _pages(part)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take the files from beside docs/ along."""
    root = Path(config.docs_dir).parent
    for name in BESIDE:
        files.append(File.generated(config, name, abs_src_path=str(root / name)))
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        content = notebook_page(json.loads(notebook.content_string))
        files.append(File.generated(config, notebook.src_uri.removesuffix("ipynb") + "md", content=content))
    return files


def notebook_page(notebook: dict[str, Any]) -> str:
    """A notebook as a page: its words, its code, and what came out, the richest form of it."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_shown(output) for output in cell.get("outputs", ())]
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    found = {kind: "".join(content) for kind, content in output.get("data", {}).items()}
    if "image/png" in found:
        image = found["image/png"].replace("\n", "")
        return (
            f'<div class="outcome"><img alt="What the cell drew" src="data:image/png;base64,{image}"></div>'
        )
    if "text/html" in found:
        inside = re.sub(r"<style.*?</style>", "", found["text/html"], flags=re.DOTALL)
        return f'<div class="outcome">{re.sub(chr(10) + " *", "", inside)}</div>'
    return f"```text\n{found.get('text/plain') or ''.join(output.get('text', ()))}\n```"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between docs/ and what is beside it."""
    if page.file.src_uri in BESIDE:
        return re.sub(r"\]\(docs/", "](", markdown)
    markdown = re.sub(r"\]\(([\w/.-]+)\.ipynb\)", r"](\1.md)", markdown)
    names = "|".join(re.escape(name) for name in BESIDE)
    return re.sub(rf"\]\(\.\./({names})", r"](\1", markdown)
