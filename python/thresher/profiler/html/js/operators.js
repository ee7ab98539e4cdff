// Operators and kernels: the same table over different rows.

function boundText(row) {
  if (row.bound) return String(row.bound);
  return null;
}

const maximum = (key) => (rows) => Math.max(0, ...rows.map((row) => number(row[key]) || 0));

function rowColumns(byShape) {
  const figure = (key, label, kind, title, more = {}) => ({
    key,
    label,
    kind,
    title,
    value: (row) => number(row[key]),
    ...more,
  });
  const hiddenText = (key) => ({ key, label: key, kind: "text", value: (row) => text(row[key]), hidden: () => true });
  return [
    {
      key: "name",
      label: "Name",
      kind: "text",
      value: (row) => text(row.name),
      sub: (row) => [
        byShape() ? text(row.shapes) : null,
        text(row.kernel) !== text(row.name) ? text(row.kernel) : null,
        text(row.module),
      ],
    },
    figure("count", "Count", "count", "How often it ran"),
    figure("total_ns", "Total", "time", "Time of all runs, with what they called", { bar: maximum("total_ns") }),
    figure("self_ns", "Self", "time", "Time of all runs, without what they called"),
    figure("share", "Share", "percent", "Part of the self time of its section (forward, reshape, alloc, host ...)"),
    figure("mean_ns", "Mean", "time"),
    figure("median_ns", "Median", "time"),
    figure("min_ns", "Min", "time"),
    figure("max_ns", "Max", "time"),
    figure("gflops", "GFLOP/s", "rate", "Floating-point operations a second, in 10⁹"),
    figure("gbytes_per_s", "GB/s", "rate", "Bytes read and written a second, in 10⁹"),
    figure("percent_of_peak", "% of peak", "percent", "Of what this machine was measured to reach at this work"),
    {
      key: "bound",
      label: "Bound",
      kind: "text",
      title: "What limits it",
      value: boundText,
      cell: (row) =>
        boundText(row)
          ? h("span", { class: "tag" }, boundText(row))
          : h(
              "span",
              { class: "dim", title: text(row.not_modelled) },
              text(row.not_modelled) ? "not modelled" : UNKNOWN,
            ),
    },
    figure("intensity", "Intensity", "rate", "", { hidden: () => true }),
    figure("flops", "FLOP", "rate", "", { hidden: () => true }),
    figure("bytes", "Bytes", "rate", "", { hidden: () => true }),
    ...[
      "phase",
      "section",
      "device",
      "shapes",
      "dtypes",
      "precision",
      "kernel",
      "module",
      "source",
      "not_modelled",
    ].map(hiddenText),
  ];
}

function rowDetails(row) {
  return [
    details([
      ["Shapes", text(row.shapes)],
      ["Types", text(row.dtypes)],
      ["Precision", text(row.precision)],
      ["Kernel", text(row.kernel)],
      ["Module", text(row.module)],
      ["Source", text(row.source) ? h("code", {}, row.source) : null],
      ["Phase, section", [row.phase, row.section].filter(Boolean).join(", ") || null],
      ["Runs on", text(row.device)],
      ["Work of all runs", isNumber(row.flops) ? show("flops", row.flops) : null],
      ["Memory traffic of all runs", isNumber(row.bytes) ? bytes(row.bytes) : null],
      ["Intensity", isNumber(row.intensity) ? `${digits(row.intensity)} FLOP/byte` : null],
      ["Not modelled", text(row.not_modelled)],
    ]),
    h("p", {}, h("a", { href: address("timeline", { q: row.name }) }, "Find it on the timeline")),
  ];
}

function rowsPage(main, name, title, introduction, rows, rowsByShape) {
  const { settings } = state;
  let byShape = settings.group === "shape" && rowsByShape.length > 0;
  const columns = rowColumns(() => byShape || !rowsByShape.length);
  const sort = columns.some((column) => column.key === settings.sort) ? settings.sort : "total_ns";
  main.append(h("h1", { tabindex: "-1" }, title), h("p", { class: "dim" }, introduction));
  if (!rows.length && !rowsByShape.length) {
    main.append(empty(`No ${name} were recorded.`));
    return;
  }
  const table = new Table({
    caption: title,
    columns,
    sort,
    descending: settings.dir !== "asc",
    details: rowDetails,
    onSort: (key, descending) => remember({ sort: key, dir: descending ? "desc" : "asc" }),
    // Totals hold one another, so that only self times may be added up.
    footer: (shown) => ({
      name: "Sum of the rows shown",
      count: sumOf(shown, "count"),
      self_ns: sumOf(shown, "self_ns"),
    }),
  });
  const toggle = rowsByShape.length
    ? h(
        "button",
        {
          type: "button",
          "aria-pressed": String(byShape),
          onclick: () => {
            byShape = !byShape;
            toggle.setAttribute("aria-pressed", String(byShape));
            remember({ group: byShape ? "shape" : null });
            listing.setRows(byShape ? rowsByShape : rows);
          },
        },
        "Group by shape",
      )
    : null;
  const listing = new Listing({
    name: name.replace(" ", "_"),
    table,
    rows: byShape ? rowsByShape : rows,
    placeholder: "name, shape, module, kernel",
    extra: toggle,
    searchText: (row) => [row.name, row.shapes, row.module, row.kernel, row.source, row.precision].map(text),
    choices: [
      { key: "phase", label: "Phase", value: (row) => text(row.phase) },
      { key: "section", label: "Section", value: (row) => text(row.section) },
      { key: "device", label: "Runs on", value: (row) => text(row.device) },
    ],
  });
  main.append(listing.node);
}

function sumOf(rows, key) {
  const known = rows.map((row) => row[key]).filter(isNumber);
  return known.length ? known.reduce((sum, value) => sum + value, 0) : null;
}

function operatorsPage(main) {
  rowsPage(
    main,
    "operators",
    "Operators",
    "Total includes what an operator called, self does not. A name opens its details.",
    state.report.operators,
    state.report.operators_by_shape,
  );
}

function kernelsPage(main) {
  rowsPage(
    main,
    "kernels",
    "Kernels",
    "What the hardware ran for the operators. A name opens its details.",
    state.report.kernels,
    [],
  );
}

function runtimePage(main) {
  rowsPage(
    main,
    "runtime events",
    "Runtime",
    "What the engine did around its operators. A name opens its details.",
    state.report.runtime,
    [],
  );
}
