// The page: which view is shown, what has changed since it was drawn, and the link.

import { showBackend } from "./backend.js";
import { redraw, renderChart } from "./chart.js";
import { showDecision } from "./decision.js";
import { bindDecisions, renderDecisions } from "./decisions.js";
import { byId, el, setText } from "./dom.js";
import { renderFleet } from "./fleet.js";
import { hasInsights, renderInsights } from "./insights.js";
import { renderPrefixes } from "./prefixes.js";
import { call, token } from "./server.js";
import { Store } from "./store.js";
import { Stream } from "./stream.js";
import { renderTotals, renderWarnings } from "./totals.js";

const VIEWS = ["overview", "prefixes", "decisions", "insights"];
const CONDUCTOR_MS = 5000;

const dirty = new Set();
let isAsked = false;
let view = "overview";
let links = [];

const store = new Store(touch);
const stream = new Stream((event, data) => store.take(event, data), showLink);

// Each part of a view, by what it is made of.
const PARTS = {
  overview: { state: [renderTotals, renderWarnings, renderFleet], history: [renderChart] },
  prefixes: { view: [renderPrefixes] },
  decisions: { decisions: [renderDecisions] },
  insights: { state: [(all) => renderInsights(all, askConductor)] },
};

// A hidden tab gets no frames, so it draws nothing until it is looked at.
function touch(topic) {
  dirty.add(topic);
  if (isAsked) return;
  isAsked = true;
  requestAnimationFrame(() => {
    isAsked = false;
    const topics = [...dirty];
    dirty.clear();
    draw(topics);
  });
}

function draw(topics) {
  if (!store.state) return;
  setText(byId("policy"), `${store.state.policy} · v${store.state.version}`);
  document.querySelector("nav a[href='#insights']").hidden = !hasInsights(store);
  for (const topic of topics) for (const render of PARTS[view][topic] ?? []) render(store);
}

const drawAll = () => draw(["state", "history", "decisions", "view"]);

// Links: where the page is, and the panel that is open on top of it.

function route() {
  const [name, id] = location.hash.slice(1).split("/");
  if (id !== undefined) return openPanel(name, decodeURIComponent(id));
  const next = VIEWS.includes(name) ? name : "overview";
  byId("panel").close();
  if (name === "main") return;
  show(next);
}

function show(next) {
  const changed = next !== view;
  view = next;
  for (const one of VIEWS) byId(one).hidden = one !== view;
  for (const link of document.querySelectorAll("nav a"))
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  if (changed || !stream.path) {
    if (changed) scrollTo(0, 0);
    connect();
  }
  drawAll();
}

// Only a page that shows the prefixes makes the server survey them.
function connect() {
  const path = view === "prefixes" ? "/api/stream?view=1" : "/api/stream";
  if (stream.path !== path) stream.open(path);
}

async function openPanel(kind, id) {
  if (!stream.path) show(kind === "decision" ? "decisions" : "overview");
  Object.assign(byId("panel").dataset, { kind, id });
  try {
    if (kind === "decision") await showDecision(id, fillPanel);
    else if (store.state) showBackend(id, store, fillPanel);
    else setTimeout(route, 200);
  } catch (error) {
    fillPanel("Not found", [el("p", {}, error.message)]);
  }
}

function fillPanel(title, content) {
  const panel = byId("panel");
  const close = el("button", { type: "button", class: "icon", "aria-label": "Close", onclick: () => panel.close() }, "✕");
  panel.replaceChildren(el("header", {}, el("h2", { id: "panel-title", tabindex: -1, autofocus: true }, title), close), el("div", { class: "body" }, content));
  if (!panel.open) panel.showModal();
}

byId("panel").addEventListener("close", () => {
  if (location.hash.includes("/")) history.pushState(null, "", `#${view}`);
  const { kind, id } = byId("panel").dataset;
  document.querySelector(`[href="#${kind}/${CSS.escape(encodeURIComponent(id))}"]`)?.focus();
});
byId("panel").addEventListener("click", (event) => event.target === event.currentTarget && event.currentTarget.close());

// The link to the server.

function showLink(state, why = "") {
  const pill = byId("link");
  if (state === "denied") return askToken();
  pill.dataset.state = state;
  setText(pill, state === "live" ? "Live" : "Connection lost, trying again");
  pill.title = why;
  document.body.classList.toggle("stale", state === "lost");
}

function askToken() {
  const wrong = token.get() !== null;
  token.drop();
  const field = el("input", { type: "password", autocomplete: "current-password", required: true, "aria-label": "Admin token" });
  const enter = (event) => {
    event.preventDefault();
    token.set(field.value.trim());
    document.querySelector(".login").remove();
    byId("main").inert = false;
    stream.open(stream.path);
  };
  byId("link").dataset.state = "denied";
  setText(byId("link"), "Locked");
  byId("main").inert = true;
  const form = el(
    "form",
    { class: "login card", onsubmit: enter },
    el("h2", {}, "This dashboard is locked"),
    el("p", {}, "Enter the admin token: ", el("code", {}, "admin_token"), " in the configuration, or ", el("code", {}, "WARMROUTE_ADMIN_TOKEN"), ". It is kept in this tab only."),
    wrong ? el("p", { class: "wrong", role: "alert" }, "That was not the token.") : null,
    field,
    el("button", { type: "submit", class: "primary" }, "Unlock"),
  );
  document.querySelector(".login")?.remove();
  document.body.append(form);
  field.focus();
}

// Asked only of a server that lists it among its links.
async function askConductor() {
  const isWanted = view === "insights" || view === "prefixes" || !links.length;
  if (!isWanted || document.hidden || !store.state) return;
  links = links.length ? links : (await call("/api").catch(() => null))?.links ?? [];
  if (!links.includes("/api/conductor")) return;
  store.conductor = await call("/api/conductor").catch(() => null);
  touch("state");
}

// Colours.

const THEMES = ["", "light", "dark"];

function paintTheme() {
  const theme = document.documentElement.dataset.theme ?? "";
  byId("theme").textContent = { "": "◐", light: "☀", dark: "☾" }[theme];
  byId("theme").setAttribute("aria-label", `Colours: ${theme || "as the system"}`);
  redraw();
  drawAll();
}

byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const next = THEMES[(THEMES.indexOf(root.dataset.theme ?? "") + 1) % THEMES.length];
  if (next) root.dataset.theme = next;
  else delete root.dataset.theme;
  if (next) localStorage.setItem("warmroute.theme", next);
  else localStorage.removeItem("warmroute.theme");
  paintTheme();
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintTheme);
addEventListener("hashchange", route);
addEventListener("resize", () => touch("history"));
document.addEventListener("warmroute:sorted", () => touch("state"));
byId("fleet-filter").addEventListener("input", () => touch("state"));
bindDecisions(() => touch("decisions"));
setInterval(askConductor, CONDUCTOR_MS);
setTimeout(askConductor, 600);
paintTheme();
route();
