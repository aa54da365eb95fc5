"use strict";

// Theme: what the system says, unless somebody chose otherwise on this device.
const root = document.documentElement;
const systemDark = matchMedia("(prefers-color-scheme: dark)");

function remembered() {
  try { return localStorage.getItem("hubbub-theme"); } catch { return null; }
}

function isDark() {
  return (root.dataset.theme || (systemDark.matches ? "dark" : "light")) === "dark";
}

if (remembered()) root.dataset.theme = remembered();

function startTheme() {
  const button = document.getElementById("theme");
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; button.title = `Use ${button.textContent.toLowerCase()} colours`; };
  button.hidden = false;
  name();
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("hubbub-theme", root.dataset.theme); } catch { /* only for this page, then */ }
    name();
    drawCharts();
  });
  systemDark.addEventListener("change", () => { name(); drawCharts(); });
}

// A token after # in the address never reaches the server's logs; the form sends it.
function startLogin() {
  const form = document.getElementById("login");
  const token = location.hash.slice(1);
  if (!form || !token.startsWith("hub_")) return;
  history.replaceState(null, "", location.pathname);
  form.elements.token.value = token;
  form.submit();
}

// A look-up that the task does not know is said, and not kept: neither in the address nor in what is asked for later.
function tidyAddress() {
  const wanted = document.getElementById("status")?.dataset.query;
  if (wanted !== undefined && wanted !== location.search) history.replaceState(null, "", location.pathname + wanted);
}

// Live: fetch the parts that change every two seconds, as long as somebody looks.
const EVERY = 2000;

function startPolling() {
  const status = document.getElementById("status");
  if (!status || !("poll" in status.dataset)) return;
  const address = new URL(location.href);
  address.hash = "";
  address.searchParams.set("part", "1");
  let timer = 0;
  let waiting = false;

  function say(state, text) {
    if (status.dataset.state === state) return;
    status.hidden = false;
    status.dataset.state = state;
    status.textContent = text;
  }

  async function poll() {
    clearTimeout(timer);
    if (waiting || document.hidden) return;
    waiting = true;
    try {
      const answer = await fetch(address, { redirect: "manual", credentials: "same-origin" });
      if (answer.type === "opaqueredirect") return location.reload(); // the session has ended
      if (!answer.ok) throw new Error(String(answer.status));
      replaceParts(await answer.text());
      say("live", "Live");
    } catch {
      say("lost", "No connection, trying again");
    } finally {
      waiting = false;
      timer = setTimeout(poll, EVERY);
    }
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) say("paused", "Paused");
    else poll();
  });
  say("live", "Live");
  timer = setTimeout(poll, EVERY);
}

function replaceParts(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  const withheld = (page) => page.getElementById("figures")?.dataset.withheld;
  if (withheld(fresh) !== withheld(document)) return location.reload(); // the minimum is reached: all is different
  for (const part of fresh.querySelectorAll("[data-live]")) {
    const old = document.getElementById(part.id);
    if (!old || old.outerHTML === part.outerHTML) continue;
    for (const details of old.querySelectorAll("details[open]")) {
      const same = part.querySelectorAll("details")[[...old.querySelectorAll("details")].indexOf(details)];
      if (same) same.open = true;
    }
    // Somebody may be inside with the keyboard.
    const stops = (within) => [...within.querySelectorAll("a, summary")];
    const focused = stops(old).indexOf(document.activeElement);
    old.replaceWith(document.adoptNode(part));
    if (focused >= 0) stops(part)[focused]?.focus();
  }
  drawCharts();
}

// Charts
const drawn = {};

// A colour of the style sheet as the canvas needs it: worked out for the present theme.
function colour(name, opacity = 1) {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = `var(--${name})`;
  const [red, green, blue] = getComputedStyle(probe).color.match(/[\d.]+/g);
  probe.remove();
  return `rgb(${red} ${green} ${blue} / ${opacity})`;
}

function drawCharts() {
  const source = document.getElementById("charts");
  if (!source || typeof uPlot === "undefined") return;
  const data = JSON.parse(source.dataset.charts);
  const points = data.times.length;
  const keys = data.series.map((one) => one.key);
  const columns = [data.times, ...data.series.flatMap((one) => [one.value, one.high, one.low])];
  draw("estimates-chart", [keys, data.percent, points < 20, data.unit], columns, (place) => estimatesChart(place, data, columns),
    points > 1 ? "" : data.nothing ? data.nothing : points ? "One period so far; a line takes two." : "There is no key to follow yet.");
  draw("arrivals-chart", [], data.arrived, (place) => arrivalsChart(place, data), data.arrived[0].length ? "" : "None yet.");
  showLegend(data, points - 1);
}

// A chart gets new numbers where it stands, and is made anew only when it has to look different.
function draw(name, kind, columns, make, empty) {
  const place = document.getElementById(name);
  const wanted = JSON.stringify([kind, empty, isDark(), place.clientWidth]);
  if (drawn[name]?.wanted === wanted) return drawn[name].chart?.setData(columns);
  drawn[name]?.chart?.destroy();
  place.replaceChildren();
  drawn[name] = { wanted };
  if (empty) place.append(element("p", "empty", empty));
  else drawn[name].chart = make(place);
}

function element(kind, style, text = "") {
  const made = document.createElement(kind);
  made.className = style;
  made.textContent = text;
  return made;
}

function axes(format, step, space) {
  const common = { stroke: colour("soft"), font: "12px Inter, system-ui, sans-serif", ticks: { show: false } };
  const steps = [60, 300, 600, 900, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 2592000, 7776000];
  const clock = (chart, marks) => marks.map((mark) => moment(mark, step, true));
  return [
    { ...common, grid: { show: false }, values: clock, space: 64, size: 30, incrs: steps.filter((one) => one >= step) },
    { ...common, grid: { stroke: colour("grid"), width: 1 }, values: (chart, marks) => marks.map(format), size: 58, space },
  ];
}

function moment(seconds, step, brief) {
  const date = new Date(seconds * 1000);
  const day = date.toLocaleDateString("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
  if (step >= 86400) return day;
  const time = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", timeZone: "UTC" });
  if (brief) return time === "00:00" ? day : time;
  return `${day}, ${time} UTC`;
}

const utc = (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "UTC");

function written(value, data, decimals) {
  const scaled = data.percent ? 100 * value : value;
  return `${decimals === undefined ? +scaled.toPrecision(3) : scaled.toFixed(decimals)}${data.percent ? "%" : ""}`.replace("-", "−");
}

function estimatesChart(place, data, columns) {
  const edge = { stroke: "transparent", width: 0, points: { show: false } };
  const series = [{}];
  const bands = [];
  data.series.forEach((one, index) => {
    const stroke = colour(`series-${index + 1}`);
    series.push({ stroke, width: 2, points: { show: data.times.length < 20, size: 6, fill: stroke } }, edge, edge);
    bands.push({ series: [3 * index + 2, 3 * index + 3], fill: colour(`series-${index + 1}`, 0.15) });
  });
  const chart = new uPlot({
    width: place.clientWidth, height: 250, series, bands, axes: axes((value) => written(value, data), data.unit, 34), tzDate: utc,
    legend: { show: false }, cursor: { drag: { x: false, y: false }, y: false, points: { show: false } },
    hooks: { setCursor: [(chart) => showLegend(JSON.parse(document.getElementById("charts").dataset.charts), chart.cursor.idx)] },
  }, columns, place);
  chart.root.setAttribute("role", "img");
  chart.root.setAttribute("aria-label", `Estimates over time of ${data.series.map((one) => one.key).join(", ")}`);
  return chart;
}

// The keys with their colours, and their values at the cursor or now.
function showLegend(data, place) {
  if (data.times.length < 2) return document.getElementById("legend").replaceChildren();
  const index = place ?? data.times.length - 1;
  const text = (one, name) => written(one[name][index], data, data.decimals);
  const entries = data.series.map((one, number) => {
    const entry = element("span", "");
    const dot = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    dot.setAttribute("viewBox", "0 0 10 10");
    dot.innerHTML = `<circle cx="5" cy="5" r="5" fill="var(--series-${number + 1})"/>`;
    entry.append(dot, element("bdi", "", one.key), element("span", "soft", `${text(one, "value")}, ${text(one, "low")} to ${text(one, "high")}`));
    return entry;
  });
  const when = element("span", "soft", data.names?.[index] ?? moment(data.times[index], data.unit, false));
  document.getElementById("legend").replaceChildren(...entries, when);
}

// The least time between two bars: as wide as one may be.
function gap(times, step) {
  const between = times.slice(1).map((time, index) => time - times[index]);
  return Math.max(step, between.length ? Math.min(...between) : 0);
}

function arrivalsChart(place, data) {
  const format = (value) => value.toLocaleString("en-GB");
  const chart = new uPlot({
    width: place.clientWidth, height: 130, axes: axes(format, data.step, 24), tzDate: utc,
    legend: { show: false }, cursor: { show: false },
    series: [{}, { fill: colour("series-1", 0.55), width: 0, paths: uPlot.paths.bars({ size: [0.8, 40] }), points: { show: false } }],
    scales: {
      x: { range: (chart) => [chart.data[0][0] - gap(chart.data[0], data.step), chart.data[0].at(-1) + gap(chart.data[0], data.step)] },
      y: { range: (chart, low, high) => [0, Math.max(high, 1) * 1.08] },
    },
  }, data.arrived, place);
  chart.root.setAttribute("role", "img");
  chart.root.setAttribute("aria-label", "Reports received in each period; the table below has the numbers");
  return chart;
}

document.addEventListener("DOMContentLoaded", () => {
  startTheme();
  startLogin();
  addEventListener("hashchange", startLogin); // the link is pasted into a tab that shows this page already
  tidyAddress();
  startPolling();
  drawCharts();
  let timer = 0;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(drawCharts, 150); });
});
