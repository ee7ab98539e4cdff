// Elements are only ever made of nodes and text, never of markup: a name is shown as it is, whatever it holds.
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) node.style.setProperty(key, text);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(3)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Says something to screen readers without moving the focus.
function announce(text) {
  document.getElementById("status").textContent = text;
}

function note(kind, ...children) {
  return h("p", { class: `note ${kind}` }, ...children);
}

// A text in which `backticks` mark code.
function withCode(text) {
  return String(text)
    .split(/`([^`]+)`/)
    .map((part, i) => (i % 2 ? h("code", {}, part) : part));
}

function empty(text) {
  return h("p", { class: "empty" }, text);
}

// Terms and their values; entries whose value is null are left out.
function details(entries) {
  const known = entries.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h(
    "dl",
    { class: "details" },
    known.map(([term, value]) => [h("dt", {}, term), h("dd", {}, value)]),
  );
}

function swatch(category) {
  return h("span", { class: `swatch fill-${categoryClass(category)}`, "aria-hidden": "true" });
}

// Calls draw(width) now and whenever the width of the node changes.
function onWidth(node, draw) {
  let last = 0;
  const watch = new ResizeObserver(() => {
    const width = node.clientWidth;
    if (!node.isConnected || width === 0 || width === last) return;
    last = width;
    draw(width);
  });
  watch.observe(node);
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { class: "hidden", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}

function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
