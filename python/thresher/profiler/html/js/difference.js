// This run (B) beside another (A).

function differencePage(main) {
  const diff = object(state.diff);
  const [a, b] = [object(diff.a), object(diff.b)];
  main.append(h("h1", { tabindex: "-1" }, "Difference of two runs"));
  const differences = list(diff.differences).map(String);
  if (diff.comparable === false || differences.length)
    main.append(comparability(diff.comparable === false, differences));
  main.append(runsTable(a, b));
  const wall = object(diff.wall);
  const [aWall, bWall] = [number(wall.a_ns), number(wall.b_ns)];
  main.append(
    h(
      "dl",
      { class: "cards" },
      card("Wall clock A", time(aWall), null),
      card("Wall clock B", time(bWall), null),
      card(
        "B over A",
        changeOf(aWall, bWall),
        isNumber(aWall) && isNumber(bWall) ? `${bWall > aWall ? "+" : ""}${time(bWall - aWall)}` : null,
      ),
    ),
  );
  main.append(categoriesOf(diff, aWall, bWall), differenceRows(diff));
}

function comparability(refused, differences) {
  return h(
    "div",
    { class: `note ${refused ? "bad" : "warn"}` },
    refused
      ? h(
          "p",
          {},
          h("strong", {}, "These runs are not comparable. "),
          "The figures below measure what differs between them as much as the change you look for:",
        )
      : h("p", {}, "Not everything about the two runs is the same:"),
    h(
      "ul",
      { id: "differences" },
      differences.map((item) => h("li", {}, item)),
    ),
  );
}

function signed(value) {
  if (!isNumber(value)) return UNKNOWN;
  return [value > 0 ? "+" : "", figure("time", value)];
}

function changeOf(a, b) {
  if (!(a > 0) || !isNumber(b)) return UNKNOWN;
  return ratioText(b / a);
}

// Direction in words and sign, not in colour alone.
function ratioText(ratio) {
  if (!isNumber(ratio)) return h("span", { class: "dim" }, UNKNOWN);
  const [mark, kind, word] =
    ratio >= 1.005 ? ["▲", "slower", "slower"] : ratio < 0.995 ? ["▼", "faster", "faster"] : ["", "", "the same"];
  return h(
    "span",
    { class: kind, title: word },
    `${show("ratio", ratio)}${mark ? ` ${mark}` : ""}`,
    h("span", { class: "hidden" }, ` ${word}`),
  );
}

function runsTable(a, b) {
  const machine = (run, key) => text(object(run.machine)[key]) || UNKNOWN;
  const version = (run, key) => text(object(run.versions)[key]) || UNKNOWN;
  const rows = [
    ["File", (run) => text(run.file) || UNKNOWN],
    ["Processor", (run) => machine(run, "cpu")],
    ["Instructions", (run) => machine(run, "isa")],
    ["Threads", (run) => machine(run, "num_threads")],
    ...["thresher", "torch", "python"].map((name) => [name, (run) => version(run, name)]),
  ];
  return h(
    "section",
    { class: "panel runs", "aria-label": "The two runs", tabindex: "0" },
    h(
      "table",
      { class: "plain-table", id: "runs" },
      h("caption", { class: "hidden" }, "The two runs"),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "col" }, "Run"),
          h("th", { scope: "col" }, "A (before)"),
          h("th", { scope: "col" }, "B (after)"),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map(([name, of]) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, name),
            [a, b].map((run) =>
              h(
                "td",
                { class: "wrap" },
                of(run),
                of(a) !== of(b) && run === b && name !== "File"
                  ? [" ", h("span", { class: "badge warn" }, "differs")]
                  : null,
              ),
            ),
          ),
        ),
      ),
    ),
  );
}

function categoriesOf(diff, aWall, bWall) {
  const raw = object(diff.by_category);
  const names = [
    ...CATEGORIES.filter((name) => raw[name]),
    ...Object.keys(raw).filter((name) => !CATEGORIES.includes(name)),
  ];
  if (!names.length)
    return h("section", { class: "panel" }, h("h2", {}, "By category"), empty("No categories are known."));
  const side = (key) => Object.fromEntries(names.map((name) => [name, number(object(raw[name])[key])]));
  const [a, b] = [side("a_ns"), side("b_ns")];
  const sum = (values) => names.reduce((all, name) => all + (values[name] || 0), 0);
  const largest = Math.max(sum(a), sum(b), 1);
  const bar = (values, label) =>
    h("div", { style: { width: `${(100 * sum(values)) / largest}%` } }, stackedBar(names, values, sum(values), label));
  return h(
    "section",
    { class: "panel", "aria-label": "By category" },
    h("h2", {}, "By category"),
    h(
      "div",
      { class: "pairs" },
      h("strong", {}, "A"),
      bar(a, "Run A"),
      time(aWall ?? sum(a)),
      h("strong", {}, "B"),
      bar(b, "Run B"),
      time(bWall ?? sum(b)),
    ),
    h(
      "div",
      {
        class: "scroll",
        tabindex: "0",
        role: "region",
        "aria-label": "Time by category of both runs",
        style: { "margin-top": ".8rem" },
      },
      h(
        "table",
        { id: "diff-categories" },
        h("caption", { class: "hidden" }, "Time by category of both runs"),
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", { scope: "col" }, "Category"),
            ["A", "B", "Change", "B over A"].map((label) => h("th", { scope: "col", class: "num" }, label)),
          ),
        ),
        h(
          "tbody",
          {},
          names.map((name) => {
            const delta = isNumber(a[name]) && isNumber(b[name]) ? b[name] - a[name] : null;
            return h(
              "tr",
              {},
              h("th", { scope: "row" }, swatch(name), ` ${name}`),
              numberCell("time", a[name]),
              numberCell("time", b[name]),
              h("td", { class: "num", "data-value": delta, title: exact("time", delta) }, signed(delta)),
              h("td", { class: "num" }, changeOf(a[name], b[name])),
            );
          }),
        ),
      ),
    ),
  );
}

function differenceRows(diff) {
  const rows = objects(diff.rows);
  if (!rows.length) return empty("No operators to compare.");
  const of = (side, key) => (row) => number(object(row[side])[key]);
  const only = (row) => (!row.a && row.b ? "only in B" : row.a && !row.b ? "only in A" : null);
  const largest = (shown) => Math.max(0, ...shown.map((row) => Math.abs(number(row.delta_ns) || 0)));
  const columns = [
    {
      key: "name",
      label: "Operator",
      kind: "text",
      value: (row) => text(row.name),
      sub: (row) => [text(row.shapes), only(row)],
    },
    {
      key: "delta_ns",
      label: "Change",
      kind: "time",
      title: "Total time in B minus total time in A; sorted by its size",
      value: (row) => number(row.delta_ns),
      sortValue: (row) => (isNumber(row.delta_ns) ? Math.abs(row.delta_ns) : null),
      cell: (row) => signed(row.delta_ns),
      bar: largest,
    },
    {
      key: "ratio",
      label: "B over A",
      kind: "ratio",
      value: (row) => number(row.ratio),
      cell: (row) => ratioText(row.ratio),
    },
    ...["a", "b"].flatMap((side) =>
      [
        ["count", "count", "count"],
        ["total_ns", "total", "time"],
        ["median_ns", "median", "time"],
      ].map(([key, label, kind]) => ({
        key: `${side}_${key}`,
        label: `${side.toUpperCase()} ${label}`,
        kind,
        value: of(side, key),
      })),
    ),
    { key: "shapes", label: "Shapes", kind: "text", value: (row) => text(row.shapes), hidden: () => true },
  ];
  const known = columns.some((column) => column.key === state.settings.sort);
  const table = new Table({
    caption: "Operators of both runs",
    columns,
    sort: known ? state.settings.sort : "delta_ns",
    descending: state.settings.dir !== "asc",
    onSort: (key, descending) => remember({ sort: key, dir: descending ? "desc" : "asc" }),
  });
  const listing = new Listing({
    name: "difference",
    table,
    rows,
    placeholder: "operator, shape",
    searchText: (row) => [text(row.name), text(row.shapes)],
    choices: [{ key: "in", label: "In", value: (row) => only(row) || "both" }],
  });
  return h("section", { "aria-label": "Operators of both runs" }, h("h2", {}, "Operators"), listing.node);
}
