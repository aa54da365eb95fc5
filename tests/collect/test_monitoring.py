"""What alerts and the dashboard of Grafana ask for is what the service exports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from collecting import Collector, collected_task, collecting, sealed_batch, some_reports
from deployed import DEPLOY, ROOT
from live import Answer, ask, keyed_mixer, opaque_items

from hubbub.collect.mixer import Mixer
from hubbub.collect.serving import serving
from hubbub.collect.settings import Settings
from hubbub.collect.shuffler import Shuffler, create_shuffler_app
from hubbub.protocol.sealing import seal

TASK = collected_task()
#: Labels that Prometheus itself adds.
ADDED = {"instance", "job"}

_METRIC = re.compile(r"\b(hubbub_\w+|up)\b(?:\{([^}]*)\})?")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana" / "hubbub.json").read_text())
    return found


def expressions() -> dict[str, str]:
    """Every expression, by where it is."""
    found = {rule["alert"]: rule["expr"] for rule in rules()}
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            found[f"{panel['title']} {target['refId']}"] = target["expr"]
    return found


def exported(text: str) -> dict[str, set[str]]:
    """Names of all series in the text form, with the labels that they have."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"(\w+)(?:\{(.*)\})? \S+", line)
        if match:
            found.setdefault(match[1], set()).update(re.findall(r"(\w+)=", match[2] or ""))
        else:
            assert re.match(r"# (HELP|TYPE) hubbub_\w+ ", line), line
    return found


def asked(expression: str) -> tuple[set[str], set[str]]:
    """The metrics that an expression names, and the labels."""
    names, labels = set(), set()
    for name, selector in _METRIC.findall(expression):
        names.add(name)
        labels |= set(re.findall(r"(\w+)\s*=", selector))
    for words in re.findall(r"\bby \(([^)]*)\)", expression):
        labels |= {word.strip() for word in words.split(",")}
    return names, labels


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """What the two services export, the collector after it has done a little of everything."""
    folder = tmp_path_factory.mktemp("monitored")
    mixer = Mixer(folder / "shuffler.db")
    shuffling = Shuffler(mixer, [TASK], "http://127.0.0.1:9", "token", "upload token", 10)
    found = exported(shuffling.metrics(named=True))
    mixer.close()
    with collecting(f"sqlite:///{folder / 's.db'}", TASK) as collector:
        for name, labels in exported(busy(collector)).items():
            found.setdefault(name, set()).update(labels)
    return found


def busy(collector: Collector) -> str:
    width = TASK.mechanism.layout.width
    body = sealed_batch(TASK, some_reports(TASK, 5) + b"\xff" * width)
    for _ in range(2):
        assert collector.upload(body, "a").status == 200
    assert collector.upload(body, "b", "nobody").status == 401
    crowd = [seal(some_reports(TASK, 1), collector.service.keys.public, TASK) for _ in range(3)]
    assert collector.upload(b"".join(crowd), "c", path=collector.shuffled).status == 200
    assert collector.reports == 8
    return collector.get("/metrics").body.decode()


def accepted(answer: Answer) -> dict[str, str]:
    """Reports kept by task, as the metrics have them."""
    return dict(re.findall(r'^hubbub_reports_accepted_total{task="(.*)"} (.*)$', answer.body.decode(), re.M))


def test_tasks_are_named_to_those_who_may_know_of_them(tmp_path: Path) -> None:
    """Everybody gets the sums; an analyst the names that the token is for; with open_metrics everybody gets names."""
    other = collected_task(name="other")
    names = [task.digest.hex() for task in (TASK, other)]
    everything = dict(zip(names, ("5", "7"), strict=True))
    for settings in ({}, {"open_metrics": True}):
        url = f"sqlite:///{tmp_path / str(len(settings))}.db"
        with collecting(url, TASK, other, **settings) as collector:
            for task, count in ((TASK, 5), (other, 7)):
                path = f"/v1/tasks/{task.digest.hex()}/reports"
                body = sealed_batch(task, some_reports(task, count))
                assert collector.upload(body, "a", path=path).status == 200
            tokens = collector.service.tokens
            shown = {
                role: accepted(collector.get("/metrics", token))
                for role, token in (
                    ("nobody", "hub_analyst_made_up"),
                    ("device", tokens.new("upload")),
                    ("one", tokens.new("analyst", tasks=names[:1])),
                    ("all", tokens.new("analyst")),
                )
            }
            shown["anybody"] = accepted(ask(f"{collector.address}/metrics"))
            assert ask(f"{collector.address}/metrics", method="HEAD").status == 200
        if settings:
            assert shown == dict.fromkeys(shown, everything)
        else:
            assert shown["all"] == everything
            assert shown["one"] == {names[0]: "5", "": "7"}
            assert shown["nobody"] == shown["device"] == shown["anybody"] == {"": "12"}


def test_a_shuffler_names_tasks_only_if_it_is_told_to(tmp_path: Path) -> None:
    for settings in (Settings(), Settings(open_metrics=True)):
        mixer = keyed_mixer(tmp_path / f"{settings.open_metrics}.db")
        shuffling = Shuffler(mixer, [TASK], "http://127.0.0.1:9", "token", "upload token", 10)
        shuffling.accept(TASK, b"".join(opaque_items(TASK, 4)))
        with serving(create_shuffler_app(shuffling, settings)) as url:
            text = ask(f"{url}/metrics").body.decode()
        name = TASK.digest.hex() if settings.open_metrics else ""
        assert f'hubbub_shuffler_waiting{{task="{name}"}} 4' in text
        assert (TASK.digest.hex() in text) == settings.open_metrics


def problems(expression: str, series: dict[str, set[str]]) -> list[str]:
    """What an expression asks for and nobody exports."""
    names, labels = asked(expression)
    known = {**series, "up": ADDED}
    there = {label for name in names & set(known) for label in known[name]} | ADDED
    return sorted(names - set(known)) + sorted(labels - there)


@pytest.mark.parametrize("where", sorted(expressions()))
def test_every_metric_and_label_is_exported(where: str, series: dict[str, set[str]]) -> None:
    expression = expressions()[where]
    assert asked(expression)[0]
    assert problems(expression, series) == []
    assert expression.count("(") == expression.count(")")


def test_what_is_not_exported_is_noticed(series: dict[str, set[str]]) -> None:
    assert problems('rate(hubbub_upload_total{status="503"}[5m])', series) == [
        "hubbub_upload_total",
        "status",
    ]
    assert problems("sum by (key) (hubbub_uploads_total)", series) == ["key"]
    assert problems('hubbub_uploads_total{code="503"}', series) == ["code"]


def test_alerts_say_what_to_do() -> None:
    """Every alert has a section of its own in the runbook, and the other way round; labels in words are there."""
    text = (ROOT / "docs" / "runbook.md").read_text()
    named = [rule["alert"] for rule in rules()]
    assert re.findall(r"^### (Hubbub\w+)$", text, flags=re.MULTILINE) == named
    for rule in rules():
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("page", "ticket")
        wanted = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert wanted <= asked(rule["expr"])[1] | {"instance"}


def test_the_dashboard_can_be_imported() -> None:
    """Panels have numbers and places of their own, and ask the data source that is chosen."""
    found = dashboard()
    panels = found["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [tuple(panel["gridPos"][part] for part in ("x", "y")) for panel in panels]
    assert len(set(places)) == len(panels)
    variables = {variable["name"] for variable in found["templating"]["list"]}
    for panel in panels:
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables | {"__rate_interval", "__range"}


def test_prometheus_reads_them(tmp_path: Path) -> None:
    """Its own check of rules, also for the dashboard's expressions."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    panels = {name: text for name, text in expressions().items() if not name.startswith("Hubbub")}
    made = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$__\w+", "5m", text).replace("$instance", ".*")}
        for number, text in enumerate(panels.values())
    ]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": made}]}))
    for file in (DEPLOY / "prometheus" / "alerts.yml", path):
        done = subprocess.run([program, "check", "rules", file], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
