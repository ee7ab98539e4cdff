// Asks the server twice a second what is new, and changes only what differs, so that the focus stays where it is.
"use strict";

const LIVE_MS = 500;
const RUNS_MS = 2000;
const SHOWN_S = 60;
const SHOWN_MEDIANS = 3;
const SVG = "http://www.w3.org/2000/svg";
const $ = (selector, root = document) => root.querySelector(selector);

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function number(value, digits) {
  return value === null || value === undefined || !isFinite(value) ? "–" : value.toFixed(digits);
}

function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 1 ? `${number(value * 1e3, 0)} µs` : `${number(value, value < 100 ? 2 : 0)} ms`;
}

function bytes(value) {
  if (value === null || value === undefined) return "–";
  return value < 1e9 ? `${number(value / 1e6, value < 1e8 ? 1 : 0)} MB` : `${number(value / 1e9, 2)} GB`;
}

function median(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

function moment(seconds) {
  return new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: "short", timeStyle: "short" });
}

// Shows a link, once for each address; what is no address of a page is left out.
function linkTo(place, address, text) {
  if (place.dataset.address === (address ?? "")) return;
  place.dataset.address = address ?? "";
  const safe = address !== null && /^https?:\/\//.test(address);
  place.replaceChildren(...(safe ? [element("a", { href: address, textContent: text })] : []));
}

// ---- what runs now ----

const ROWS = [
  ["latency", "mean call"],
  ["throughput", "calls a second"],
  ["energy", "power"],
  ["p50", "50 % within"],
  ["p95", "95 % within"],
  ["p99", "99 % within"],
  ["memory", "memory"],
  ["engine", "in the engine"],
  ["cache", "result cache"],
];
const cards = new Map();
let after = 0; // the number of the last record that is here

function makeCard(process) {
  const values = {};
  const list = element("dl");
  for (const [key, label] of ROWS) {
    values[key] = element("dd");
    list.append(element("div", { className: key }, element("dt", { textContent: label }), values[key]));
  }
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 100 30");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const line = document.createElementNS(SVG, "polyline");
  svg.append(line);
  const title = element("h3", { textContent: process.name });
  const facts = element("p", { className: "dim" });
  const scale = element("span", { className: "dim" });
  const link = element("span");
  const foot = element("p", { className: "foot" }, scale, link);
  const root = element("article", { className: "card" }, title, facts, list, svg, foot);
  root.dataset.run = process.run;
  return { root, values, svg, line, facts, scale, link, records: [] };
}

function update(card, process, fields) {
  const at = Object.fromEntries(fields.map((name, i) => [name, i]));
  card.records.push(...process.records);
  const last = card.records[card.records.length - 1];
  if (!last) return; // the server has begun anew
  card.records = card.records.filter((r) => r[at.time_s] > last[at.time_s] - SHOWN_S);
  const records = card.records;
  const recent = records.filter((r) => r[at.time_s] > last[at.time_s] - 2);
  const sum = (name) => recent.reduce((total, r) => total + (r[at[name]] ?? 0), 0);
  const calls = sum("calls");
  // The first record says when the interval of the others began.
  const seconds = recent.length > 1 ? last[at.time_s] - recent[0][at.time_s] : 0;
  const later = recent.slice(1).reduce((total, r) => total + r[at.calls], 0);
  const { values } = card;
  const { threads = "?", version = "" } = process.about;
  setText(card.facts, `process ${process.pid}, ${threads} thread${threads === "1" ? "" : "s"}, ${version}`);
  setText(values.latency, calls ? milliseconds(sum("busy_ms") / calls) : "no calls");
  for (const key of ["p50", "p95", "p99"]) setText(values[key], milliseconds(process.percentiles[`${key}_ms`]));
  setText(values.throughput, seconds ? number(later / seconds, later / seconds < 10 ? 1 : 0) : "–");
  setText(values.memory, bytes(last[at.memory_bytes]));
  setText(values.engine, bytes(last[at.engine_bytes]));
  setText(values.cache, bytes(last[at.cache_bytes]));
  const joules = recent.slice(1).map((r) => r[at.joules]);
  const known = joules.length && joules.every((value) => value !== null);
  const power = known && seconds ? `${number(joules.reduce((a, b) => a + b, 0) / seconds, 1)} W` : "not known";
  setText(values.energy, power);
  values.energy.className = known ? "" : "dim";
  values.energy.title = known ? "" : (process.about.energy ?? "");
  const called = records.filter((r) => r[at.calls]);
  const latencies = called.map((r) => r[at.busy_ms] / r[at.calls]);
  const top = Math.max(...latencies, 0);
  const end = last[at.time_s];
  // One call that had to wait would make the others a flat line: the curve ends at some times the median.
  const height = Math.min(top, SHOWN_MEDIANS * (median(latencies) ?? 0)) || 1;
  const points = called.map((r, i) => {
    const x = 100 - ((end - r[at.time_s]) / SHOWN_S) * 100;
    return `${x.toFixed(2)},${(29 - Math.min(latencies[i] / height, 1) * 28).toFixed(2)}`;
  });
  card.line.setAttribute("points", points.join(" "));
  const about = latencies.length
    ? `mean call over the last minute: ${milliseconds(median(latencies))} in the middle, ${milliseconds(top)} at most`
    : "no calls in the last minute";
  card.svg.setAttribute("aria-label", about);
  setText(card.scale, latencies.length ? `last minute, up to ${milliseconds(top)}` : "no calls in the last minute");
  linkTo(card.link, process.about.profile ?? null, "profile of this run");
}

function showLive(data) {
  after = data.last;
  const seen = new Set();
  const grid = $("#running");
  for (const process of data.processes) {
    seen.add(process.run);
    let card = cards.get(process.run);
    if (!card) {
      card = makeCard(process);
      cards.set(process.run, card);
      grid.append(card.root);
    }
    update(card, process, data.fields);
  }
  for (const [run, card] of cards) {
    if (!seen.has(run)) {
      card.root.remove();
      cards.delete(run);
    }
  }
  $("#nobody").hidden = cards.size > 0;
  const state = $("#state");
  const dropped = data.dropped ? `; ${data.dropped} records were dropped` : "";
  state.className = data.problem || data.dropped ? "bad" : "";
  const count = `${cards.size} process${cards.size === 1 ? "" : "es"}`;
  setText(state, data.problem ? `${data.problem} (${data.waiting})${dropped}` : `${count}${dropped}`);
  document.documentElement.dataset.ready = "";
}

// ---- what ran before ----

const TIMES = ["latency", "p50", "p95", "p99"];
const chosen = new Set();
const rows = new Map();
let known = [];

function makeRow(run) {
  const box = element("input", { type: "checkbox" });
  const label = `compare ${run.name}, process ${run.pid}`;
  box.setAttribute("aria-label", label);
  box.addEventListener("change", () => {
    if (box.checked) chosen.add(run.id);
    else chosen.delete(run.id);
    compare();
  });
  const cells = {};
  for (const key of ["name", "began", "calls", ...TIMES, "energy", "version", "profile"]) cells[key] = element("td");
  for (const key of ["calls", ...TIMES, "energy"]) cells[key].className = "n";
  const tick = element("td", {}, element("label", {}, box));
  const root = element("tr", {}, tick, ...Object.values(cells));
  root.dataset.run = run.id;
  return { root, cells };
}

function showRuns(data) {
  known = data.runs;
  const body = $("#runs tbody");
  data.runs.forEach((run, place) => {
    let row = rows.get(run.id);
    if (!row) {
      row = makeRow(run);
      rows.set(run.id, row);
    }
    if (body.children[place] !== row.root) body.insertBefore(row.root, body.children[place] ?? null);
    setText(row.cells.name, run.name);
    setText(row.cells.began, moment(run.first_s));
    setText(row.cells.calls, String(run.calls));
    for (const key of TIMES) setText(row.cells[key], milliseconds(run[`${key}_ms`]));
    setText(row.cells.energy, run.joules === null ? "–" : `${number(run.joules, 1)} J`);
    setText(row.cells.version, run.about.version ?? "");
    linkTo(row.cells.profile, run.about.profile ?? null, "profile");
  });
  const alive = new Set(data.runs.map((run) => run.id));
  for (const [id, row] of rows) {
    if (!alive.has(id)) {
      row.root.remove();
      rows.delete(id);
      chosen.delete(id);
    }
  }
  const items = data.regressions.map((found) => {
    const { run } = found;
    const percent = number(found.slower_percent, 1);
    const text = `${run.name} (process ${run.pid}): a call takes ${milliseconds(run.latency_ms)}, ${percent} % longer than `;
    const rest = `in the ${found.base.length} runs before; by chance at most ${number(found.noise_percent, 1)} %`;
    return element("li", { textContent: text + rest });
  });
  const list = $("#regressions ul");
  if (list.textContent !== items.map((item) => item.textContent).join("")) list.replaceChildren(...items);
  $("#regressions").hidden = items.length === 0;
  compare();
}

function compare() {
  const picked = known.filter((run) => chosen.has(run.id) && run.calls);
  const place = $("#comparison");
  if (picked.length < 2) {
    setText(place, chosen.size ? "Choose two runs or more to compare them with the oldest of them." : "");
    return;
  }
  const base = picked[picked.length - 1];
  const lines = picked.slice(0, -1).map((run) => {
    const ratio = 100 * (run.latency_ms / base.latency_ms - 1);
    const words = `${Math.abs(ratio).toFixed(1)} % ${ratio > 0 ? "slower" : "faster"}`;
    const mark = element("span", { className: ratio > 0 ? "slower" : "faster", textContent: words });
    return element("p", {}, `${run.name}, ${moment(run.first_s)}: `, mark, ` than ${base.name}, ${milliseconds(base.latency_ms)} a call`);
  });
  const text = lines.map((line) => line.textContent).join("");
  if (place.textContent !== text) place.replaceChildren(...lines);
}

// ---- asking ----

async function ask(path, show, every) {
  const start = performance.now();
  try {
    const answer = await fetch(path());
    const data = await answer.json();
    if (!answer.ok) throw new Error(data.error?.message ?? answer.status);
    show(data);
  } catch (error) {
    const state = $("#state");
    state.className = "bad";
    setText(state, error instanceof TypeError ? "the dashboard does not answer; is it still running?" : error.message);
  }
  setTimeout(() => ask(path, show, every), Math.max(50, every - (performance.now() - start)));
}

ask(() => `/live?after=${after}`, showLive, LIVE_MS);
ask(() => "/runs", showRuns, RUNS_MS);
