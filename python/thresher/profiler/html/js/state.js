// Which page is shown, its settings (kept in the address, so a link points at them) and the colours.
const state = { report: null, diff: null, page: "overview", settings: {} };

function readAddress() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { page: path, settings: Object.fromEntries(new URLSearchParams(query || "")) };
}

function address(page, settings = {}) {
  const query = new URLSearchParams(
    Object.entries(settings).filter(([, value]) => value !== null && value !== undefined && value !== ""),
  );
  return `#/${page}${query.size ? `?${query}` : ""}`;
}

// Keeps a setting of the present page in its address without a new entry in the history.
function remember(changes) {
  state.settings = Object.fromEntries(
    Object.entries({ ...state.settings, ...changes }).filter(
      ([, value]) => value !== null && value !== undefined && value !== "",
    ),
  );
  try {
    history.replaceState(null, "", address(state.page, state.settings));
  } catch {
    // Some browsers refuse this for files; the page works without.
  }
}

const themeListeners = new Set();
const darkSystem = matchMedia("(prefers-color-scheme: dark)");
let themeChoice = "auto";
let printing = false;

function applyTheme() {
  const dark = !printing && (themeChoice === "dark" || (themeChoice === "auto" && darkSystem.matches));
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  for (const listener of themeListeners) listener();
}

function chooseTheme(choice) {
  themeChoice = ["auto", "light", "dark"].includes(choice) ? choice : "auto";
  try {
    localStorage.setItem("thresher-theme", themeChoice);
  } catch {
    // Storage may be switched off; then the choice lasts as long as the page.
  }
  applyTheme();
}

function startTheme() {
  try {
    themeChoice = localStorage.getItem("thresher-theme") || "auto";
  } catch {
    themeChoice = "auto";
  }
  darkSystem.addEventListener("change", applyTheme);
  addEventListener("beforeprint", () => {
    printing = true;
    applyTheme();
  });
  addEventListener("afterprint", () => {
    printing = false;
    applyTheme();
  });
  applyTheme();
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
