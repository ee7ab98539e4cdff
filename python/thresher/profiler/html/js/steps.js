// The breakdown step by step: a stacked column for each, and the same as a table.

function stepsPanel(report) {
  const { steps, categories } = report.overview;
  const section = h("section", { class: "panel", "aria-label": "Steps" }, h("h2", {}, "Steps"));
  if (!steps.length) {
    section.append(
      empty("No steps were recorded. profiler.step() marks them; without it, every call of a compiled model is one."),
    );
    return section;
  }
  if (report.overview.note) section.append(h("p", { class: "dim" }, sentence(report.overview.note)));
  const used = categories.filter((name) => steps.some((step) => object(step.by_category)[name] > 0));
  const chart = h("div", { class: "chart" });
  const readout = h("p", { class: "readout" });
  section.append(
    h(
      "ul",
      { class: "legend", "aria-hidden": "true" },
      used.map((name) => h("li", {}, swatch(name), name)),
    ),
    chart,
    readout,
    stepsTable(steps, used),
  );
  onWidth(chart, (width) => drawSteps(chart, readout, steps, used, width));
  return section;
}

function describeStep(step, categories) {
  const values = object(step.by_category);
  const parts = categories
    .filter((name) => values[name] > 0)
    .map((name) => `${name} ${time(values[name])} (${percent(share(values[name], step.wall_ns))})`);
  return `${text(step.name) || "step"}: ${time(number(step.wall_ns))}${parts.length ? ` – ${parts.join(", ")}` : ""}`;
}

function drawSteps(chart, readout, steps, categories, width) {
  const height = 220;
  const left = 62;
  const bottom = height - 24;
  const largest = Math.max(...steps.map((step) => number(step.wall_ns) || 0), 1);
  const y = linear(0, largest, bottom, 12);
  const pitch = Math.min(48, (width - left - 8) / steps.length);
  const bar = pitch > 4 ? pitch - Math.min(4, pitch * 0.2) : pitch;
  const x = (i) => left + i * pitch;
  const marks = ticks(0, largest, 4);
  const labels = timeLabels(marks);
  // One path a category: thousands of steps stay a handful of nodes.
  const paths = categories.map(() => []);
  steps.forEach((step, i) => {
    let base = 0;
    categories.forEach((name, k) => {
      const value = number(object(step.by_category)[name]) || 0;
      if (value <= 0) return;
      const top = y(base + value);
      paths[k].push(
        `M${x(i).toFixed(2)} ${y(base).toFixed(2)}V${top.toFixed(2)}h${bar.toFixed(2)}V${y(base).toFixed(2)}z`,
      );
      base += value;
    });
  });
  const cursor = svg("rect", {
    class: "cursor",
    fill: "none",
    y: 8,
    height: bottom - 8,
    width: Math.max(bar, 2),
    visibility: "hidden",
  });
  const every = Math.max(1, Math.ceil(70 / pitch));
  const drawing = svg(
    "svg",
    {
      height,
      viewBox: `0 0 ${width} ${height}`,
      tabindex: "0",
      role: "img",
      "aria-label": `Stacked columns of ${plural(steps.length, "step")}; arrow keys read them one by one, the table below holds the values`,
    },
    marks.map((mark, i) => [
      svg("line", { class: "grid", x1: left, x2: width, y1: y(mark), y2: y(mark) }),
      svg("text", { x: left - 6, y: y(mark) + 4, "text-anchor": "end" }, labels[i]),
    ]),
    paths.map((path, k) => svg("path", { class: `fill-${categoryClass(categories[k])}`, d: path.join("") })),
    steps.map((step, i) =>
      i % every === 0 && x(i) + 60 < width + 8
        ? svg("text", { x: x(i), y: height - 6 }, shortStep(text(step.name) || "", i))
        : null,
    ),
    cursor,
  );
  let at = -1;
  const choose = (i) => {
    at = Math.max(0, Math.min(steps.length - 1, i));
    cursor.setAttribute("x", x(at));
    cursor.setAttribute("visibility", "visible");
    readout.textContent = describeStep(steps[at], categories);
  };
  drawing.addEventListener("pointermove", (event) => {
    const i = Math.floor((event.clientX - drawing.getBoundingClientRect().left - left) / pitch);
    if (i >= 0 && i < steps.length) choose(i);
  });
  drawing.addEventListener("keydown", (event) => {
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: steps.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(to);
    announce(readout.textContent);
  });
  const slowest = steps.reduce(
    (worst, step, i) => ((number(step.wall_ns) || 0) > (number(steps[worst].wall_ns) || 0) ? i : worst),
    0,
  );
  readout.textContent = `Slowest: ${describeStep(steps[slowest], categories)}`;
  chart.replaceChildren(drawing);
}

function shortStep(name, i) {
  const found = /#?(\d+)$/.exec(name);
  return found ? `#${found[1]}` : name.length > 10 ? `#${i}` : name;
}

function stepsTable(steps, categories) {
  const holder = h("details", { class: "more-table" }, h("summary", {}, `Table of ${plural(steps.length, "step")}`));
  holder.addEventListener("toggle", () => {
    if (!holder.open || holder.dataset.made) return;
    holder.dataset.made = "yes";
    const table = new Table({
      caption: "Steps",
      sort: "start_ns",
      descending: false,
      columns: [
        { key: "name", label: "Step", kind: "text", value: (step) => text(step.name) },
        { key: "start_ns", label: "Start", kind: "time", value: (step) => number(step.start_ns) },
        {
          key: "wall_ns",
          label: "Wall clock",
          kind: "time",
          value: (step) => number(step.wall_ns),
          bar: (rows) => Math.max(...rows.map((step) => step.wall_ns || 0)),
        },
        ...categories.map((name) => ({
          key: name,
          label: name,
          kind: "time",
          value: (step) => number(object(step.by_category)[name]),
        })),
      ],
    });
    table.setRows(steps);
    holder.append(table.node);
  });
  return holder;
}
