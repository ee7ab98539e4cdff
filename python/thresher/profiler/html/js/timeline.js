// The timeline's page: pointer, keys, search, the details of an event, and the same in words.
const KEY_HELP = [
  [["W", "S"], "zoom in, out"],
  [["A", "D"], "move"],
  [["0"], "fit"],
  [["N", "P"], "next, previous event of the row"],
  [["↑", "↓"], "row above, below (after a selection)"],
  [["G"], "follow the arrow"],
  [["F"], "zoom to the event"],
  [["Enter"], "next event found"],
  [["Esc"], "clear the selection"],
];

function delayText(delay) {
  return delay === 0 ? "at the same time" : `${time(Math.abs(delay))} ${delay > 0 ? "later" : "earlier"}`;
}

function timelinePage(main) {
  const { timeline } = state.report;
  main.append(h("h1", { tabindex: "-1" }, "Timeline"));
  if (!list(timeline.events.start_ns).length) {
    main.append(empty("The report has no timeline events."));
    return;
  }
  new TimelinePage(main, timeline);
}

class TimelinePage {
  constructor(main, timeline) {
    this.model = new TimelineModel(timeline);
    this.drawing = new TimelineCanvas(this.model);
    this.tip = h("div", { class: "tip", hidden: true });
    this.spacer = h("div", {});
    this.tracks = h("div", { class: "tracks", tabindex: "-1" }, this.drawing.canvas, this.spacer);
    this.frame = h(
      "div",
      {
        class: "timeline",
        tabindex: "0",
        role: "application",
        "aria-roledescription": "timeline",
        "aria-label": "Timeline",
        "aria-describedby": "timeline-view timeline-keys",
      },
      this.drawing.strip,
      this.tracks,
      this.tip,
    );
    this.where = h("p", { class: "dim", id: "timeline-view" });
    this.panel = h("section", { class: "panel", "aria-label": "Selected event", "aria-live": "polite" });
    this.visible = h("section", { class: "panel", "aria-label": "Events in view" });
    const parts = [
      this.makeIntroduction(timeline),
      this.makeToolbar(),
      this.makeLanes(),
      this.frame,
      this.where,
      h(
        "p",
        { class: "keys", id: "timeline-keys" },
        KEY_HELP.map(([keys, meaning]) =>
          h(
            "span",
            {},
            keys.map((key) => [h("kbd", {}, key), " "]),
            meaning,
          ),
        ),
        h("span", {}, "wheel: zoom"),
        h("span", {}, "drag: move"),
        h("span", {}, "click: select"),
      ),
      this.makeLegend(),
      h("div", { class: "timeline-below" }, this.panel, this.visible),
    ];
    main.append(...parts.filter(Boolean));
    this.listen();
    this.frame.dataset.selected = "-1";
    this.drawPanel(-1);
    const { settings } = state;
    let restored = false;
    onWidth(this.frame, (width) => {
      this.resize(width);
      if (!restored) this.restore(settings);
      restored = true;
    });
    this.drawing.ondraw = () => this.drawn();
    this.themeListener = () => {
      if (!this.frame.isConnected) {
        themeListeners.delete(this.themeListener);
        return;
      }
      this.drawing.readColours();
      // Paper waits for no animation frame.
      if (printing) this.drawing.draw();
      else this.drawing.request();
    };
    themeListeners.add(this.themeListener);
  }

  makeIntroduction(timeline) {
    const shown = this.model.count;
    const total = timeline.total ?? shown;
    return h(
      "p",
      { class: total > shown ? "note info" : "dim", id: "timeline-count" },
      total > shown
        ? `${count(shown)} of ${count(total)} events are shown: the trace was down-sampled for this page. Tables and sums count every event.`
        : `All ${plural(shown, "event")} of the trace are shown.`,
    );
  }

  makeToolbar() {
    const button = (label, name, action) =>
      h("button", { type: "button", "aria-label": name, title: name, onclick: action }, label);
    this.box = h("input", {
      type: "search",
      placeholder: "name, module, shape, kernel",
      "aria-label": "Search events",
      oninput: () => this.search(this.box.value),
      onkeydown: (event) => {
        if (event.key !== "Enter") return;
        event.preventDefault();
        this.step(event.shiftKey ? -1 : 1);
      },
    });
    this.found = h("span", { class: "count", role: "status" });
    return h(
      "div",
      { class: "toolbar" },
      h(
        "span",
        { class: "group" },
        button("+", "Zoom in", () => this.drawing.zoom(0.6)),
        button("−", "Zoom out", () => this.drawing.zoom(1 / 0.6)),
        button("←", "Earlier", () => this.drawing.pan(-0.3)),
        button("→", "Later", () => this.drawing.pan(0.3)),
        button("Fit", "Fit all", () => this.drawing.fit()),
      ),
      this.box,
      h(
        "span",
        { class: "group" },
        button("Previous", "Previous event found", () => this.step(-1)),
        button("Next", "Next event found", () => this.step(1)),
      ),
      this.found,
    );
  }

  makeLanes() {
    if (this.model.lanes.length < 2) return null;
    return h(
      "details",
      { class: "more-table" },
      h("summary", {}, `Lanes (${this.model.lanes.length})`),
      h(
        "fieldset",
        {},
        h("legend", {}, "Lanes that are shown"),
        this.model.lanes.map((lane) =>
          h(
            "label",
            {},
            h("input", {
              type: "checkbox",
              checked: true,
              onchange: (event) => {
                if (event.target.checked) this.drawing.hidden.delete(lane.index);
                else this.drawing.hidden.add(lane.index);
                this.drawing.layOut();
                this.resize(this.frame.clientWidth);
              },
            }),
            `${lane.kind}: ${lane.name}`,
          ),
        ),
      ),
    );
  }

  makeLegend() {
    const used = [...new Set(this.model.category)].map((index) => this.model.timeline.categories[index] ?? "other");
    return h(
      "ul",
      { class: "legend", "aria-label": "Categories" },
      [...new Set(used)].map((name) => h("li", {}, swatch(name), name)),
    );
  }

  resize(width) {
    const { contentHeight } = this.drawing;
    const height = Math.min(contentHeight, Math.max(220, Math.round(innerHeight * 0.6)));
    this.tracks.style.setProperty("height", `${height}px`);
    this.spacer.style.setProperty("height", `${Math.max(0, contentHeight - height)}px`);
    this.drawing.resize(width, height);
  }

  restore({ q, event, from, to }) {
    if (q) {
      this.box.value = q;
      this.search(q);
    }
    const range = from && to && Number(to) > Number(from);
    if (range) this.drawing.setView(Number(from), Number(to));
    const wanted = event === undefined ? -1 : Number(event);
    if (wanted >= 0 && wanted < this.model.count) this.select(wanted, { show: !range });
  }

  // What follows the view: its description, the table of what it holds, the address.
  drawn() {
    clearTimeout(this.settle);
    this.settle = setTimeout(() => {
      if (!this.frame.isConnected) return;
      const { view } = this.drawing;
      const { total, events } = this.model.longestIn(view.start, view.end, 25, this.drawing.hidden);
      const [from, to] = [Math.max(view.start, this.model.first), Math.min(view.end, this.model.last)];
      const span = `${time(Math.round(to - from))} of ${time(this.model.last - this.model.first)}`;
      const range = `${time(Math.round(from))} to ${time(Math.round(to))}`;
      this.where.textContent = `In view: ${range}, ${span}; ${plural(total, "event")}.`;
      this.frame.dataset.from = String(Math.round(view.start));
      this.frame.dataset.to = String(Math.round(view.end));
      this.drawVisible(events, total);
      const whole = view.end - view.start >= (this.model.last - this.model.first) * 1.019;
      remember({ from: whole ? null : Math.round(view.start), to: whole ? null : Math.round(view.end) });
    }, 120);
  }

  drawVisible(events, total) {
    const focused = this.visible.contains(document.activeElement) ? Number(document.activeElement.dataset.event) : -1;
    this.visible.replaceChildren(
      h(
        "h2",
        {},
        total > events.length
          ? `Longest ${events.length} of ${plural(total, "event")} in view`
          : `${plural(total, "event")} in view`,
      ),
      h(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": "Longest events in view" },
        h(
          "table",
          {},
          h("caption", { class: "hidden" }, "Longest events in view"),
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              h("th", { scope: "col" }, "Event"),
              h("th", { scope: "col" }, "Category"),
              h("th", { scope: "col", class: "num" }, "Start"),
              h("th", { scope: "col", class: "num" }, "Duration"),
            ),
          ),
          h(
            "tbody",
            {},
            events.map((i) =>
              h(
                "tr",
                {},
                h(
                  "th",
                  { scope: "row" },
                  h(
                    "button",
                    { type: "button", class: "link", "data-event": i, onclick: () => this.select(i, { show: true }) },
                    this.model.nameOf(i),
                  ),
                ),
                h("td", {}, this.model.categoryOf(i)),
                h("td", { class: "num" }, time(this.model.start[i])),
                h("td", { class: "num", "data-value": this.model.duration[i] }, time(this.model.duration[i])),
              ),
            ),
          ),
        ),
      ),
    );
    if (focused >= 0) this.visible.querySelector(`[data-event="${focused}"]`)?.focus();
  }

  search(query) {
    this.model.search(query);
    this.found.textContent = this.model.matches ? `${plural(this.model.matchCount, "event")} found` : "";
    remember({ q: query });
    this.drawing.request();
  }

  step(direction) {
    const next = this.model.nextMatch(this.drawing.selected, direction);
    if (next >= 0) this.select(next, { show: true });
    else if (this.model.matches) announce("Nothing found");
  }

  select(i, { show = false, zoom = false } = {}) {
    this.drawing.selected = i;
    remember({ event: i < 0 ? null : i });
    this.frame.dataset.selected = String(i);
    this.drawPanel(i);
    if (i >= 0 && show) this.bringIntoView(i, zoom);
    this.drawing.request();
  }

  bringIntoView(i, zoom) {
    const { model, drawing } = this;
    if (drawing.hidden.has(model.lane[i])) return;
    const [start, duration] = [model.start[i], model.duration[i]];
    const span = drawing.view.end - drawing.view.start;
    if (zoom) drawing.setView(start - duration * 0.6 - 20, start + duration * 1.6 + 20);
    else if (
      start > drawing.view.end ||
      start + duration < drawing.view.start ||
      (start < drawing.view.start && duration < span)
    ) {
      drawing.setView(start + duration / 2 - span / 2, start + duration / 2 + span / 2);
    }
    const top = drawing.tops.get(model.trackOf[i]);
    if (top === undefined) return;
    if (top - AXIS < this.tracks.scrollTop) this.tracks.scrollTop = top - AXIS - LANE_HEAD;
    else if (top + ROW > this.tracks.scrollTop + drawing.height) this.tracks.scrollTop = top + ROW - drawing.height + 6;
  }

  drawPanel(i) {
    if (i < 0) {
      this.panel.replaceChildren(
        h("h2", {}, "No event selected"),
        h("p", { class: "dim" }, "Click one, or press N with the timeline in focus."),
      );
      return;
    }
    const { model } = this;
    const site = model.siteOf(i);
    const links = model.links.get(i) || [];
    const [flops, traffic, duration] = [number(site.flops), number(site.bytes), model.duration[i]];
    const speed = (amount) => (isNumber(amount) && amount >= 0 && duration > 0 ? digits(amount / duration) : null);
    const modelled = isNumber(flops) && flops >= 0;
    const button = (label, action) => h("button", { type: "button", onclick: action }, label);
    this.panel.replaceChildren(
      h("h2", {}, swatch(model.categoryOf(i)), ` ${model.nameOf(i)}`),
      details([
        ["Category", model.categoryOf(i)],
        ["Lane", `${model.laneOf(i).kind}: ${model.laneOf(i).name}`],
        ["Start", `${time(model.start[i])} (${exact("time", model.start[i])})`],
        ["Duration", `${time(duration)} (${exact("time", duration)})`],
        ["Shapes", text(site.shapes)],
        ["Kernel", text(site.kernel)],
        ["Module", text(site.module)],
        ["Source", text(site.source) ? h("code", {}, site.source) : null],
        ["Work", modelled ? `${show("flops", flops)}${speed(flops) ? `, ${speed(flops)} GFLOP/s` : ""}` : null],
        [
          "Memory traffic",
          isNumber(traffic) && traffic >= 0
            ? `${bytes(traffic)}${speed(traffic) ? `, ${speed(traffic)} GB/s` : ""}`
            : null,
        ],
        ["Work", model.site[i] >= 0 && !modelled ? "not modelled" : null],
        ["Correlation", model.ids[i] === 0 ? null : text(model.ids[i])],
      ]),
      ...links
        .slice(0, 20)
        .map(({ event, forward }) =>
          h(
            "p",
            {},
            forward ? "Launches " : "Launched by ",
            h(
              "button",
              { type: "button", class: "link", onclick: () => this.select(event, { show: true }) },
              model.nameOf(event),
            ),
            ` on ${model.laneOf(event).kind} ${model.laneOf(event).name}, ${delayText(model.start[event] - model.start[i])}`,
          ),
        ),
      h(
        "p",
        { class: "group" },
        button("Zoom to it", () => this.select(i, { show: true, zoom: true })),
        button("Previous", () => this.walk(-1)),
        button("Next", () => this.walk(1)),
        button("Clear", () => this.select(-1)),
      ),
    );
  }

  walk(by) {
    const { model, drawing } = this;
    if (drawing.selected < 0) {
      this.selectFirst();
      return;
    }
    const track = model.tracks[model.trackOf[drawing.selected]];
    const place = model.placeOf[drawing.selected] + by;
    if (place >= 0 && place < track.members.length) this.select(track.members[place], { show: true });
  }

  selectFirst() {
    const { model, drawing } = this;
    const [t] = drawing.tops.keys();
    if (t === undefined) return;
    const track = model.tracks[t];
    const place = Math.min(model.placeAt(track, drawing.view.start), track.members.length - 1);
    this.select(track.members[place], { show: true });
  }

  changeRow(by) {
    const { model, drawing } = this;
    const shown = [...drawing.tops.keys()];
    const at = shown.indexOf(model.trackOf[drawing.selected]) + by;
    if (at < 0 || at >= shown.length) return;
    const i = drawing.selected;
    this.select(model.nearest(model.tracks[shown[at]], model.start[i] + model.duration[i] / 2), { show: true });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { drawing } = this;
    const { selected } = drawing;
    const link = selected >= 0 ? (this.model.links.get(selected) || [])[0] : null;
    const actions = {
      w: () => drawing.zoom(0.75),
      "+": () => drawing.zoom(0.75),
      "=": () => drawing.zoom(0.75),
      s: () => drawing.zoom(1 / 0.75),
      "-": () => drawing.zoom(1 / 0.75),
      a: () => drawing.pan(-0.15),
      arrowleft: () => drawing.pan(-0.15),
      d: () => drawing.pan(0.15),
      arrowright: () => drawing.pan(0.15),
      0: () => drawing.fit(),
      n: () => this.walk(1),
      p: () => this.walk(-1),
      enter: () => this.step(event.shiftKey ? -1 : 1),
      arrowup: selected >= 0 ? () => this.changeRow(-1) : () => this.tracks.scrollBy(0, -ROW * 2),
      arrowdown: selected >= 0 ? () => this.changeRow(1) : () => this.tracks.scrollBy(0, ROW * 2),
      g: link ? () => this.select(link.event, { show: true }) : null,
      f: selected >= 0 ? () => this.select(selected, { show: true, zoom: true }) : null,
      escape: selected >= 0 ? () => this.select(-1) : null,
    };
    const action = actions[event.key.toLowerCase()];
    if (!action) return;
    event.preventDefault();
    action();
  }

  listen() {
    const { drawing, tracks } = this;
    const place = (event) => {
      const box = drawing.canvas.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    this.frame.addEventListener("keydown", (event) => this.key(event));
    tracks.addEventListener("scroll", () => {
      drawing.top = tracks.scrollTop;
      drawing.request();
    });
    tracks.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        const unit = event.deltaMode === 1 ? 20 : 1;
        if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
          drawing.pan(((event.deltaX || event.deltaY) * unit) / drawing.width);
        else
          drawing.zoom(
            Math.exp(Math.max(-1, Math.min(1, event.deltaY * unit * 0.0015))),
            drawing.timeAt(place(event).x),
          );
      },
      { passive: false },
    );
    const pointers = new Map();
    let drag = null;
    tracks.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.target !== drawing.canvas) return;
      this.frame.focus({ preventScroll: true });
      drawing.canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, place(event));
      drag = { ...place(event), view: { ...drawing.view }, top: tracks.scrollTop, moved: pointers.size > 1 };
    });
    drawing.canvas.addEventListener("pointermove", (event) => {
      const at = place(event);
      if (!pointers.has(event.pointerId)) {
        this.hover(at);
        return;
      }
      const before = pointers.get(event.pointerId);
      pointers.set(event.pointerId, at);
      if (pointers.size === 2) {
        const [other] = [...pointers].filter(([id]) => id !== event.pointerId).map(([, position]) => position);
        const factor = Math.max(10, Math.abs(before.x - other.x)) / Math.max(10, Math.abs(at.x - other.x));
        drawing.zoom(factor, drawing.timeAt(other.x));
        return;
      }
      if (!drag) return;
      if (Math.hypot(at.x - drag.x, at.y - drag.y) > 4) drag.moved = true;
      if (!drag.moved) return;
      this.tip.hidden = true;
      tracks.classList.add("dragging");
      const by = ((drag.x - at.x) / drawing.width) * (drag.view.end - drag.view.start);
      drawing.setView(drag.view.start + by, drag.view.end + by);
      if (event.pointerType === "mouse") tracks.scrollTop = drag.top + drag.y - at.y;
    });
    const finish = (event) => {
      if (!pointers.delete(event.pointerId)) return;
      tracks.classList.remove("dragging");
      if (drag && !drag.moved && event.type === "pointerup") this.select(drawing.hit(drag.x, drag.y));
      if (!pointers.size) drag = null;
    };
    drawing.canvas.addEventListener("pointerup", finish);
    drawing.canvas.addEventListener("pointercancel", finish);
    drawing.canvas.addEventListener("pointerleave", () => {
      this.tip.hidden = true;
    });
    drawing.canvas.addEventListener("dblclick", (event) => {
      const { x, y } = place(event);
      const i = drawing.hit(x, y);
      if (i >= 0) this.select(i, { show: true, zoom: true });
    });
    this.listenStrip();
  }

  // In the strip a click or a drag moves the view there.
  listenStrip() {
    const { drawing } = this;
    const centre = (event) => {
      const part = (event.clientX - drawing.strip.getBoundingClientRect().left) / drawing.width;
      const when = this.model.first + part * (this.model.last - this.model.first);
      const half = (drawing.view.end - drawing.view.start) / 2;
      drawing.setView(when - half, when + half);
    };
    drawing.strip.addEventListener("pointerdown", (event) => {
      drawing.strip.setPointerCapture(event.pointerId);
      centre(event);
    });
    drawing.strip.addEventListener("pointermove", (event) => {
      if (drawing.strip.hasPointerCapture(event.pointerId)) centre(event);
    });
    drawing.strip.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        drawing.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * 0.0015))));
      },
      { passive: false },
    );
  }

  hover({ x, y }) {
    const i = this.drawing.hit(x, y);
    this.tracks.classList.toggle("over", i >= 0);
    this.tip.hidden = i < 0;
    if (i < 0) return;
    const module = text(this.model.siteOf(i).module);
    this.tip.replaceChildren(
      h("strong", {}, this.model.nameOf(i)),
      h("br", {}),
      time(this.model.duration[i]),
      module ? ` · ${module}` : "",
    );
    const width = this.tip.offsetWidth;
    const left = Math.max(4, Math.min(x + 14, this.drawing.width - width - 4));
    const below = y + STRIP + 20;
    const room = below + this.tip.offsetHeight < this.frame.clientHeight;
    this.tip.style.setProperty("left", `${left}px`);
    this.tip.style.setProperty("top", `${room ? below : y + STRIP - this.tip.offsetHeight - 10}px`);
  }
}
