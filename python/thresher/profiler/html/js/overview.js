// Key figures, where the wall clock went, what to do about it, and how far the data can be trusted.

function sourceNotes(report) {
  const { source, health } = report;
  const notes = [];
  if (source.truncated)
    notes.push(["bad", "The trace is cut off. ", "What was written before is shown; the end is missing."]);
  else if (source.complete === false)
    notes.push([
      "warn",
      "The recording was not finished. ",
      "The process ended without stopping the profiler; all that was recorded until then is shown.",
    ]);
  if (health.dropped > 0)
    notes.push([
      "bad",
      `${plural(health.dropped, "record")} dropped. `,
      "Counts and totals are too low by what these records held.",
    ]);
  if (source.sampled) {
    notes.push([
      "info",
      "The timeline is down-sampled. ",
      isNumber(source.shown) && isNumber(source.events)
        ? `It shows ${count(source.shown)} of ${count(source.events)} events. Tables and sums count every event.`
        : "Tables and sums count every event.",
    ]);
  }
  if (text(source.note)) notes.push(["info", "", source.note]);
  for (const item of report.notes) notes.push(["info", "", item]);
  return notes.map(([kind, strong, rest]) => note(kind, strong ? h("strong", {}, strong) : null, rest));
}

function card(term, value, small) {
  return h(
    "div",
    { class: "card" },
    h("dt", {}, term),
    h("dd", {}, value),
    small ? h("dd", { class: "small" }, small) : null,
  );
}

function median(values) {
  const sorted = values.filter(isNumber).sort((a, b) => a - b);
  if (!sorted.length) return null;
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

function keyFigures(report) {
  const { overview, source, memory, energy, health } = report;
  const total = object(overview.total.by_category);
  const wall = number(overview.total.wall_ns) ?? number(report.time.wall_ns);
  const steps = overview.steps.map((step) => number(step.wall_ns));
  const cards = [card("Wall clock", time(wall), isNumber(source.events) ? plural(source.events, "event") : null)];
  for (const [category, name] of [
    ["kernel", "In kernels"],
    ["host", "In PyTorch"],
    ["gap", "In gaps"],
  ]) {
    if (category === "host" && !total.host) continue;
    cards.push(card(name, percent(share(total[category], wall)), time(total[category])));
  }
  for (const phase of overview.phases) {
    const roof = number(phase.percent_of_peak);
    cards.push(
      card(
        text(phase.phase) === "decode" ? "Answers (decode)" : "Prompts (prefill)",
        `${digits(number(phase.tokens_per_s))} tokens/s`,
        `${plural(number(phase.tokens), "token")}${roof === null ? "" : `, ${percent(roof / 100)} of the roof`}`,
      ),
    );
  }
  if (steps.length) cards.push(card("Median step", time(median(steps)), plural(steps.length, "step")));
  cards.push(
    card(
      "Peak memory",
      bytes(memory.peak),
      isNumber(memory.peak) ? (isNumber(memory.peakTime) ? `at ${time(memory.peakTime)}` : null) : memory.reason,
    ),
  );
  cards.push(
    card(
      "Energy",
      isNumber(energy.joules) ? `${digits(energy.joules)} J` : UNKNOWN,
      isNumber(energy.joules)
        ? wall > 0
          ? `${digits(energy.joules / (wall / 1e9))} W on average`
          : null
        : "not measured, see Machine",
    ),
  );
  const bad = HEALTH.reduce((sum, [key]) => sum + (number(health[key]) || 0), 0);
  const known = HEALTH.some(([key]) => isNumber(health[key]));
  cards.push(
    card(
      "Trace",
      known ? (bad ? plural(bad, "problem") : "sound") : UNKNOWN,
      known ? (bad ? "see Health" : "nothing dropped or unlinked") : null,
    ),
  );
  return h("dl", { class: "cards" }, cards);
}

function stackedBar(categories, values, whole, label) {
  return h(
    "div",
    {
      class: "stack",
      role: "img",
      "aria-label": `${label}: ${
        categories
          .filter((name) => values[name])
          .map((name) => `${name} ${percent(share(values[name], whole))}`)
          .join(", ") || "no time"
      }`,
    },
    categories
      .filter((name) => values[name] > 0)
      .map((name) =>
        h("span", {
          class: `fill-${categoryClass(name)}`,
          title: `${name}: ${time(values[name])}, ${percent(share(values[name], whole))}`,
          style: { flex: `${values[name]} 0 0` },
        }),
      ),
  );
}

function breakdown(report) {
  const { categories, total } = report.overview;
  const values = object(total.by_category);
  const wall = number(total.wall_ns);
  const sum = categories.reduce((all, name) => all + (number(values[name]) || 0), 0);
  const known = categories.filter((name) => isNumber(values[name]));
  if (!known.length)
    return h("section", { class: "panel" }, h("h2", {}, "Where the time went"), empty("The report has no breakdown."));
  return h(
    "section",
    { class: "panel", "aria-label": "Where the time went" },
    h("h2", {}, "Where the time went"),
    stackedBar(categories, values, sum, "Where the time went"),
    h(
      "table",
      { class: "plain-table", id: "breakdown" },
      h("caption", { class: "hidden" }, "Time by category"),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "col" }, "Category"),
          h("th", { scope: "col", class: "num" }, "Time"),
          h("th", { scope: "col", class: "num" }, "Share"),
        ),
      ),
      h(
        "tbody",
        {},
        known.map((name) =>
          h(
            "tr",
            { "data-category": name },
            h(
              "th",
              { scope: "row" },
              swatch(name),
              " ",
              name,
              CATEGORY_TEXT[name] ? h("span", { class: "dim" }, ` – ${CATEGORY_TEXT[name]}`) : null,
            ),
            numberCell("time", values[name]),
            h("td", { class: "num" }, percent(share(values[name], wall))),
          ),
        ),
      ),
      h(
        "tfoot",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "row" }, sum === wall ? "Sum = wall clock" : "Sum"),
          numberCell("time", sum),
          h("td", { class: "num" }, percent(share(sum, wall))),
        ),
      ),
    ),
    isNumber(wall) && sum !== wall
      ? note("warn", `The categories add up to ${time(sum)}, the wall clock is ${time(wall)}.`)
      : null,
    h(
      "p",
      { class: "dim" },
      "Every nanosecond counts once: where several things ran at the same time, the category further up has it.",
    ),
  );
}

function findings(report) {
  const items = report.overview.findings;
  return h(
    "section",
    { class: "panel", "aria-label": "Findings" },
    h("h2", {}, "Findings"),
    items.length
      ? h(
          "ol",
          { class: "findings" },
          items.map((item) => {
            const severity = ["high", "medium", "info"].includes(item.severity) ? item.severity : "info";
            return h(
              "li",
              { class: severity },
              h(
                "h3",
                {},
                h("span", { class: `badge ${severity}` }, severity),
                h("span", {}, text(item.title) || "Finding"),
              ),
              text(item.detail) ? h("p", {}, withCode(item.detail)) : null,
              text(item.advice) ? h("p", {}, h("strong", {}, "What to do: "), withCode(item.advice)) : null,
              text(item.operator)
                ? h("p", {}, h("a", { href: address("operators", { q: item.operator }) }, `Operator ${item.operator}`))
                : null,
            );
          }),
        )
      : empty("Nothing stands out."),
  );
}

const HEALTH = [
  ["dropped", "Records dropped", "lost because there was no room for them"],
  ["unlinked", "Kernels without operator", "nothing is known of who launched them"],
  ["out_of_window", "Outside the window", "began before or ended after the recording"],
  ["before_launch", "Before their launch", "kernels that start earlier than what launched them"],
  ["overlapping", "Overlapping on a stream", "more kernel time than wall clock"],
  ["bad_times", "Impossible times", "left out: the clock was set meanwhile"],
  ["unknown_events", "Unknown events", "the trace is of a newer version"],
  ["malformed", "Malformed", "left out: these elements of the file are no events"],
];

function health(report) {
  const messages = list(report.health.messages).map(String);
  return h(
    "section",
    { class: "panel", "aria-label": "Health of the trace" },
    h("h2", {}, "Health of the trace"),
    h(
      "table",
      { class: "plain-table", id: "health" },
      h("caption", { class: "hidden" }, "Problems of the trace by kind"),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "col" }, "Problem"),
          h("th", { scope: "col", class: "num" }, "Number"),
          h("th", { scope: "col" }, "State"),
        ),
      ),
      h(
        "tbody",
        {},
        HEALTH.filter(([key], i) => i < 5 || key in report.health).map(([key, name, meaning]) => {
          const value = number(report.health[key]);
          return h(
            "tr",
            {},
            h("th", { scope: "row" }, name, h("span", { class: "dim" }, ` – ${meaning}`)),
            h("td", { class: "num", "data-value": value }, count(value)),
            h(
              "td",
              {},
              value === null
                ? h("span", { class: "dim" }, "not known")
                : h("span", { class: `badge ${value ? "bad" : "good"}` }, value ? "look" : "good"),
            ),
          );
        }),
      ),
    ),
    messages.map((message) => note("warn", message)),
  );
}

const PEAK_UNITS = { gflops: "GFLOP/s", gops: "GOP/s", gbytes: "GB/s" };

function peakLabel(key) {
  const unit = Object.keys(PEAK_UNITS).find((name) => key.endsWith(`_${name}`));
  if (!unit) return key.replaceAll("_", " ");
  return `${key.slice(0, -unit.length - 1).replaceAll("_", " ")}, ${PEAK_UNITS[unit]}`;
}

function peaksTable(machine) {
  const peaks = objects(object(machine.peaks).threads);
  const keys = [...new Set(peaks.flatMap((row) => Object.keys(row)))].filter(
    (key) => key !== "num_threads" && peaks.some((row) => isNumber(row[key])),
  );
  const reason = text(machine.peaks_reason);
  if (!keys.length)
    return h("p", { class: "dim" }, withCode(reason || "Not measured; `thresher peaks` measures them."));
  const threads = (row) => (isNumber(row.num_threads) ? plural(row.num_threads, "thread") : UNKNOWN);
  const heads = peaks.map((row) => h("th", { scope: "col", class: "num" }, threads(row)));
  const table = h(
    "table",
    { class: "plain-table", id: "peaks" },
    h("caption", { class: "hidden" }, "Measured peaks of the machine"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Peak"), heads)),
    h(
      "tbody",
      {},
      keys.map((key) =>
        h(
          "tr",
          {},
          h("th", { scope: "row" }, peakLabel(key)),
          peaks.map((row) => numberCell("rate", row[key])),
        ),
      ),
    ),
  );
  return [table, reason ? h("p", { class: "dim" }, withCode(reason)) : null];
}

function startText(report) {
  const milliseconds = Number(report.time.start_unix_ns) / 1e6;
  if (!(milliseconds > 0 && milliseconds < 8e15)) return "not known";
  return `${new Date(milliseconds).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

function machine(report) {
  const { machine: m, versions: v, energy, source } = report;
  const joules = (value) => (isNumber(value) ? `${digits(value)} J` : null);
  const facts = details([
    ["Processor", text(m.cpu) || "not known"],
    ["Instructions", text(m.isa) || "not known"],
    ["Threads", isNumber(m.num_threads) ? count(m.num_threads) : "not known"],
    ...["thresher", "torch", "python"].map((name) => [name, text(v[name]) || "not known"]),
    ["Started", startText(report)],
    ["File", text(source.file)],
    ["Kind", text(source.kind)],
    ["Energy", joules(energy.joules) || `not measured: ${text(energy.reason) || "no reason given"}`],
    ...objects(energy.domains).map((domain) => [`Energy, ${domain.name}`, joules(domain.joules) || "not known"]),
  ]);
  return h(
    "section",
    { class: "panel", "aria-label": "Machine and versions" },
    h("h2", {}, "Machine and versions"),
    h("div", { class: "columns" }, facts, h("div", {}, h("h3", {}, "Measured peaks"), peaksTable(m))),
  );
}

function overviewPage(main) {
  const { report } = state;
  main.append(
    h("h1", { tabindex: "-1" }, "Overview"),
    ...sourceNotes(report),
    keyFigures(report),
    h("div", { class: "front" }, breakdown(report), findings(report), health(report)),
    stepsPanel(report),
    machine(report),
  );
}
