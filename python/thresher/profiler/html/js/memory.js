// Memory over time, the peak marked, and the events behind it.

function memoryPage(main) {
  const { memory } = state.report;
  main.append(h("h1", { tabindex: "-1" }, "Memory"));
  if (!memory.times.length && !memory.events.length) {
    main.append(
      empty(memory.reason ? `Nothing about memory is known: ${memory.reason}` : "The report has no memory data."),
    );
    return;
  }
  main.append(
    h(
      "dl",
      { class: "cards" },
      card("Peak", bytes(memory.peak), isNumber(memory.peakTime) ? `at ${time(memory.peakTime)}` : null),
      card("At the end", bytes(number(memory.allocated.at(-1))), null),
      card(
        "Most reserved",
        bytes(memory.reserved.some(isNumber) ? memory.reserved.reduce((a, b) => Math.max(a, b || 0), 0) : null),
        null,
      ),
      card("Events", count(memory.total ?? memory.events.length), null),
    ),
  );
  if (memory.reason) main.append(note("info", memory.reason));
  if (memory.times.length) main.append(memoryCurve(memory));
  if (memory.events.length) main.append(memoryEvents(memory));
}

function memoryCurve(memory) {
  const chart = h("div", { class: "chart" });
  const readout = h("p", { class: "readout" });
  const hasReserved = memory.reserved.some(isNumber);
  const sample = (className) =>
    svg(
      "svg",
      { class: "swatch", viewBox: "0 0 16 16", "aria-hidden": "true" },
      svg("line", { class: className, x1: 0, x2: 16, y1: 8, y2: 8 }),
    );
  const section = h(
    "section",
    { class: "panel", "aria-label": "Memory over time" },
    h("h2", {}, "Memory over time"),
    h(
      "ul",
      { class: "legend" },
      h("li", {}, sample("memory-allocated"), "allocated"),
      hasReserved ? h("li", {}, sample("memory-reserved"), "reserved") : null,
      isNumber(memory.peak)
        ? h(
            "li",
            {},
            svg(
              "svg",
              { class: "swatch", viewBox: "0 0 16 16", "aria-hidden": "true" },
              svg("circle", { class: "peak", cx: 8, cy: 8, r: 5 }),
            ),
            "peak",
          )
        : null,
    ),
    chart,
    readout,
  );
  onWidth(chart, (width) => drawMemory(chart, readout, memory, hasReserved, width));
  return section;
}

// A stair of at most four points a pixel, so that no peak between two pixels is lost.
function stair(times, values, x, y) {
  const parts = [];
  let pixel = null;
  let low = 0;
  let high = 0;
  let last = null;
  const flush = () => {
    if (pixel !== null && low !== high) parts.push(`V${y(low).toFixed(1)}V${y(high).toFixed(1)}`);
    if (last !== null) parts.push(`V${y(last).toFixed(1)}`);
  };
  times.forEach((when, i) => {
    const value = values[i];
    if (!isNumber(value) || !isNumber(when)) return;
    const at = Math.round(x(when));
    if (pixel === null) {
      parts.push(`M${at} ${y(value).toFixed(1)}`);
    } else if (at !== pixel) {
      flush();
      parts.push(`H${at}`);
    }
    if (at !== pixel) [pixel, low, high] = [at, value, value];
    [low, high, last] = [Math.min(low, value), Math.max(high, value), value];
  });
  flush();
  return parts.join("");
}

function drawMemory(chart, readout, memory, hasReserved, width) {
  const { times, allocated, reserved } = memory;
  const height = 300;
  const [left, right, top, bottom] = [74, width - 12, 20, height - 28];
  const first = times[0] ?? 0;
  const last = Math.max(times.at(-1) ?? 1, number(state.report.time.wall_ns) ?? 0, first + 1);
  const largest = [...allocated, ...reserved].reduce((a, b) => Math.max(a, b || 0), memory.peak || 1);
  const x = linear(Math.min(0, first), last, left, right);
  // Ticks in round numbers of binary units.
  const unit = 1024 ** Math.max(0, Math.min(4, Math.floor(Math.log2(largest) / 10)));
  const marks = ticks(0, largest / unit, 4).map((mark) => mark * unit);
  const y = linear(0, largest * 1.06, bottom, top);
  const xMarks = ticks(Math.min(0, first), last, Math.max(2, width / 140));
  const xLabels = timeLabels(xMarks);
  const line = stair(times, allocated, x, y);
  const startX = Math.round(x(first));
  // What is held at the last event is held until the end.
  const endX = Math.round(x(last));
  const cursor = svg("line", { class: "cursor", y1: top, y2: bottom, visibility: "hidden" });
  const peakX = isNumber(memory.peakTime) ? x(memory.peakTime) : null;
  const drawing = svg(
    "svg",
    {
      height,
      viewBox: `0 0 ${width} ${height}`,
      tabindex: "0",
      role: "img",
      "aria-label": `Memory over time: peak ${bytes(memory.peak)} at ${time(memory.peakTime)}; arrow keys read the curve`,
    },
    marks.map((mark) => [
      svg("line", { class: "grid", x1: left, x2: right, y1: y(mark), y2: y(mark) }),
      svg(
        "text",
        { x: left - 8, y: y(mark) + 4, "text-anchor": "end" },
        `${Number((mark / unit).toPrecision(3))} ${BYTE_UNITS[Math.round(Math.log2(unit) / 10)]}`,
      ),
    ]),
    xMarks.map((mark, i) =>
      svg(
        "text",
        {
          x: x(mark),
          y: height - 8,
          "text-anchor": x(mark) < left + 20 ? "start" : x(mark) > right - 25 ? "end" : "middle",
        },
        xLabels[i],
      ),
    ),
    svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
    line ? svg("path", { class: "memory-area", d: `${line}H${endX}V${bottom}H${startX}z` }) : null,
    hasReserved ? svg("path", { class: "memory-reserved", d: `${stair(times, reserved, x, y)}H${endX}` }) : null,
    svg("path", { class: "memory-allocated", d: line && `${line}H${endX}` }),
    isNumber(memory.peak) && peakX !== null
      ? [
          svg("circle", { class: "peak", cx: peakX, cy: y(memory.peak), r: 5 }),
          svg(
            "text",
            {
              class: "strong",
              x: peakX,
              y: y(memory.peak) - 10,
              "text-anchor": peakX > width * 0.75 ? "end" : peakX < width * 0.25 ? "start" : "middle",
            },
            `peak ${bytes(memory.peak)}`,
          ),
        ]
      : null,
    cursor,
  );
  let at = -1;
  const choose = (i) => {
    at = Math.max(0, Math.min(times.length - 1, i));
    cursor.setAttribute("x1", x(times[at]));
    cursor.setAttribute("x2", x(times[at]));
    cursor.setAttribute("visibility", "visible");
    const also = isNumber(reserved[at]) ? `, ${bytes(reserved[at])} reserved` : "";
    readout.textContent = `${time(times[at])}: ${bytes(allocated[at])} allocated${also}`;
  };
  drawing.addEventListener("pointermove", (event) => {
    const px = event.clientX - drawing.getBoundingClientRect().left;
    let [low, high] = [0, times.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (x(times[middle]) <= px) low = middle;
      else high = middle - 1;
    }
    choose(low);
  });
  drawing.addEventListener("keydown", (event) => {
    const jump = event.shiftKey ? Math.ceil(times.length / 50) : 1;
    const to = { ArrowRight: at + jump, ArrowLeft: at - jump, Home: 0, End: times.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(to);
    announce(readout.textContent);
  });
  readout.textContent = "Point at the curve, or use the arrow keys, to read it.";
  chart.replaceChildren(drawing);
}

function memoryEvents(memory) {
  const { events } = memory;
  const table = new Table({
    caption: "Memory events",
    sort: "time_ns",
    descending: false,
    columns: [
      { key: "time_ns", label: "Time", kind: "time", value: (row) => number(row.time_ns) },
      { key: "kind", label: "Kind", kind: "text", value: (row) => text(row.kind) },
      { key: "bytes", label: "Size", kind: "bytes", value: (row) => number(row.bytes) },
      { key: "allocated", label: "Allocated after", kind: "bytes", value: (row) => number(row.allocated) },
      { key: "name", label: "Name", kind: "text", class: "wrap", value: (row) => text(row.name) },
      {
        key: "address",
        label: "Address",
        kind: "text",
        value: (row) => row.address ?? null,
        cell: (row) => h("code", { class: "whole" }, hexadecimal(row.address)),
      },
    ],
  });
  const listing = new Listing({
    name: "memory",
    table,
    rows: events,
    placeholder: "name, kind, address",
    searchText: (row) => [text(row.name), text(row.kind), hexadecimal(row.address)],
    choices: [{ key: "kind", label: "Kind", value: (row) => text(row.kind) }],
  });
  const missing =
    isNumber(memory.total) && memory.total > events.length
      ? h(
          "p",
          { class: "dim" },
          `${count(events.length)} of ${count(memory.total)} events are listed; the curve counts all of them.`,
        )
      : null;
  return h("section", { "aria-label": "Memory events" }, h("h2", {}, "Events"), missing, listing.node);
}

function hexadecimal(address) {
  if (address === null || address === undefined || address === "") return UNKNOWN;
  try {
    return `0x${BigInt(address).toString(16)}`;
  } catch {
    return String(address);
  }
}
