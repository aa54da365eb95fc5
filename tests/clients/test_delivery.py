"""Between a report and its arrival: what JavaScript does is what Python does, or what Python can undo."""

from __future__ import annotations

import datetime
import importlib.util
import json
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from collecting import collected_task, collecting

from hubbub.collect.keypair import KeyPair
from hubbub.primitives.errors import Refused
from hubbub.protocol.sealing import sealed_width
from hubbub.protocol.strata import labels_from, stratum_from, stratum_of

ROOT = Path(__file__).parents[2]
JS = ROOT / "clients" / "js"
STATIC = ROOT / "src" / "hubbub" / "collect" / "dashboard" / "static"

SEAL = """
import { FileStore, Ledger, Task } from "PACKAGE/node.js";
const [path, key, ...documents] = process.argv.slice(2);
for (const document of documents) {
  const task = await Task.parse(new TextEncoder().encode(document));
  const ledger = new Ledger(new FileStore(path));
  const record = ["search", "print"];
  for (let i = 0; i < 2; i++) {
    const item = await ledger.sealed(task, record, Buffer.from(key, "hex"), new Date(2026, 10, 18));
    console.log(Buffer.from(item).toString("hex"));
  }
}
"""


REPORT = """
import { FileStore, Task, Uploader } from "PACKAGE/node.js";
const [path, address, token, digest] = process.argv.slice(2);
const task = await Task.fetch(`${address}/v1/tasks/${digest}/device`);
const uploader = new Uploader(address, task, { store: new FileStore(path), token });
console.log(await uploader.report(["7"]), await uploader.flush(), await uploader.report(["7"]));
uploader.close();
"""


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    return _script("make_delivery_vectors")


@pytest.fixture(scope="module")
def label_maker() -> ModuleType:
    return _script("make_label_vectors")


@pytest.fixture(scope="module")
def package(node: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built afresh."""
    folder = tmp_path_factory.mktemp("package") / "dist"
    subprocess.run([node, "build.mjs", str(folder)], cwd=JS, check=True)
    return folder


def test_vectors_are_what_python_does(maker: ModuleType) -> None:
    assert maker.text() == maker.FILE.read_text()
    verdicts = [row[-1] for row in json.loads(maker.FILE.read_text())["answers"]]
    assert set(verdicts) == {"taken", "too large", "refused", "early", "later"}


def test_what_javascript_seals_python_opens(
    maker: ModuleType, node: str, package: Path, tmp_path: Path
) -> None:
    """For its own task, period and key, and no other; asked again, the ledger gives the same item."""
    pair, tasks = KeyPair(bytes(range(32))), list(maker.tasks().values())
    documents = maker.vectors()["tasks"].values()
    program = tmp_path / "seal.mjs"
    program.write_text(SEAL.replace("PACKAGE", package.as_posix()))
    said = subprocess.run(
        [node, program, tmp_path / "ledger.json", pair.public.hex(), *documents],
        capture_output=True,
        text=True,
        check=True,
    )
    items = [bytes.fromhex(line) for line in said.stdout.splitlines()]
    for number, task in enumerate(tasks):
        first, again = items[2 * number : 2 * number + 2]
        assert len(first) == sealed_width(task)
        assert (first == again) == (task.reports_per_period == 1)
        packed, unopened = pair.open_each(task, first + again)
        assert (len(packed), len(unopened)) == (2, 0)
        task.mechanism.layout.unpack(packed)
        for other in tasks:
            if other is not task and sealed_width(other) == len(first):
                assert len(pair.open_each(other, first)[1]) == 1
        assert len(KeyPair(bytes(32)).open_each(task, first)[1]) == 1
        for place in range(0, len(first), 7):
            changed = first[:place] + bytes([first[place] ^ 1]) + first[place + 1 :]
            assert _opens_nothing(pair, task, changed)


def test_the_collector_takes_reports_with_seeds_that_it_handed_out(
    node: str, package: Path, tmp_path: Path
) -> None:
    """JavaScript asks for a nonce and reports with it; two devices have two."""
    program, task = tmp_path / "report.mjs", collected_task(seed_from="server")
    program.write_text(REPORT.replace("PACKAGE", package.as_posix()))
    with collecting(f"sqlite:///{tmp_path / 's.db'}", task) as collector:
        for device in ("one", "two"):
            given = (tmp_path / device, collector.address, collector.token, task.digest.hex())
            said = subprocess.run([node, program, *given], capture_output=True, text=True, check=True)
            assert said.stdout.split() == ["true", "true", "false"]
        assert collector.reports == 2


def test_label_vectors_are_what_python_does(label_maker: ModuleType) -> None:
    """And what it says of them is what a service makes of the headers again."""
    assert label_maker.text() == label_maker.FILE.read_text()
    tasks = label_maker.tasks()
    for name, day, labels, told, period, prefix, _ in label_maker.vectors()["strata"]:
        today = datetime.date.fromisoformat(day)
        stratum = stratum_of(tasks[name], told, period, today)
        assert dict(zip(sorted(labels), stratum.labels, strict=True)) == labels
        assert stratum_from(tasks[name], prefix.encode()) == stratum
    for name, labels in label_maker.vectors()["refused"]:
        with pytest.raises(Refused):
            labels_from(tasks[name], labels)


SEAL_LABELLED = """
import { FileStore, Ledger, Task } from "PACKAGE/node.js";
const [path, key, text] = process.argv.slice(2);
for (const [document, day, labels] of JSON.parse(text)) {
  const task = await Task.parse(new TextEncoder().encode(document));
  const ledger = new Ledger(new FileStore(path));
  const [year, month, date] = day.split("-").map(Number);
  const moment = new Date(year, month - 1, date);
  const item = await ledger.sealed(task, ["print"], Buffer.from(key, "hex"), moment, labels);
  console.log(Buffer.from(item).toString("hex"));
}
"""


def test_what_javascript_seals_with_labels_opens_for_them_alone(
    label_maker: ModuleType, node: str, package: Path, tmp_path: Path
) -> None:
    pair, found = KeyPair(bytes(range(32))), label_maker.vectors()
    tasks, first = label_maker.tasks(), {}
    for name, day, labels, _, period, prefix, _ in found["strata"]:
        first.setdefault((name, period), (day, labels, prefix))  # a ledger makes one a period
    asked = [[found["tasks"][name], day, labels] for (name, _), (day, labels, _) in first.items()]
    program = tmp_path / "seal.mjs"
    program.write_text(SEAL_LABELLED.replace("PACKAGE", package.as_posix()))
    said = subprocess.run(
        [node, program, tmp_path / "ledger.json", pair.public.hex(), json.dumps(asked)],
        capture_output=True,
        text=True,
        check=True,
    )
    items = [bytes.fromhex(line) for line in said.stdout.splitlines()]
    for item, ((name, _), (_, _, prefix)) in zip(items, first.items(), strict=True):
        task = tasks[name]
        assert item.startswith(prefix.encode())
        packed, unopened = pair.open_each(task, item)
        assert (len(packed), len(unopened)) == (1, 0)
        task.mechanism.layout.unpack(packed)
        start = len(prefix) - 4
        for number in (b"0001", b"0002", b"ffff"):
            other = item[:start] + number + item[start + 4 :]
            assert other == item or pair.open_each(task, other)[1] == [0]


def _opens_nothing(pair: KeyPair, task: object, item: bytes) -> bool:
    try:
        return len(pair.open_each(task, item)[0]) == 0  # type: ignore[arg-type]
    except Refused:
        return True


def test_the_service_s_own_copy_is_a_fresh_build(package: Path) -> None:
    """After a change in clients/js: npm run vendor."""
    fresh, kept = package / "hubbub.min.js", STATIC / "vendor" / "hubbub.min.js"
    assert fresh.read_bytes() == kept.read_bytes()
