// The embedded data, and a report in which every section is there whatever the file lacked.
const CATEGORIES = ["kernel", "copy", "communication", "runtime", "host", "other", "gap"];
const COLOURED = new Set([...CATEGORIES, "annotation", "call", "execution", "step", "memory", "python"]);
const CATEGORY_TEXT = {
  kernel: "operators of the engine, kernels of a device",
  copy: "copies and fills",
  communication: "work of several processes together",
  runtime: "the engine between its operators",
  host: "operators of PyTorch",
  other: "Python around compiled models",
  gap: "nothing that was recorded",
};

const list = (value) => (Array.isArray(value) ? value : []);
const object = (value) => (value && typeof value === "object" && !Array.isArray(value) ? value : {});
const number = (value) => (isNumber(value) ? value : null);
const text = (value) => (value === null || value === undefined || value === "" ? null : String(value));
const objects = (value) => list(value).filter((item) => item && typeof item === "object");

function categoryClass(category) {
  const name = String(category).toLowerCase();
  return COLOURED.has(name) ? name : "other";
}

async function readEmbedded() {
  const base64 = document.getElementById("data").textContent;
  if (typeof DecompressionStream === "undefined") {
    throw new Error(
      "This browser cannot unpack the data (DecompressionStream is missing): any browser of 2023 or later can.",
    );
  }
  const packed = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function completeReport(raw) {
  const report = object(raw);
  const overview = object(report.overview);
  const timeline = object(report.timeline);
  const memory = object(report.memory);
  const curve = object(memory.curve);
  const roofline = object(report.roofline);
  const flows = object(timeline.flows);
  const found = list(overview.categories).map(String);
  const tree = object(report.modules);
  return {
    raw: report,
    title: text(report.title) || "Profile",
    notes: list(report.page_notes).map(String),
    source: object(report.source),
    machine: object(report.machine),
    versions: object(report.versions),
    time: object(report.time),
    health: object(report.health),
    energy: object(report.energy),
    overview: {
      note: text(overview.note),
      categories: found.length ? found : CATEGORIES,
      total: object(overview.total),
      steps: objects(overview.steps),
      findings: objects(overview.findings),
      phases: objects(overview.phases),
    },
    operators: objects(report.operators),
    operators_by_shape: objects(report.operators_by_shape),
    kernels: objects(report.kernels),
    runtime: objects(report.runtime),
    timeline: {
      lanes: list(timeline.lanes).map(object),
      names: list(timeline.names).map((name) => text(name) || "(no name)"),
      categories: list(timeline.categories).map((name) => text(name) || "other"),
      events: object(timeline.events),
      from: list(flows.from),
      to: list(flows.to),
      sites: list(timeline.sites).map(object),
      total: number(timeline.total),
    },
    memory: {
      times: list(curve.time_ns),
      allocated: list(curve.allocated),
      reserved: list(curve.reserved),
      peak: number(memory.peak_bytes),
      peakTime: number(memory.peak_time_ns),
      events: objects(memory.events),
      total: number(memory.total_events),
      reason: text(memory.reason),
    },
    modules: Object.keys(tree).length ? tree : null,
    roofline: {
      roofs: objects(roofline.roofs),
      points: objects(roofline.points),
      threads: number(roofline.num_threads),
      reason: text(roofline.reason),
    },
  };
}
