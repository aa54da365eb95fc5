"""`hubbub serve --demo`: a made-up crowd whose simulated devices really report, and a dashboard to watch.

The crowd is invented and repeatable; the coins that hide it are real ones, the reports travel over HTTP, and some of
them go through a shuffler. Visitors may add reports of their own, made in their browsers. Everything is in one process
and in a temporary folder.
"""

from __future__ import annotations

import datetime
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubbub.collect.api import create_app
from hubbub.collect.dashboard import visiting
from hubbub.collect.mixer import Mixer
from hubbub.collect.serving import serving
from hubbub.collect.settings import Settings
from hubbub.collect.shuffler import Shuffler, create_shuffler_app
from hubbub.collect.store import Store
from hubbub.device.client import privatize
from hubbub.device.upload import Uploader
from hubbub.primitives.coins import SecretCoins, SystemSeeds
from hubbub.protocol.periods import period_of
from hubbub.protocol.sealing import seal
from hubbub.protocol.task import Task
from hubbub.simulation.populations import zipf_population

#: People who report at a time, and seconds between them: 2,000 reports a second, every tenth through the shuffler.
_GROUP, _PAUSE, _SHUFFLED = 500, 0.25, 50
#: People who are made up at a time.
_CHUNK = 8000
#: Reports that visitors at one address may add in a minute.
_VISITORS = 60

#: What the crowd looks up, the more frequent first.
TOPICS = """
sleep; headache; back pain; allergies; flu; cough; anxiety; stress; migraine; vitamin D; blood pressure;
knee pain; nutrition; running injuries; sore throat; fever; iron deficiency; asthma; heartburn; eczema;
depression; insomnia; cholesterol; pregnancy; contraception; acne; neck pain; dizziness; tinnitus; diabetes;
weight loss; food poisoning; hay fever; toothache; vaccination; thyroid; menopause; shoulder pain; hair
loss; sinusitis; bronchitis; sprained ankle; sunburn; tick bites; travel medicine; lactose intolerance;
coeliac disease; irritable bowel; constipation; nausea; dehydration; fatigue; burnout; panic attacks; ADHD;
autism; dyslexia; quitting smoking; alcohol; caffeine; arthritis; gout; osteoporosis; rheumatism; carpal
tunnel; tennis elbow; plantar fasciitis; sciatica; scoliosis; hernia; gallstones; kidney stones; bladder
infection; prostate; hepatitis; HIV; herpes; shingles; measles; scabies; psoriasis; rosacea; warts; moles;
melanoma; breast screening; chemotherapy; leukaemia; anaemia; heart attack; stroke; arrhythmia; varicose
veins; thrombosis; pneumonia; tuberculosis; sleep apnoea; snoring; glaucoma; cataract; short sight; pink
eye; hearing aids; vertigo; epilepsy; Parkinson's; dementia; multiple sclerosis; concussion; fainting; first
aid; burns; antibiotics; painkillers; antidepressants; side effects; blood donation; organ donation;
fertility; miscarriage; breastfeeding; teething; colic; croup; chickenpox; growth; puberty; eating
disorders; self-harm; grief; loneliness; carers; palliative care
"""


def demo_task() -> Task:
    """Which of some 130 health topics somebody looked up this week: worth knowing, and nobody's business."""
    topics = [topic.strip() for topic in TOPICS.replace("\n", " ").split(";")]
    mechanism = {"name": "sketch_response", "epsilon": 1.0, "max_entries": 6, "values": "set"}
    return Task.parse(
        {
            "name": "Health topics looked up this week",
            "period": "week",
            "minimum_reports": 2000,
            "precision": "minute",
            "keys": {"kind": "closed", "vocabulary": topics},
            "mechanism": mechanism,
        }
    )


def demo_reports(task: Task, people: int, seed: int) -> NDArray[np.uint8]:
    """Reports of people who are made up from the seed; their coins are not."""
    crowd = zipf_population(people, task.keys.count, seed, exponent=0.9, entries=3.0, signed=False)
    return privatize(task, crowd.entries, SecretCoins(), SystemSeeds())[0]


def run_demo(host: str, port: int, say: Callable[[dict[str, Any], str], None]) -> None:
    """Serve the demo until somebody interrupts it; nothing is left behind. `say` tells where it is, as data or text."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    task = demo_task()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hubbub-demo-")))
        settings = Settings(public_reports=_VISITORS)
        app = create_app(Store(f"sqlite:///{folder / 'demo.db'}"), [task], settings)
        app.include_router(visiting(task))
        address = stack.enter_context(serving(app, host, port))
        service = app.state.service
        tokens = {role: service.tokens.new(role, "demo") for role in ("upload", "analyst", "shuffler")}
        mixer = Mixer(folder / "shuffler.db")
        mixing = Shuffler(mixer, [task], address, tokens["shuffler"], tokens["upload"], crowd=2000)
        shuffler = stack.enter_context(serving(create_shuffler_app(mixing)))

        def uploader(url: str, **options: Any) -> Uploader:
            made = Uploader(
                url, task, tokens["upload"], folder / "devices", batch=_GROUP, linger=_PAUSE, **options
            )
            return stack.enter_context(made)

        direct, sealed = uploader(address), uploader(shuffler, sealed_for=service.keys.public)
        link = f"{address}/login#{tokens['analyst']}"
        lines = [
            f"{task.name}: made-up people report to {address}, some of them through a shuffler.",
            f"Watch what can be learned: {link}",
            f"Be one of them, from your browser: {address}/visit",
            "Ctrl-C ends it and leaves nothing behind.",
        ]
        data = {
            "address": address,
            "shuffler": shuffler,
            "task": task.digest.hex(),
            "dashboard": link,
            "visit": f"{address}/visit",
        }
        say({**data, "tokens": tokens}, "\n".join(lines))

        def shuffle(reports: bytes) -> None:
            """Every report is of somebody else, and sealed once."""
            width, week = task.mechanism.layout.width, period_of(task, datetime.date.today())
            each = (reports[start : start + width] for start in range(0, len(reports), width))
            sealed.add_sealed([seal(report, service.keys.public, task, week) for report in each])

        report_until(ended, task, direct.add, shuffle)


def report_until(
    ended: threading.Event, task: Task, direct: Callable[[bytes], None], sealed: Callable[[bytes], None]
) -> None:
    """Everybody's devices: a few reports now and then, as long as nobody says stop."""
    due = time.monotonic()
    for group in _groups(task):
        direct(group[_SHUFFLED:].tobytes())
        sealed(group[:_SHUFFLED].tobytes())
        due = max(due + _PAUSE, time.monotonic())
        if ended.wait(due - time.monotonic()):
            return


def _groups(task: Task) -> Iterator[NDArray[np.uint8]]:
    for seed in count(1):
        reports = demo_reports(task, _CHUNK, seed)
        yield from np.split(reports, range(_GROUP, _CHUNK, _GROUP))
