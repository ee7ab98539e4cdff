// A table under a search box and choices; what is chosen stands in the address of the page.

// Choices: {key, label, value(row)}: a select with the values that occur, left out where there is only one.
class Listing {
  constructor({ name, table, rows, searchText, placeholder, choices = [], extra = [], settings = state.settings }) {
    Object.assign(this, { name, table, rows, searchText, choices });
    this.chosen = {};
    this.count = h("span", { class: "count" });
    this.box = h("input", {
      type: "search",
      placeholder,
      "aria-label": `Search: ${placeholder}`,
      oninput: () => {
        remember({ q: this.box.value });
        this.update();
      },
    });
    this.box.value = settings.q || "";
    this.selects = h("span", { class: "group" });
    const copy = h("button", { type: "button", onclick: () => this.copy() }, "Copy CSV");
    const save = h(
      "button",
      { type: "button", onclick: () => download(`${name}.csv`, "text/csv", table.csv()) },
      "Save CSV",
    );
    this.node = h(
      "div",
      {},
      h(
        "div",
        { class: "toolbar" },
        this.box,
        extra,
        this.selects,
        h("span", { class: "group" }, copy, save),
        this.count,
      ),
      table.node,
    );
    this.setRows(rows, settings);
  }

  setRows(rows, settings = {}) {
    this.rows = rows;
    this.texts = rows.map((row) => this.searchText(row).filter(Boolean).join("\n").toLowerCase());
    this.selects.replaceChildren(
      ...this.choices
        .map(({ key, label, value }) => {
          const values = [...new Set(rows.map(value).filter(Boolean))].sort(collator.compare);
          if (values.length < 2) {
            delete this.chosen[key];
            return null;
          }
          const wanted = settings[key] || this.chosen[key];
          this.chosen[key] = values.includes(wanted) ? wanted : "";
          const select = h(
            "select",
            {
              onchange: () => {
                this.chosen[key] = select.value;
                remember({ [key]: select.value });
                this.update();
              },
            },
            h("option", { value: "" }, "all"),
            values.map((item) => h("option", { value: item }, item)),
          );
          select.value = this.chosen[key];
          return h("label", {}, label, select);
        })
        .filter(Boolean),
    );
    this.update();
  }

  update() {
    const words = this.box.value.toLowerCase().split(/\s+/).filter(Boolean);
    const active = this.choices.filter(({ key }) => this.chosen[key]);
    const found = this.rows.filter(
      (row, i) =>
        words.every((word) => this.texts[i].includes(word)) &&
        active.every(({ key, value }) => value(row) === this.chosen[key]),
    );
    this.table.setRows(found);
    this.sayCount();
  }

  sayCount() {
    const found = this.table.rows;
    this.count.textContent =
      found.length === this.rows.length
        ? plural(found.length, "row")
        : `${count(found.length)} of ${plural(this.rows.length, "row")}`;
  }

  async copy() {
    const copied = await copyText(this.table.csv());
    announce(
      copied ? `Copied ${plural(this.table.rows.length, "row")} as CSV` : "The browser refused to copy; use Save CSV",
    );
    this.count.textContent = copied
      ? `Copied ${plural(this.table.rows.length, "row")}`
      : "The browser refused; use Save CSV";
    setTimeout(() => this.sayCount(), 2500);
  }
}
