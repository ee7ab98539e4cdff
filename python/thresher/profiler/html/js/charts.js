// Scales and axes that the drawings share.

// Round steps (1, 2, 5 times a power of ten) between two values, about as many as wanted.
function ticks(low, high, wanted) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const raw = span / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const found = [];
  // Adding 0 turns a negative zero into zero.
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) found.push(i * step + 0);
  return found;
}

function powersOfTen(low, high) {
  const found = [];
  for (let power = Math.ceil(Math.log10(low) - 1e-9); 10 ** power <= high * 1.000001; power += 1)
    found.push(10 ** power);
  return found;
}

// Labels of an axis of times: one unit for all, as many digits as tell them apart.
function timeLabels(values) {
  const largest = Math.max(...values.map(Math.abs), 1);
  const unit = Math.min(3, Math.max(0, Math.floor(Math.log10(largest) / 3)));
  const scale = 1000 ** unit;
  const step = values.length > 1 ? Math.abs(values[1] - values[0]) / scale : 1;
  const places = Math.min(6, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)));
  const format = new Intl.NumberFormat("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
  return values.map((value) => `${format.format(value / scale)} ${TIME_UNITS[unit]}`);
}

function linear(from, to, low, high) {
  const factor = (high - low) / (to - from || 1);
  return (value) => low + (value - from) * factor;
}

function logarithmic(from, to, low, high) {
  const scale = linear(Math.log10(from), Math.log10(to), low, high);
  return (value) => scale(Math.log10(value));
}

// Roving focus: one of many nodes is in the tab order, arrow keys move to the others.
function roving(nodes, step) {
  nodes.forEach((node, i) => node.setAttribute("tabindex", i === 0 ? "0" : "-1"));
  return (event) => {
    const at = nodes.indexOf(event.target);
    const to = at < 0 ? -1 : step(event.key, at, nodes);
    if (to < 0 || to >= nodes.length || to === undefined) return;
    event.preventDefault();
    nodes[at].setAttribute("tabindex", "-1");
    nodes[to].setAttribute("tabindex", "0");
    nodes[to].focus();
  };
}

function alongLine(key, at, nodes) {
  if (key === "ArrowRight" || key === "ArrowDown") return at + 1;
  if (key === "ArrowLeft" || key === "ArrowUp") return at - 1;
  if (key === "Home") return 0;
  if (key === "End") return nodes.length - 1;
  return -1;
}
