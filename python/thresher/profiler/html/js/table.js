// A sortable table of many rows, of which it makes as many as are looked at.
const PAGE_ROWS = 200;
const collator = new Intl.Collator("en", { numeric: true });

// A number and its unit, which is set smaller so that the eye runs along the numbers.
function figure(kind, value) {
  if (!isNumber(value)) return UNKNOWN;
  const [digits_, unit] = KINDS[kind].parts(value);
  return [digits_, unit ? h("small", {}, ` ${unit}`) : null];
}

function numberCell(kind, value, more = {}) {
  return h(
    "td",
    { class: "num", "data-value": isNumber(value) ? value : null, title: exact(kind, value), ...more },
    figure(kind, value),
  );
}

// Columns: {key, label, kind, value(row), title, cell(row), bar, hidden}. kind "text" or one of KINDS.
class Table {
  constructor({
    caption,
    columns,
    sort,
    descending = true,
    details = null,
    onSort = null,
    tall = true,
    footer = null,
    rowAttributes = null,
  }) {
    Object.assign(this, { columns, sort, descending, details, onSort, footer, rowAttributes });
    this.rows = [];
    this.limit = PAGE_ROWS;
    this.body = h("tbody", {});
    this.foot = h("tfoot", {});
    this.head = h("tr", {});
    this.table = h(
      "table",
      {},
      h("caption", { class: "hidden" }, caption),
      h("thead", {}, this.head),
      this.body,
      footer ? this.foot : null,
    );
    this.moreRow = h("div", { class: "more" });
    this.scroll = h(
      "div",
      { class: `scroll${tall ? " tall" : ""}`, tabindex: "0", role: "region", "aria-label": `Table: ${caption}` },
      this.table,
      this.moreRow,
    );
    this.node = this.scroll;
    this.makeHead();
  }

  shownColumns() {
    return this.columns.filter((column) => !column.hidden || !column.hidden());
  }

  makeHead() {
    this.buttons = new Map();
    this.head.replaceChildren(
      ...this.shownColumns().map((column, i) => {
        const button = h(
          "button",
          { class: "sort", type: "button", title: column.title, onclick: () => this.sortBy(column.key) },
          column.label,
        );
        const cell = h(
          "th",
          {
            scope: "col",
            class: [column.kind === "text" ? "" : "num", i === 0 ? "first" : ""].join(" ").trim() || null,
          },
          button,
        );
        this.buttons.set(column.key, cell);
        return cell;
      }),
    );
    this.markSort();
  }

  markSort() {
    for (const [key, cell] of this.buttons) {
      if (key === this.sort) cell.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
  }

  sortBy(key) {
    const column = this.columns.find((item) => item.key === key);
    this.descending = this.sort === key ? !this.descending : column.kind !== "text";
    this.sort = key;
    this.limit = PAGE_ROWS;
    this.markSort();
    this.order();
    this.draw();
    announce(`Sorted by ${column.label}, ${this.descending ? "largest" : "smallest"} first`);
    if (this.onSort) this.onSort(key, this.descending);
  }

  order() {
    const column = this.columns.find((item) => item.key === this.sort);
    if (!column) return;
    const sign = this.descending ? -1 : 1;
    const key = column.sortValue || column.value;
    // What is not known stays at the end in both directions.
    const keyed = this.rows.map((row, i) => [key(row), i, row]);
    keyed.sort(([a, i], [b, j]) => {
      const unknown = (a === null || a === undefined) - (b === null || b === undefined);
      if (unknown || a === null || a === undefined) return unknown || i - j;
      const order = typeof a === "number" && typeof b === "number" ? a - b : collator.compare(String(a), String(b));
      return sign * order || i - j;
    });
    this.rows = keyed.map(([, , row]) => row);
  }

  setRows(rows) {
    this.rows = [...rows];
    this.limit = PAGE_ROWS;
    this.makeHead();
    this.order();
    this.draw();
  }

  // Shows a row even if it lies beyond those that were made so far.
  reveal(row) {
    const at = this.rows.indexOf(row);
    if (at < 0) return null;
    if (at >= this.limit) {
      this.limit = at + 1;
      this.draw();
    }
    return this.made.get(row);
  }

  draw() {
    const columns = this.shownColumns();
    this.made = new Map();
    const shown = this.rows.slice(0, this.limit);
    const largest = new Map(
      columns.filter((column) => column.bar).map((column) => [column.key, column.bar(this.rows)]),
    );
    this.body.replaceChildren(...shown.map((row) => this.makeRow(row, columns, largest)));
    if (!shown.length) this.body.append(h("tr", {}, h("td", { colspan: columns.length, class: "dim" }, "No rows.")));
    if (this.footer) this.drawFooter(columns);
    const left = this.rows.length - shown.length;
    this.moreRow.replaceChildren(
      ...(left > 0
        ? [
            h("span", { class: "dim" }, `${count(shown.length)} of ${count(this.rows.length)} rows. `),
            h(
              "button",
              {
                type: "button",
                onclick: () => {
                  this.limit += 5 * PAGE_ROWS;
                  this.draw();
                },
              },
              `Show ${count(Math.min(left, 5 * PAGE_ROWS))} more`,
            ),
          ]
        : []),
    );
    this.moreRow.hidden = left <= 0;
  }

  makeRow(row, columns, largest) {
    const node = h(
      "tr",
      this.rowAttributes ? this.rowAttributes(row) : {},
      columns.map((column, i) => this.makeCell(row, column, i === 0, largest)),
    );
    this.made.set(row, node);
    return node;
  }

  makeCell(row, column, first, largest) {
    const value = column.value(row);
    if (first) {
      const content = column.cell
        ? column.cell(row)
        : column.kind === "text"
          ? text(value) || UNKNOWN
          : figure(column.kind, value);
      const name = this.details
        ? h(
            "button",
            {
              type: "button",
              class: "plain",
              "aria-expanded": "false",
              onclick: (event) => this.toggle(row, event.currentTarget),
            },
            content,
          )
        : content;
      const attributes = {
        scope: "row",
        class: `first${column.kind === "text" ? "" : " num"}`,
        "data-value": isNumber(value) ? value : null,
        title: exact(column.kind, value),
      };
      return h(
        "th",
        attributes,
        name,
        column.sub
          ? column
              .sub(row)
              .filter(Boolean)
              .map((line) => h("span", { class: "sub" }, line))
          : null,
      );
    }
    if (column.kind === "text")
      return h("td", { class: column.class }, column.cell ? column.cell(row) : text(value) || UNKNOWN);
    const attributes = { class: "num", "data-value": isNumber(value) ? value : null, title: exact(column.kind, value) };
    if (column.bar && isNumber(value) && largest.get(column.key) > 0) {
      attributes.class += " bar";
      attributes.style = {
        "background-size": `${((100 * Math.abs(value)) / largest.get(column.key)).toFixed(1)}% 100%`,
      };
    }
    if (column.cell) return h("td", attributes, column.cell(row));
    return h("td", attributes, figure(column.kind, value));
  }

  drawFooter(columns) {
    const sums = this.footer(this.rows);
    this.foot.replaceChildren(
      h(
        "tr",
        {},
        columns.map((column, i) => {
          if (i === 0) return h("th", { scope: "row", class: "first" }, sums[column.key]);
          const value = sums[column.key];
          if (!isNumber(value)) return h("td", {});
          return numberCell(column.kind, value);
        }),
      ),
    );
  }

  toggle(row, button) {
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    const line = button.closest("tr");
    if (open) line.nextSibling.remove();
    else line.after(h("tr", { class: "opened" }, h("td", { colspan: this.shownColumns().length }, this.details(row))));
  }

  csv() {
    const columns = this.columns.filter((column) => column.csv !== false);
    const lines = [columns.map((column) => csvField(column.key)).join(",")];
    for (const row of this.rows) lines.push(columns.map((column) => csvField(column.value(row))).join(","));
    return `${lines.join("\n")}\n`;
  }
}
