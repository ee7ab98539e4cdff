// Start: read the data, then show the page that the address names.
const PAGES = {
  overview: ["Overview", overviewPage],
  operators: ["Operators", operatorsPage],
  kernels: ["Kernels", kernelsPage],
  runtime: ["Runtime", runtimePage],
  timeline: ["Timeline", timelinePage],
  memory: ["Memory", memoryPage],
  modules: ["Modules", modulesPage],
  roofline: ["Roofline", rooflinePage],
  difference: ["Difference", differencePage],
};

function pageNames() {
  const missing = { difference: !state.diff, runtime: !state.report.runtime.length };
  return Object.keys(PAGES).filter((name) => !missing[name]);
}

function showPage(focus) {
  const wanted = readAddress();
  state.page = pageNames().includes(wanted.page) ? wanted.page : "overview";
  state.settings = wanted.settings;
  const [label, draw] = PAGES[state.page];
  const main = document.getElementById("main");
  main.replaceChildren();
  for (const link of document.querySelectorAll("#pages a")) {
    if (link.dataset.page === state.page) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${label} – ${state.report.title}`;
  document.documentElement.dataset.page = state.page;
  try {
    draw(main);
  } catch (error) {
    console.error(error);
    main.append(
      note(
        "bad",
        h("strong", {}, "This page could not be drawn. "),
        `${error.message}. The other pages are not affected.`,
      ),
    );
  }
  if (focus) {
    scrollTo(0, 0);
    main.querySelector("h1")?.focus({ preventScroll: true });
  }
}

function makeHeader() {
  const { report } = state;
  document
    .getElementById("pages")
    .replaceChildren(
      ...pageNames().map((name) => h("li", {}, h("a", { href: address(name), "data-page": name }, PAGES[name][0]))),
    );
  document.getElementById("source").textContent = [
    text(report.machine.cpu),
    isNumber(report.machine.num_threads) ? plural(report.machine.num_threads, "thread") : null,
    text(report.versions.thresher) ? `thresher ${report.versions.thresher}` : null,
    text(report.versions.torch) ? `torch ${report.versions.torch}` : null,
  ]
    .filter(Boolean)
    .join(" · ");
  const select = h(
    "select",
    { onchange: () => chooseTheme(select.value) },
    [
      ["auto", "as the system"],
      ["light", "light"],
      ["dark", "dark"],
    ].map(([value, label]) => h("option", { value }, label)),
  );
  select.value = themeChoice;
  const theme = h("label", { class: "dim" }, "Colours ", select);
  document
    .getElementById("actions")
    .replaceChildren(
      theme,
      h(
        "button",
        { type: "button", onclick: () => download("report.json", "application/json", JSON.stringify(report.raw)) },
        "Save JSON",
      ),
    );
}

async function start() {
  startTheme();
  try {
    const { report, diff } = await readEmbedded();
    state.report = completeReport(report);
    state.diff = diff && typeof diff === "object" ? diff : null;
    makeHeader();
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault();
      document.getElementById("main").focus();
    });
    addEventListener("hashchange", () => showPage(true));
    showPage(false);
  } catch (error) {
    console.error(error);
    document
      .getElementById("main")
      .replaceChildren(note("bad", h("strong", {}, "The data of this page could not be read. "), error.message));
  }
  // When two frames have passed, what was made is on the screen.
  requestAnimationFrame(() =>
    requestAnimationFrame(() => {
      document.documentElement.dataset.ready = String(Math.round(performance.now()));
    }),
  );
}

start();
