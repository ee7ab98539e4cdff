// Draws the timeline: a strip with all of it, and below the tracks of the part that is looked at.
const ROW = 20;
const LANE_HEAD = 22;
const AXIS = 24;
const STRIP = 40;
const FRAMES = new Set(["step", "annotation", "call", "execution"]);

function rgb(text) {
  const hex = text.replace("#", "");
  const full = hex.length === 3 ? [...hex].map((digit) => digit + digit).join("") : hex;
  return [0, 2, 4].map((at) => parseInt(full.slice(at, at + 2), 16) || 0);
}

function luminance([r, g, b]) {
  const [x, y, z] = [r, g, b].map((value) =>
    value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4,
  );
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
}

class TimelineCanvas {
  constructor(model) {
    this.model = model;
    this.view = { start: 0, end: 1 };
    this.selected = -1;
    this.hidden = new Set();
    this.width = 300;
    this.top = 0;
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.strip = h("canvas", { class: "strip", "aria-hidden": "true" });
    this.labelWidths = new Map();
    this.readColours();
    this.layOut();
    this.fit();
  }

  fit() {
    const margin = (this.model.last - this.model.first) * 0.01;
    this.setView(this.model.first - margin, this.model.last + margin);
  }

  setView(start, end) {
    const whole = this.model.last - this.model.first;
    const [low, high] = [this.model.first - whole * 0.01, this.model.last + whole * 0.01];
    const span = Math.min(high - low, Math.max(20, end - start));
    const from = Math.max(low, Math.min(high - span, start + (end - start - span) / 2));
    this.view = { start: from, end: from + span };
    this.request();
  }

  zoom(factor, at = (this.view.start + this.view.end) / 2) {
    this.setView(at - (at - this.view.start) * factor, at + (this.view.end - at) * factor);
  }

  pan(part) {
    const by = (this.view.end - this.view.start) * part;
    this.setView(this.view.start + by, this.view.end + by);
  }

  timeAt(x) {
    return this.view.start + ((this.view.end - this.view.start) * x) / this.width;
  }

  xOf(when) {
    return ((when - this.view.start) / (this.view.end - this.view.start)) * this.width;
  }

  readColours() {
    const names = [
      "--paper",
      "--panel",
      "--raised",
      "--ink",
      "--dim",
      "--line",
      "--strong",
      "--here",
      "--accent",
      "--mark",
    ];
    this.c = Object.fromEntries(names.map((name) => [name.slice(2), colour(name)]));
    // Tints tell neighbours of one category apart; the category keeps its hue.
    this.tints = new Map(
      [...COLOURED].map((category) => {
        const base = rgb(colour(`--c-${category}`));
        const mixed = [0, 0.14, -0.1, 0.24].map((shift) =>
          base.map((value) => Math.round(shift >= 0 ? value + (255 - value) * shift : value * (1 + shift))),
        );
        // One ink for all tints: the one that can be read on the worst of them.
        const lights = mixed.map(luminance);
        const ink = (Math.min(...lights) + 0.05) / 0.058 > 1.05 / (Math.max(...lights) + 0.05) ? "#0d1720" : "#fff";
        return [category, mixed.map((fill) => ({ fill: `rgb(${fill})`, ink }))];
      }),
    );
  }

  // Where each lane and track stands, from the top of the scrolled content.
  layOut() {
    let y = AXIS;
    this.heads = [];
    this.tops = new Map();
    for (const lane of this.model.lanes) {
      if (this.hidden.has(lane.index)) continue;
      this.heads.push({ lane, y });
      y += LANE_HEAD;
      this.model.tracks.forEach((track, t) => {
        if (track.lane !== lane.index) return;
        this.tops.set(t, y);
        y += ROW;
      });
      y += 6;
    }
    this.contentHeight = Math.max(y, AXIS + 60);
  }

  resize(width, height) {
    this.width = width;
    this.height = height;
    for (const [canvas, tall] of [
      [this.canvas, height],
      [this.strip, STRIP],
    ]) {
      const ratio = devicePixelRatio || 1;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(tall * ratio);
      canvas.style.setProperty("width", `${width}px`);
      canvas.style.setProperty("height", `${tall}px`);
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    this.busy = null;
    this.request();
  }

  request() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
      if (this.ondraw) this.ondraw();
    });
  }

  trackAt(y) {
    for (const [t, top] of this.tops) {
      if (y + this.top >= top && y + this.top < top + ROW) return t;
    }
    return -1;
  }

  hit(x, y) {
    if (y < AXIS) return -1;
    const t = this.trackAt(y);
    if (t < 0) return -1;
    return this.model.eventAt(
      this.model.tracks[t],
      this.timeAt(x),
      ((this.view.end - this.view.start) / this.width) * 3,
    );
  }

  tint(i) {
    const tints = this.tints.get(categoryClass(this.model.categoryOf(i)));
    return tints[Math.abs(this.model.name[i]) % tints.length];
  }

  label(context, name, width) {
    let measured = this.labelWidths.get(name);
    if (measured === undefined) {
      measured = context.measureText(name).width;
      this.labelWidths.set(name, measured);
    }
    if (measured <= width) return name;
    const kept = Math.floor((name.length * (width - 8)) / measured);
    return kept >= 3 ? `${name.slice(0, kept)}…` : "";
  }

  draw() {
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, this.width, this.height);
    context.fillStyle = this.c.raised;
    context.fillRect(0, 0, this.width, this.height);
    this.drawGrid(context);
    for (const { lane, y } of this.heads) this.drawHead(context, lane, y - this.top);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const dim = Boolean(this.model.matches);
    for (const [t, top] of this.tops) {
      const y = top - this.top;
      if (y + ROW < AXIS || y > this.height) continue;
      if (dim) {
        this.drawTrack(context, this.model.tracks[t], y, 0);
        this.drawTrack(context, this.model.tracks[t], y, 1);
      } else this.drawTrack(context, this.model.tracks[t], y, -1);
    }
    this.drawSelection(context);
    this.drawAxis(context);
    this.drawStrip();
  }

  // which: -1 all, 0 those that a search did not find (pale), 1 those that it found.
  drawTrack(context, track, y, which) {
    const { model } = this;
    const scale = this.width / (this.view.end - this.view.start);
    const { start: from, end: to } = this.view;
    let lastPixel = -1;
    context.globalAlpha = which === 0 ? 0.22 : 1;
    for (let k = model.placeAt(track, from); k < track.members.length; k += 1) {
      const i = track.members[k];
      if (model.start[i] > to) break;
      if (which >= 0 && model.matches[i] !== which) continue;
      const left = (model.start[i] - from) * scale;
      const right = left + model.duration[i] * scale;
      if (right - left < 1.5) {
        const pixel = Math.floor(left);
        if (pixel <= lastPixel) continue;
        lastPixel = pixel;
        context.fillStyle = this.tint(i).fill;
        context.fillRect(pixel, y + 1, 1, ROW - 2);
        continue;
      }
      const x = Math.max(left, -4);
      const width = Math.min(right, this.width + 4) - x;
      lastPixel = Math.floor(right) - 1;
      const tint = this.tint(i);
      context.fillStyle = tint.fill;
      context.fillRect(x, y + 1, width > 3 ? width - 1 : width, ROW - 2);
      if (width > 26 && which !== 0) {
        const at = Math.max(x, 0) + 4;
        const label = this.label(context, model.nameOf(i), Math.min(right, this.width) - at - 4);
        if (label) {
          context.fillStyle = tint.ink;
          context.fillText(label, at, y + ROW / 2 + 0.5);
        }
      }
    }
    context.globalAlpha = 1;
  }

  drawHead(context, lane, y) {
    if (y + LANE_HEAD < AXIS || y > this.height) return;
    context.fillStyle = this.c.panel;
    context.fillRect(0, y, this.width, LANE_HEAD - 2);
    context.fillStyle = this.c.dim;
    context.font = "600 12px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillText(
      this.label(context, `${lane.kind === "device" ? "Device" : "Host"} · ${lane.name}`, this.width - 16),
      8,
      y + LANE_HEAD / 2 - 1,
    );
  }

  axisTicks() {
    const marks = ticks(this.view.start, this.view.end, Math.max(2, this.width / 130));
    return { marks, labels: timeLabels(marks) };
  }

  drawGrid(context) {
    context.fillStyle = this.c.line;
    for (const mark of this.axisTicks().marks) context.fillRect(Math.round(this.xOf(mark)), AXIS, 1, this.height);
  }

  drawAxis(context) {
    context.fillStyle = this.c.raised;
    context.fillRect(0, 0, this.width, AXIS);
    context.fillStyle = this.c.strong;
    context.fillRect(0, AXIS - 1, this.width, 1);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const { marks, labels } = this.axisTicks();
    marks.forEach((mark, i) => {
      const x = this.xOf(mark);
      const width = context.measureText(labels[i]).width;
      context.fillStyle = this.c.strong;
      context.fillRect(Math.round(x), AXIS - 6, 1, 6);
      context.fillStyle = this.c.dim;
      if (x >= 0 && x + 4 + width < this.width) context.fillText(labels[i], x + 4, AXIS / 2 - 1);
    });
  }

  box(i) {
    const top = this.tops.get(this.model.trackOf[i]);
    if (top === undefined) return null;
    const x = this.xOf(this.model.start[i]);
    return { x, y: top - this.top, width: Math.max(3, this.xOf(this.model.start[i] + this.model.duration[i]) - x) };
  }

  drawSelection(context) {
    if (this.selected < 0) return;
    for (const { event, forward } of this.model.links.get(this.selected) || []) {
      this.drawArrow(context, forward ? this.selected : event, forward ? event : this.selected);
    }
    const box = this.box(this.selected);
    if (!box) return;
    context.strokeStyle = this.c.ink;
    context.lineWidth = 2;
    context.strokeRect(
      Math.max(-4, box.x) - 1,
      box.y,
      Math.min(box.x + box.width, this.width + 4) - Math.max(-4, box.x) + 1,
      ROW,
    );
  }

  drawArrow(context, from, to) {
    const [a, b] = [this.box(from), this.box(to)];
    if (!a || !b) return;
    const down = b.y >= a.y;
    const [x1, y1, x2, y2] = [a.x + 1, down ? a.y + ROW : a.y, b.x + 1, down ? b.y : b.y + ROW];
    if (Math.max(Math.abs(x1), Math.abs(x2)) > 1e6) return;
    const bend = Math.max(18, Math.abs(y2 - y1) / 2) * (down ? 1 : -1);
    context.lineCap = "round";
    for (const [style, width] of [
      [this.c.raised, 5],
      [this.c.ink, 1.8],
    ]) {
      context.strokeStyle = style;
      context.fillStyle = style;
      context.lineWidth = width;
      context.beginPath();
      context.moveTo(x1, y1);
      context.bezierCurveTo(x1, y1 + bend, x2, y2 - bend, x2, y2);
      context.stroke();
    }
    const tip = down ? -8 : 8;
    context.beginPath();
    context.moveTo(x2, y2);
    context.lineTo(x2 - 5, y2 + tip);
    context.lineTo(x2 + 5, y2 + tip);
    context.fill();
  }

  // How busy each pixel of the strip is: devices, and work of the host (not what frames it, as steps do).
  busyness() {
    const { model, width } = this;
    const scale = width / (model.last - model.first);
    const busy = { host: new Float64Array(width + 1), device: new Float64Array(width + 1) };
    const kinds = new Map(model.lanes.map((lane) => [lane.index, lane.kind]));
    for (let i = 0; i < model.count; i += 1) {
      const row = busy[kinds.get(model.lane[i])];
      if (!row || FRAMES.has(model.categoryOf(i))) continue;
      const left = (model.start[i] - model.first) * scale;
      const right = left + model.duration[i] * scale;
      for (let pixel = Math.floor(left); pixel <= right && pixel <= width; pixel += 1) {
        row[pixel] += Math.min(right, pixel + 1) - Math.max(left, pixel);
      }
    }
    return busy;
  }

  drawStrip() {
    const context = this.strip.getContext("2d");
    this.busy ||= this.busyness();
    context.fillStyle = this.c.panel;
    context.fillRect(0, 0, this.width, STRIP);
    const half = STRIP / 2 - 3;
    for (const [kind, base, category] of [
      ["host", STRIP / 2 - 1, "host"],
      ["device", STRIP - 2, "kernel"],
    ]) {
      context.fillStyle = this.tints.get(category)[0].fill;
      this.busy[kind].forEach((part, pixel) => {
        if (part <= 0) return;
        const tall = Math.max(1.5, half * Math.min(1, part));
        context.fillRect(pixel, base - tall, 1, tall);
      });
    }
    const whole = this.model.last - this.model.first;
    const left = ((this.view.start - this.model.first) / whole) * this.width;
    const right = ((this.view.end - this.model.first) / whole) * this.width;
    context.globalAlpha = 0.65;
    context.fillStyle = this.c.panel;
    context.fillRect(0, 0, Math.max(0, left), STRIP);
    context.fillRect(right, 0, this.width, STRIP);
    context.globalAlpha = 1;
    context.strokeStyle = this.c.accent;
    context.lineWidth = 2;
    const [a, b] = [Math.max(1, left), Math.min(this.width - 1, right)];
    context.strokeRect(a, 1, Math.max(2, b - a), STRIP - 2);
  }
}
