"""Estimates and what goes with them in notebooks: noise is no finding there either, and keys do nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import hubbub
from helpers import small_task
from hubbub.model.record import GRID, Entries
from hubbub.release.publisher import make_goal
from hubbub.release.publisher import simulate as simulate_release
from hubbub.server.estimates import Estimate, estimate
from hubbub.server.truncation import Truncation
from hubbub.simulation.rehearsal import simulate

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "&lt;b&gt;",
    "\u202egnp.exe",
    "$\\frac{",
    "a" * 200,
)
#: What notebooks may be given: nothing that runs, loads or links.
ALLOWED = {"div", "p", "table", "thead", "tbody", "tr", "th", "td", "strong", "svg", "line", "circle"}


class Tags(HTMLParser):
    """Tags, names of attributes and text of a piece of HTML."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def checked(page: str) -> Tags:
    found = Tags(page)
    assert found.tags <= ALLOWED
    assert not any(name.startswith("on") or name in ("href", "src") for name in found.attributes)
    return found


def held(share: float, keys: int = 6, epsilon: float = 4.0) -> Estimate:
    """Estimates from 3,000 people, of whom this share holds the first key."""
    task = small_task("collision", keys, epsilon=epsilon)
    holders = round(share * 3000)
    offsets = np.minimum(np.arange(3001), holders).astype(np.int64)
    values = np.full(holders, GRID, dtype=np.int64)
    crowd = Entries(np.full(holders, task.keys.id_of("0"), dtype=np.uint64), values, offsets)
    return estimate(task, simulate(task, crowd, seed=1).state)


def test_hostile_keys_are_shown_and_do_nothing() -> None:
    found = replace(held(0.9), keys=HOSTILE)
    page = checked(found._repr_html_())
    assert HOSTILE[0] in page.text
    assert HOSTILE[1] in page.text
    assert HOSTILE[2] in page.text
    assert "\u202e" not in "".join(page.text)
    assert "<script" not in found._repr_html_()
    with pytest.raises(AssertionError):  # what is not escaped is noticed
        checked(found._repr_html_().replace("&lt;", "<").replace("&gt;", ">"))


def test_a_table_has_error_bars_and_the_guarantee_below() -> None:
    found = held(0.9)
    page = checked(found._repr_html_())
    assert found.guarantee.words() in page.text[-1]
    assert len(re.findall("<circle", found._repr_html_())) == 6
    assert page.text.count("in the noise") == int(found.flagged.sum()) == 5
    assert found._repr_html_().count("opacity:0.55") == 5


def test_no_selection_of_noise_is_shown() -> None:
    """As with print: of 40 keys that nobody has, none is listed, and the reason comes first."""
    found = held(0.0, keys=40)
    page = found._repr_html_()
    assert "<table" not in page
    assert page.index("Nothing stands out") < page.index("frequency:")
    few = held(0.0)
    assert few._repr_html_().count("in the noise") == 6
    assert "<strong>" in few._repr_html_()


def test_what_happened_to_the_input_is_said() -> None:
    found = hubbub.run({str(user): ["a", "b", "a"] for user in range(40)}, epsilon=1.0, max_entries=1)
    for text in (str(found), "".join(checked(found._repr_html_()).text)):
        assert "repeated keys (last one kept)" in text
        assert "publicly known" in text


def release(**goal: Any) -> hubbub.Release:
    made = make_goal(epsilon=1.0, **goal)
    return simulate_release({"<i>a</i>": 50, "b": 3}, made, seed=3).release


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (lambda: small_task("collision", 12), ["collision", "12 keys", "local model"]),
        (lambda: small_task().guarantee, ["epsilon = 1 per record"]),
        (
            lambda: hubbub.plan(keys=100, max_entries=4),
            ["sketch_response", "coco is for signed values", "local model"],
        ),
        (
            lambda: release(vocabulary=("<i>a</i>", "b", "c")),
            ["<i>a</i>", "central model", "nothing here is private"],
        ),
        (lambda: release(max_nonzero=10, max_sum=100), ["any", "central model"]),
        (
            lambda: hubbub.simulate(
                {"u": ["<i>"], "v": ["<i>", "x"]}, hubbub.plan(keys=["<i>", "x"], max_entries=2).task("t")
            ),
            ["<i>", "truth", "nothing here is private"],
        ),
    ],
    ids=["task", "guarantee", "plan", "release", "release of any key", "outcome"],
)
def test_everything_that_has_a_promise_shows_it(thing: Any, words: list[str]) -> None:
    page = "".join(checked(thing()._repr_html_()).text)
    for word in words:
        assert word in page


@pytest.fixture
def pyplot() -> Any:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def dots(axes: Any) -> list[Any]:
    """The colours of the dots, the last of all that is scattered."""
    from matplotlib.collections import PathCollection

    from_scatter = [each for each in axes.collections if isinstance(each, PathCollection)]
    last = from_scatter[-1]
    return [tuple(np.round(c, 3)) for c in last.get_facecolors()] if len(last.get_offsets()) else []


@pytest.mark.parametrize("dark", [False, True])
def test_a_plot_greys_what_is_noise(pyplot: Any, dark: bool) -> None:
    from matplotlib.colors import to_rgba

    axes = held(0.9).plot(dark=dark)
    axes.figure.canvas.draw()
    strong, noise = ("#5cc9bd", "#565d65") if dark else ("#0f766e", "#b3b7bd")
    wanted = [tuple(np.round(to_rgba(colour), 3)) for colour in (strong, noise)]
    assert dots(axes) == [wanted[0]] + [wanted[1]] * 5
    assert next(label.get_text() for label in axes.get_yticklabels()) == "0"
    assert "epsilon = 4 per record" in axes.get_xlabel()


def test_a_plot_takes_any_key_and_given_axes(pyplot: Any) -> None:
    figure, given = pyplot.subplots()
    found = replace(held(0.9), keys=HOSTILE)
    assert found.plot(count=6, axes=given) is given
    figure.canvas.draw()
    labels = [label.get_text() for label in given.get_yticklabels()]
    assert set(HOSTILE[:3]) <= set(labels)
    assert max(map(len, labels)) <= 40


def test_a_plot_draws_no_selection_of_noise(pyplot: Any) -> None:
    axes = held(0.0, keys=40).plot()
    axes.figure.canvas.draw()
    assert dots(axes) == []
    assert any("Nothing stands out" in text.get_text() for text in axes.texts)


def test_a_plot_says_what_has_to_be_known(pyplot: Any) -> None:
    """In one line before the guarantee: what was dropped, and that nothing stands out where rows are drawn."""
    lost = Truncation(4, "table", 1.0, 0.0, 0.75, 0.0, 0.75, 4.0, dropped_most=0.75)
    axes = replace(held(0.9), truncation=lost).plot()
    below = axes.get_xlabel().split("\n")
    assert below[0] == "75% of all entries were dropped; estimates are of those that were kept."
    assert below[1].startswith("3,000 reports. epsilon = 4")
    assert len(held(0.9).plot().get_xlabel().split("\n")) == 1
    counted = replace(held(0.9), truncation=Truncation(4, "reports", 0.3, 0.02, 0.2, 0.02))
    assert counted.plot().get_xlabel().startswith("30% ± 2.0% of all records were longer than 4 entries;")
    silent = held(0.0).plot()
    assert dots(silent)
    assert silent.get_xlabel().startswith("Nothing stands out.")
    hopeless = replace(held(0.0, keys=40), truncation=lost).plot()
    assert hopeless.get_xlabel().startswith("75% of all entries were dropped")
