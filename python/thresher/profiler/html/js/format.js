// Numbers as people read them. What is not known is a dash, never 0.
const UNKNOWN = "–";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const fixed = [0, 1, 2, 3].map(
  (digits) => new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }),
);

// Three significant digits: 1.23, 12.3, 123, 1,234.
function digits(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 0.01) return value.toPrecision(2);
  if (size < 9.995) return fixed[2].format(value);
  if (size < 99.95) return fixed[1].format(value);
  return fixed[0].format(value);
}

function scaled(value, units, step) {
  let size = Math.abs(value);
  let unit = 0;
  while (unit < units.length - 1 && size >= step * 0.9995) {
    size /= step;
    unit += 1;
  }
  const sign = value < 0 ? "−" : "";
  return [sign + (unit === 0 && Number.isInteger(size) ? grouped.format(size) : digits(size)), units[unit]];
}

const TIME_UNITS = ["ns", "µs", "ms", "s"];
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const WORK_UNITS = ["", "K", "M", "G", "T", "P"];

// A kind of value: how to split it into number and unit, and how to say the exact value.
const KINDS = {
  time: { parts: (v) => scaled(v, TIME_UNITS, 1000), exact: (v) => `${grouped.format(v)} ns` },
  bytes: { parts: (v) => scaled(v, BYTE_UNITS, 1024), exact: (v) => `${grouped.format(v)} bytes` },
  count: { parts: (v) => [grouped.format(v), ""], exact: null },
  flops: {
    parts: (v) => {
      const [n, u] = scaled(v, WORK_UNITS, 1000);
      return [n, `${u}FLOP`];
    },
    exact: (v) => `${grouped.format(v)} FLOP`,
  },
  rate: { parts: (v) => [digits(v), ""], exact: (v) => String(v) },
  percent: { parts: (v) => [v !== 0 && Math.abs(v) < 0.05 ? "<0.1" : fixed[1].format(v), "%"], exact: (v) => `${v} %` },
  ratio: { parts: (v) => [`${digits(v)}×`, ""], exact: (v) => String(v) },
};

function show(kind, value) {
  if (!isNumber(value)) return UNKNOWN;
  const [number, unit] = KINDS[kind].parts(value);
  return unit ? `${number} ${unit}` : number;
}

const time = (value) => show("time", value);
const bytes = (value) => show("bytes", value);
const count = (value) => show("count", value);
const percent = (value) => show("percent", value);

function exact(kind, value) {
  return isNumber(value) && KINDS[kind].exact ? KINDS[kind].exact(value) : null;
}

function plural(number, one, many) {
  return `${count(number)} ${number === 1 ? one : many || `${one}s`}`;
}

function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

function share(part, whole) {
  return isNumber(part) && isNumber(whole) && whole > 0 ? (100 * part) / whole : null;
}

// Field of a CSV file. A text that a spreadsheet would take for a formula gets an apostrophe.
function csvField(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  let text = String(value);
  if (/^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
