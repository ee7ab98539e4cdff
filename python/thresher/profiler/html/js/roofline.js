// Speed over arithmetic intensity, under the roofs that were measured on the machine.
const BOUNDS = { compute: "circle", memory: "square", overhead: "triangle" };

function rooflinePage(main) {
  const { roofline } = state.report;
  main.append(h("h1", { tabindex: "-1" }, "Roofline"));
  const points = roofline.points.filter((point) => point.intensity > 0 && point.gflops > 0);
  if (roofline.reason) main.append(note("info", roofline.reason));
  if (!roofline.points.length && !roofline.roofs.length) {
    main.append(
      empty(roofline.reason ? "There is no roofline plot." : "The report has no operators whose work is known."),
    );
    return;
  }
  main.append(
    h(
      "p",
      { class: "dim" },
      "A point is an operator: how much it computes for each byte it moves, and how fast it was; its area is its total time. ",
      "The roofs are what this machine was measured to reach: the sloping ones in memory traffic, the flat ones in arithmetic.",
    ),
  );
  const columns = [
    {
      key: "name",
      label: "Operator",
      kind: "text",
      value: (row) => text(row.name),
      sub: (row) => [text(row.shapes), text(row.precision)],
    },
    { key: "count", label: "Count", kind: "count", value: (row) => number(row.count) },
    { key: "total_ns", label: "Total", kind: "time", value: (row) => number(row.total_ns), bar: maximum("total_ns") },
    { key: "intensity", label: "FLOP/byte", kind: "rate", value: (row) => number(row.intensity) },
    { key: "gflops", label: "GFLOP/s", kind: "rate", value: (row) => number(row.gflops) },
    { key: "percent_of_peak", label: "% of peak", kind: "percent", value: (row) => number(row.percent_of_peak) },
    {
      key: "bound",
      label: "Bound",
      kind: "text",
      value: (row) => text(row.bound),
      cell: (row) => (row.bound ? h("span", { class: "tag" }, row.bound) : UNKNOWN),
    },
    { key: "shapes", label: "Shapes", kind: "text", value: (row) => text(row.shapes), hidden: () => true },
    { key: "precision", label: "Precision", kind: "text", value: (row) => text(row.precision), hidden: () => true },
  ];
  const table = new Table({
    caption: "Points of the roofline plot",
    columns,
    sort: "total_ns",
    rowAttributes: (row) => ({ onpointerenter: () => plot.mark(row), onpointerleave: () => plot.mark(null) }),
  });
  const plot = new RooflinePlot(roofline.roofs, points, table);
  main.append(
    h(
      "section",
      { class: "panel", "aria-label": "Roofline plot" },
      plot.legend(),
      plot.chart,
      plot.readout,
      plot.roofText(),
      points.length < roofline.points.length
        ? h(
            "p",
            { class: "dim" },
            `${plural(roofline.points.length - points.length, "operator")} without known work or speed ${roofline.points.length - points.length === 1 ? "is" : "are"} only in the table.`,
          )
        : null,
    ),
  );
  const listing = new Listing({
    name: "roofline",
    table,
    rows: roofline.points,
    placeholder: "operator, shape, precision",
    searchText: (row) => [row.name, row.shapes, row.precision, row.bound].map(text),
    choices: [{ key: "bound", label: "Bound", value: (row) => text(row.bound) }],
  });
  main.append(listing.node);
}

class RooflinePlot {
  constructor(roofs, points, table) {
    this.compute = roofs.filter((roof) => roof.gflops > 0);
    this.bandwidth = roofs.filter((roof) => roof.gbytes_per_s > 0);
    // Large points first, so that small ones lie on top of them.
    this.points = [...points].sort((a, b) => (b.total_ns || 0) - (a.total_ns || 0));
    this.table = table;
    this.chart = h("div", { class: "chart" });
    this.readout = h("p", { class: "readout" }, "Point at an operator, or use the arrow keys, to read it.");
    onWidth(this.chart, (width) => this.draw(width));
  }

  legend() {
    const used = [...new Set(this.points.map((point) => (BOUNDS[point.bound] ? point.bound : null)))];
    return h(
      "ul",
      { class: "legend" },
      used.map((bound) =>
        h(
          "li",
          {},
          svg(
            "svg",
            { class: "swatch", viewBox: "0 0 16 16", "aria-hidden": "true" },
            svg("path", { class: `bound-${bound}`, d: this.shape(bound, 8, 8, 7) }),
          ),
          bound ? `bound by ${bound}` : "bound not known",
        ),
      ),
    );
  }

  roofText() {
    const used = state.report.roofline.threads;
    const threads = used === null ? "" : ` of ${plural(used, "thread")}`;
    const names = [
      ...this.compute.map((roof) => `${roof.name} ${digits(roof.gflops)} GFLOP/s`),
      ...this.bandwidth.map((roof) => `${roof.name} ${digits(roof.gbytes_per_s)} GB/s`),
    ];
    return h(
      "p",
      { class: "dim", id: "roofs" },
      names.length
        ? `Roofs${threads}: ${names.join(", ")}.`
        : "The roofs are not known: `thresher peaks` measures them.",
    );
  }

  shape(bound, x, y, r) {
    if (BOUNDS[bound] === "square") return `M${x - r * 0.88} ${y - r * 0.88}h${r * 1.76}v${r * 1.76}h${-r * 1.76}z`;
    if (BOUNDS[bound] === "triangle") return `M${x} ${y - r * 1.15}l${r * 1.15} ${r * 2}h${-r * 2.3}z`;
    return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
  }

  range(values, low, high) {
    const from = Math.min(...values, low);
    const to = Math.max(...values, high);
    return [10 ** Math.floor(Math.log10(from)), 10 ** Math.ceil(Math.log10(to) + 0.05)];
  }

  draw(width) {
    const height = Math.max(300, Math.min(480, width * 0.6));
    const [left, right, top, bottom] = [58, width - 14, 26, height - 44];
    const peak = Math.max(...this.compute.map((roof) => roof.gflops), 0);
    const ridges = peak ? this.bandwidth.map((roof) => peak / roof.gbytes_per_s) : [];
    const [x0, x1] = this.range([...this.points.map((point) => point.intensity), ...ridges], 0.1, 10);
    const [y0, y1] = this.range(
      [...this.points.map((point) => point.gflops), ...this.compute.map((roof) => roof.gflops)],
      1,
      100,
    );
    const x = logarithmic(x0, x1, left, right);
    const y = logarithmic(y0, y1, bottom, top);
    const label = (value) => (value >= 1 ? grouped.format(value) : String(Number(value.toPrecision(1))));
    const xMarks = powersOfTen(x0, x1);
    const yMarks = powersOfTen(y0, y1);
    const longest = Math.max(...this.points.map((point) => number(point.total_ns) || 0), 1);
    const radius = Math.min(16, width / 45);
    this.marks = this.points.map((point, i) =>
      svg("path", {
        class: `point bound-${BOUNDS[point.bound] ? point.bound : null}`,
        role: "img",
        "aria-label": this.describe(point),
        "data-point": i,
        d: this.shape(
          point.bound,
          x(point.intensity),
          y(point.gflops),
          Math.max(3.5, radius * Math.sqrt((number(point.total_ns) || 0) / longest)),
        ),
        onpointerenter: () => this.choose(i),
        onpointerleave: () => this.mark(null),
        onfocus: () => this.choose(i),
        onclick: () => this.reveal(i),
      }),
    );
    const clip = svg(
      "clipPath",
      { id: "roofline-area" },
      svg("rect", { x: left, y: top, width: right - left, height: bottom - top }),
    );
    const drawing = svg(
      "svg",
      {
        height,
        viewBox: `0 0 ${width} ${height}`,
        role: "group",
        "aria-label": "Roofline plot; arrow keys go from point to point, the table below holds the values",
      },
      clip,
      xMarks.map((mark) => [
        svg("line", { class: "grid", x1: x(mark), x2: x(mark), y1: top, y2: bottom }),
        svg(
          "text",
          { x: x(mark), y: bottom + 16, "text-anchor": mark === xMarks.at(-1) ? "end" : "middle" },
          label(mark),
        ),
      ]),
      yMarks.map((mark) => [
        svg("line", { class: "grid", x1: left, x2: right, y1: y(mark), y2: y(mark) }),
        svg("text", { x: left - 8, y: y(mark) + 4, "text-anchor": "end" }, label(mark)),
      ]),
      svg("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, "arithmetic intensity, FLOP/byte"),
      svg("text", { x: 0, y: 10 }, "GFLOP/s"),
      svg("g", { "clip-path": "url(#roofline-area)" }, this.drawRoofs(x, y, x0, x1, y0, y1, peak)),
      this.drawLabels(x, y, x0, x1, y0, peak, left, right, bottom),
      this.marks,
    );
    drawing.addEventListener("keydown", roving(this.marks, alongLine));
    this.chart.replaceChildren(drawing);
  }

  drawRoofs(x, y, x0, x1, y0, y1, peak) {
    const widest = Math.max(...this.bandwidth.map((roof) => roof.gbytes_per_s), 0);
    const slopes = this.bandwidth.map((roof) => {
      const top = peak || y1;
      const end = Math.min(x1, top / roof.gbytes_per_s);
      return svg("path", {
        class: "roof",
        d: `M${x(x0)} ${y(x0 * roof.gbytes_per_s)}L${x(end)} ${y(end * roof.gbytes_per_s)}`,
      });
    });
    const flats = this.compute.map((roof) => {
      const start = widest ? Math.max(x0, roof.gflops / widest) : x0;
      return svg("path", { class: "roof compute", d: `M${x(start)} ${y(roof.gflops)}H${x(x1)}` });
    });
    return [...slopes, ...flats];
  }

  // Names stand above their line: of the flat ones at the right end, of the sloping ones where they enter the plot.
  drawLabels(x, y, x0, x1, y0, peak, left, right, bottom) {
    const angle = (Math.atan2(y(10) - y(1), x(10) - x(1)) * 180) / Math.PI;
    const narrow = right - left < 500;
    const taken = [];
    const flats = [...this.compute]
      .sort((a, b) => b.gflops - a.gflops)
      .map((roof) => {
        // Roofs that lie close together get their names side by side.
        const at = y(roof.gflops) - 5;
        const beside = taken
          .filter((other) => Math.abs(other.at - at) < 17)
          .reduce((sum, other) => sum + other.width, 0);
        const name = narrow ? String(roof.name) : `${roof.name} ${digits(roof.gflops)} GFLOP/s`;
        taken.push({ at, width: name.length * 6.8 + 16 });
        return svg("text", { class: "strong halo", x: right - 4 - beside, y: at, "text-anchor": "end" }, name);
      });
    const slopes = [...this.bandwidth]
      .sort((a, b) => a.gbytes_per_s - b.gbytes_per_s)
      .map((roof, i) => {
        const start = Math.max(x0, y0 / roof.gbytes_per_s);
        // Lines that lie close together carry their names at different places.
        const along = 12 + (narrow ? (i % 2) * 42 : 0);
        const [px, py] = [x(start) + along, y(start * roof.gbytes_per_s) + along * Math.tan((angle * Math.PI) / 180)];
        const name = narrow ? roof.name : `${roof.name} ${digits(roof.gbytes_per_s)} GB/s`;
        return svg("text", { class: "halo", x: px, y: py - 5, transform: `rotate(${angle} ${px} ${py - 5})` }, name);
      });
    return [...slopes, ...flats];
  }

  describe(point) {
    const name = [text(point.name) || "operator", text(point.shapes)].filter(Boolean).join(" ");
    const facts = [
      `${digits(point.gflops)} GFLOP/s at ${digits(point.intensity)} FLOP/byte`,
      isNumber(point.percent_of_peak) ? `${percent(point.percent_of_peak)} of peak` : null,
      text(point.bound) ? `bound by ${point.bound}` : "bound not known",
      isNumber(point.count) ? plural(point.count, "run") : null,
      time(number(point.total_ns)),
    ];
    return `${name}: ${facts.filter(Boolean).join(", ")}`;
  }

  choose(i) {
    this.readout.textContent = this.describe(this.points[i]);
    this.mark(this.points[i]);
  }

  mark(point) {
    (this.marks || []).forEach((node, i) => node.classList.toggle("on", this.points[i] === point));
  }

  reveal(i) {
    this.table.reveal(this.points[i])?.scrollIntoView({ block: "nearest" });
  }
}
