"use strict";

// The demo's page for a visitor: the report is made here, by the same script that any site would use.
const SAMPLES = 6;

function byId(id) {
  return document.getElementById(id);
}

function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

function percent(share) {
  return `${Math.round(100 * share)}%`;
}

// Which visitor this is: the demo lets one person be several, each with a ledger of their own.
function visitor(change = false) {
  const name = "hubbub-demo-visitor";
  if (change || !localStorage.getItem(name)) localStorage.setItem(name, `hubbub-demo-${crypto.randomUUID()}`);
  return localStorage.getItem(name);
}

async function startVisit() {
  const form = byId("answers");
  const task = await hubbub.Task.fetch(`/v1/tasks/${form.dataset.task}/device`);
  const optedOut = navigator.globalPrivacyControl === true;
  const open = () => new hubbub.Uploader(location.origin, task, { store: hubbub.browserStore(visitor()) });
  let uploader = optedOut ? undefined : open();

  const ticked = () => new FormData(form).getAll("topic");

  function showSamples() {
    const [mine, nobodys] = [new hubbub.Client(task), new hubbub.Client(task)];
    const rows = Array.from({ length: SAMPLES }, () => {
      const row = document.createElement("tr");
      for (const report of [mine.report(ticked()), nobodys.report([])]) {
        const cell = document.createElement("td");
        cell.textContent = hex(report);
        row.append(cell);
      }
      return row;
    });
    byId("samples").replaceChildren(...rows);
  }

  function showTicked() {
    const [count, most] = [ticked().length, Number(form.dataset.most)];
    const words = count ? `${count} ticked` : "Nothing is ticked";
    byId("ticked").textContent = count > most ? `${words}; ${most} of them, drawn at random, will count.` : `${words}.`;
    showSamples();
  }

  function showReport(report, fresh) {
    byId("bytes").textContent = hex(report);
    byId("bytes").hidden = byId("another").hidden = false;
    byId("left").textContent = fresh
      ? "These bytes are all that has left of your answers. This week no others will: the page's ledger has spent its report."
      : "This browser has reported this week, in these bytes. No others will leave: the page's ledger has spent its report.";
    byId("report").disabled = true;
  }

  async function ready() {
    byId("bytes").hidden = byId("another").hidden = true;
    if (optedOut) {
      byId("outcome").textContent = "Your browser asks sites not to share data (Global Privacy Control): this page sends nothing.";
      return;
    }
    const report = await uploader.ledger.last(task);
    if (report) return showReport(report, false);
    byId("report").disabled = false;
    byId("outcome").textContent = `${task.reportBytes} bytes will leave, once a week.`;
  }

  byId("proof").textContent =
    `Whatever you ticked, any other answers would have made the same bytes with at least 1/${Math.exp(task.epsilon).toFixed(2)} ` +
    "of the probability. So whoever is unsure whether you looked something up, 50% to 50%, can be at most " +
    `${percent(1 / (1 + Math.exp(-task.epsilon)))} sure after reading your report, even if they know everything else.`;
  form.addEventListener("change", showTicked);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    byId("report").disabled = true;
    try {
      const today = new Date();
      const fresh = await uploader.report(ticked(), today);
      showReport(await uploader.ledger.last(task, false, today), fresh);
      byId("outcome").textContent = "On the way.";
      const taken = await uploader.flush(10);
      byId("outcome").textContent = taken
        ? "Sent, and acknowledged: watch the number of reports."
        : `Kept, and tried again later: ${uploader.trouble}.`;
    } catch (problem) {
      byId("outcome").textContent = problem.message;
      byId("report").disabled = false;
    }
  });
  byId("another").addEventListener("click", async () => {
    uploader.close();
    visitor(true);
    uploader = open();
    form.reset();
    byId("left").textContent = "Nothing yet.";
    showTicked();
    await ready();
  });
  addEventListener("pageshow", showTicked); // a browser that comes back to the page ticks what was ticked
  showTicked();
  await ready();
}

startVisit().catch((problem) => {
  byId("outcome").textContent = problem.message;
});
