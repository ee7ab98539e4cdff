// The modules of the model as a tree table and, above it, as a flame graph.

function modulesPage(main) {
  const { modules } = state.report;
  main.append(h("h1", { tabindex: "-1" }, "Modules"));
  if (!modules || (!objects(modules.children).length && !(modules.total_ns > 0))) {
    main.append(empty("No modules were recorded."));
    return;
  }
  const root = completeTree(modules);
  const tree = new ModuleTree(root);
  const flame = new Flame(root, (node) => tree.reveal(node));
  const box = h("input", {
    type: "search",
    placeholder: "module, operator, source",
    "aria-label": "Search modules",
    oninput: () => run(),
  });
  const found = h("span", { class: "count", role: "status" });
  const run = () => {
    remember({ q: box.value });
    flame.search(box.value);
    const matches = tree.search(box.value);
    found.textContent = box.value.trim() ? `${plural(matches, "entry", "entries")} found` : "";
  };
  main.append(
    h("p", { class: "dim" }, "Total is a module with all that it contains, self is what its own operators take."),
    h(
      "div",
      { class: "toolbar" },
      box,
      h(
        "span",
        { class: "group" },
        h("button", { type: "button", onclick: () => tree.expandAll() }, "Expand all"),
        h("button", { type: "button", onclick: () => tree.collapseAll() }, "Collapse all"),
        h("button", { type: "button", onclick: () => flame.zoom(root) }, "Reset zoom"),
      ),
      found,
    ),
    h(
      "section",
      { class: "panel", "aria-label": "Flame graph" },
      h("h2", {}, "Flame graph"),
      flame.node,
      flame.readout,
      h(
        "ul",
        { class: "legend" },
        h("li", {}, h("span", { class: "swatch key-module", "aria-hidden": "true" }), "module"),
        h("li", {}, h("span", { class: "swatch key-operator", "aria-hidden": "true" }), "operator"),
      ),
    ),
    tree.node,
  );
  if (state.settings.q) {
    box.value = state.settings.q;
    run();
  }
}

class ModuleTree {
  constructor(root) {
    this.root = root;
    this.open = new Set();
    this.hits = new Set();
    this.limit = 1000;
    for (let node = root, depth = 0; node && depth < 3; depth += 1) {
      this.open.add(node);
      node = node.children.length === 1 ? node.children[0] : null;
    }
    this.body = h("tbody", {});
    const head = (label) => h("th", { scope: "col", class: "num" }, label);
    this.table = h(
      "table",
      { class: "tree", role: "treegrid", "aria-label": "Modules" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "col", class: "first" }, "Name"),
          head("Runs"),
          head("Total"),
          head("Self"),
          head("% of all"),
          h("th", { scope: "col" }, "Source"),
        ),
      ),
      this.body,
    );
    this.node = h("div", { class: "scroll tall" }, this.table);
    this.table.addEventListener("keydown", (event) => this.key(event));
    this.draw();
  }

  shown() {
    const rows = [];
    const visit = (node) => {
      rows.push(node);
      if (this.open.has(node)) node.children.forEach(visit);
    };
    visit(this.root);
    return rows;
  }

  draw(focus = null) {
    const nodes = this.shown();
    this.rows = new Map();
    this.body.replaceChildren(...nodes.slice(0, this.limit).map((node) => this.makeRow(node)));
    if (nodes.length > this.limit) {
      this.body.append(
        h(
          "tr",
          {},
          h(
            "td",
            { colspan: 6 },
            h(
              "button",
              {
                type: "button",
                onclick: () => {
                  this.limit += 2000;
                  this.draw();
                },
              },
              `Show ${count(Math.min(2000, nodes.length - this.limit))} more of ${count(nodes.length)} rows`,
            ),
          ),
        ),
      );
    }
    const current = this.rows.get(focus) || this.rows.get(this.current) || this.rows.get(this.root);
    if (current) current.setAttribute("tabindex", "0");
    if (focus && this.rows.has(focus)) this.rows.get(focus).focus();
  }

  makeRow(node) {
    const expandable = node.children.length > 0;
    const part = share(node.total, this.root.total);
    const open = this.open.has(node);
    const row = h(
      "tr",
      {
        tabindex: "-1",
        "aria-level": node.depth + 1,
        "aria-expanded": expandable ? String(open) : null,
        class: this.hits.has(node) ? "hit" : null,
        onfocus: () => {
          this.current = node;
        },
      },
      h(
        "th",
        { scope: "row", class: "first" },
        h(
          "span",
          { class: "name", style: { "padding-left": `${Math.min(node.depth, 14) * 1.1}rem` } },
          expandable
            ? h("button", {
                type: "button",
                class: "twist",
                tabindex: "-1",
                "aria-expanded": String(open),
                "aria-label": `${open ? "Collapse" : "Expand"} ${node.name}`,
                onclick: () => this.toggle(node),
              })
            : h("span", { class: "leaf" }),
          h("span", {}, node.kind === "operator" ? h("em", {}, node.name) : node.name),
        ),
      ),
      numberCell("count", node.count),
      numberCell("time", node.total),
      numberCell("time", node.self),
      numberCell(
        "percent",
        part,
        isNumber(part) ? { class: "num bar", style: { "background-size": `${part.toFixed(1)}% 100%` } } : {},
      ),
      h("td", { class: "wrap" }, node.source ? h("code", {}, node.source) : UNKNOWN),
    );
    this.rows.set(node, row);
    return row;
  }

  toggle(node, focus = false) {
    if (this.open.has(node)) this.open.delete(node);
    else this.open.add(node);
    const inside = focus || this.table.contains(document.activeElement);
    this.draw(inside ? node : null);
  }

  expandAll() {
    const visit = (node) => {
      if (!node.children.length) return;
      this.open.add(node);
      node.children.forEach(visit);
    };
    visit(this.root);
    this.draw();
  }

  collapseAll() {
    this.open = new Set([this.root]);
    this.draw();
  }

  openTo(node) {
    for (let up = node.parent; up; up = up.parent) this.open.add(up);
  }

  reveal(node) {
    this.openTo(node);
    this.open.add(node);
    this.current = node;
    this.draw();
    const row = this.rows.get(node);
    if (row) this.node.scrollTop = Math.max(0, row.offsetTop - 60);
  }

  // Opens the way to what matches; returns how many do.
  search(query) {
    const wanted = query.toLowerCase().trim();
    this.hits = new Set();
    if (wanted) {
      const visit = (node) => {
        if (`${node.name}\n${node.source || ""}`.toLowerCase().includes(wanted)) {
          this.hits.add(node);
          this.openTo(node);
        }
        node.children.forEach(visit);
      };
      visit(this.root);
    }
    this.draw();
    return this.hits.size;
  }

  key(event) {
    if (event.target.tagName !== "TR") return;
    const nodes = [...this.rows.keys()];
    const at = nodes.findIndex((node) => this.rows.get(node) === event.target);
    const node = nodes[at];
    let to = null;
    if (event.key === "ArrowDown") to = nodes[at + 1];
    else if (event.key === "ArrowUp") to = nodes[at - 1];
    else if (event.key === "Home") [to] = nodes;
    else if (event.key === "End") to = nodes.at(-1);
    else if (event.key === "ArrowRight" && node.children.length) {
      if (this.open.has(node)) to = nodes[at + 1];
      else this.toggle(node, true);
    } else if (event.key === "ArrowLeft") {
      if (this.open.has(node) && node.children.length) this.toggle(node, true);
      else to = node.parent;
    } else if (event.key === "Enter" && node.children.length) this.toggle(node, true);
    else return;
    event.preventDefault();
    if (!to || !this.rows.has(to)) return;
    event.target.setAttribute("tabindex", "-1");
    this.rows.get(to).setAttribute("tabindex", "0");
    this.rows.get(to).focus();
  }
}
