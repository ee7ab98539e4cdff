// The module tree as a flame graph: the width of a box is its total time, boxes below are what it called.
const FLAME_ROW = 24;

// The tree as the pages use it: numbers or null, children as a list, each node knows its parent.
function completeTree(raw) {
  const root = { raw, parent: null, depth: 0, path: "0" };
  const open = [root];
  while (open.length) {
    const node = open.pop();
    node.name = text(node.raw.name) || "(no name)";
    node.total = number(node.raw.total_ns);
    node.self = number(node.raw.self_ns);
    node.count = number(node.raw.count);
    node.source = text(node.raw.source);
    node.kind = node.raw.kind === "operator" ? "operator" : "module";
    node.children = objects(node.raw.children).map((child, i) => ({
      raw: child,
      parent: node,
      depth: node.depth + 1,
      path: `${node.path}.${i}`,
    }));
    open.push(...node.children);
  }
  return root;
}

class Flame {
  constructor(root, onChoose) {
    this.root = root;
    this.zoomed = root;
    this.onChoose = onChoose;
    this.query = "";
    this.node = h("div", {
      class: "flame",
      role: "group",
      "aria-label": "Flame graph of the modules: Enter zooms, arrow keys move, Escape goes back",
    });
    this.readout = h("p", { class: "readout" });
    this.node.addEventListener("keydown", (event) => this.key(event));
    this.width = 0;
    onWidth(this.node, (width) => {
      this.width = width;
      this.draw();
    });
  }

  boxes() {
    const found = [];
    const place = (node, left, width, depth) => {
      if (width < 0.0008 || found.length > 3000) return;
      found.push({ node, left, width, depth });
      const sum = node.children.reduce((all, child) => all + (child.total || 0), 0);
      // Children on several threads can take longer than their parent: then they share its width.
      const whole = Math.max(node.total || 0, sum);
      if (!(whole > 0)) return;
      let at = left;
      for (const child of node.children) {
        const part = (width * (child.total || 0)) / whole;
        place(child, at, part, depth + 1);
        at += part;
      }
    };
    const line = [];
    for (let up = this.zoomed.parent; up; up = up.parent) line.unshift(up);
    line.forEach((node, depth) => found.push({ node, left: 0, width: 1, depth }));
    place(this.zoomed, 0, 1, line.length);
    return found;
  }

  // A bare number, as in a list of layers, says more with the name of its list.
  label(node, pixels) {
    if (pixels < 30) return "";
    const name = /^\d+$/.test(node.name) && node.parent ? `${node.parent.name}.${node.name}` : node.name;
    return pixels > name.length * 7 + 70 ? `${name} · ${time(node.total)}` : name;
  }

  matches(node) {
    return !this.query || `${node.name}\n${node.source || ""}`.toLowerCase().includes(this.query);
  }

  draw(focus = null) {
    const boxes = this.boxes();
    const depth = Math.max(...boxes.map((box) => box.depth), 0) + 1;
    this.node.style.setProperty("height", `${depth * FLAME_ROW}px`);
    this.buttons = new Map();
    this.node.replaceChildren(
      ...boxes.map(({ node, left, width, depth: row }) => {
        const part = share(node.total, this.root.total);
        const label = `${node.name}, ${time(node.total)}, ${percent(part)}, self ${time(node.self)}`;
        const found = this.query ? (this.matches(node) ? " hit" : " miss") : "";
        const button = h(
          "button",
          {
            type: "button",
            class: `${node.kind}${node.path.length % 3}${found}`,
            "aria-label": label,
            tabindex: "-1",
            style: { left: `${left * 100}%`, width: `${width * 100}%`, top: `${row * FLAME_ROW}px` },
            onclick: () => this.zoom(node),
            onpointerenter: () => this.say(node),
            onfocus: () => this.say(node),
          },
          this.label(node, width * this.width),
        );
        this.buttons.set(node, button);
        return button;
      }),
    );
    const first = this.buttons.get(focus) || this.buttons.get(this.zoomed) || this.node.firstChild;
    if (first) first.setAttribute("tabindex", "0");
    if (focus && first) first.focus();
    this.say(this.zoomed);
  }

  say(node) {
    const path = [];
    for (let up = node; up; up = up.parent) path.unshift(up.name);
    const total = `total ${time(node.total)} (${percent(share(node.total, this.root.total))})`;
    const calls = node.count === null ? "runs not known" : plural(node.count, "run");
    this.readout.textContent = `${path.join(" › ")}: ${total}, self ${time(node.self)}, ${calls}`;
  }

  zoom(node) {
    this.zoomed = node;
    const had = this.node.contains(document.activeElement);
    this.draw(had ? node : null);
    this.onChoose(node);
  }

  search(query) {
    this.query = query.toLowerCase().trim();
    this.draw();
  }

  key(event) {
    const at = [...this.buttons].find(([, button]) => button === event.target)?.[0];
    if (!at) return;
    const siblings = at.parent ? at.parent.children.filter((node) => this.buttons.has(node)) : [at];
    const place = siblings.indexOf(at);
    const below = at.children
      .filter((node) => this.buttons.has(node))
      .sort((a, b) => (b.total || 0) - (a.total || 0))[0];
    const to = {
      ArrowUp: at.parent,
      ArrowDown: below,
      ArrowRight: siblings[place + 1],
      ArrowLeft: siblings[place - 1],
    }[event.key];
    if (event.key === "Escape" && this.zoomed.parent) {
      event.preventDefault();
      this.zoom(this.zoomed.parent);
    } else if (to && this.buttons.has(to)) {
      event.preventDefault();
      event.target.setAttribute("tabindex", "-1");
      this.buttons.get(to).setAttribute("tabindex", "0");
      this.buttons.get(to).focus();
    }
  }
}
