// The page: which view, which scenario (or two), and when to ask the server. The address is the only state that lasts.

import * as api from "./api.js";
import { asker } from "./asking.js";
import { redrawAll, themeNow, warm } from "./chart.js";
import { chooseColumns } from "./columns.js";
import { compared } from "./compared.js";
import { announce, h, refill } from "./dom.js";
import { dropping } from "./drop.js";
import { learn } from "./fields.js";
import { fallbacksOf, form } from "./form.js";
import { labelled } from "./labels.js";
import { pane } from "./pane.js";
import { glanceAt, menu, sheet } from "./sheet.js";
import * as url from "./url.js";
import { VIEWS } from "./views.js";

const FILTERS = ["ran_on", "of_metric", "of_engine", "of_gpu", "of_speed", "of_fit"]; // of Accuracy
const OF_ONE_VIEW = ["run", "panel", "gpus", "context", "files", "verify", "measured", ...FILTERS]; // all else: every view's
const TRAFFIC = ["rate", "tokens_per_month", "input", "output", "slo", "offline", "trace", "columns", "arrivals"];
const DRAG_MS = 40; // between two askings while a slider moves

const main = document.getElementById("main");
const page = {
  catalog: null,
  view: null,
  labels: null,
  state: null,
  editing: "a",
  form: null,
  sheet: null,
  nowIn: null,
  panes: {},
  runs: {},
  answers: {},
  leave: null,
};

const fallbacks = () => page.view.defaults ?? fallbacksOf(page.view.groups ?? []);
const valuesOf = (which) => ({ ...fallbacks(), ...page.state.a, ...(which === "b" ? page.state.b : {}) });

// What differs from the view's own defaults, and what other views were told: all of it is in the link.
function given(values) {
  const own = fallbacks();
  return Object.fromEntries(Object.entries(values).filter(([name, value]) => value !== (own[name] ?? "")));
}

// What the form shows, and what the address may add to it in this view: a field that is hidden says nothing.
function saidOf(values) {
  const shown = page.view.groups.flatMap((group) => group.fields).filter((field) => field.when?.(values) ?? true);
  const ofLog = shown.some((field) => field.name === "trace") ? ["columns"] : [];
  const names = [...shown.map((field) => field.name), ...ofLog, ...(page.view.carried ?? []), "run"];
  return Object.fromEntries(names.map((name) => [name, values[name]]));
}

// ---- asking

function ask(which, { final, wait = 0 }) {
  page.runs[which]?.ask({ final, wait });
}

function running(which) {
  return asker({
    view: page.view,
    labels: page.labels,
    place: page.panes[which],
    values: () => saidOf(valuesOf(which)),
    catalog: page.catalog,
    answered(answer) {
      page.answers[which] = answer;
      page.form?.blame(null);
      differ();
      glanceAt(page.answers);
    },
    refused(error) {
      page.answers[which] = null;
      page.form?.blame(error);
      differ();
      glanceAt(page.answers);
    },
  });
}

function differ() {
  if (page.state.b) refill(page.difference, compared(page.labels, page.answers));
}

// ---- the form changes the scenario

function take(values) {
  const { trace, columns = "" } = valuesOf(page.editing);
  // What its columns are was said of one log, not of the next.
  const said = { columns: values.trace === undefined || values.trace === trace ? columns : "", ...values };
  const whole = page.editing === "a" ? { ...page.state.a, ...said } : differing(said);
  delete whole.run;
  page.state[page.editing] = page.editing === "a" ? given(whole) : whole;
}

function changed(values, final) {
  take(values);
  // What was simulated was another scenario: both go back to the quick answer until the reader asks again.
  const simulated = page.editing === "b" && page.state.a.run;
  delete page.state.a.run;
  (final ? url.commit : url.drag)(page.state, fallbacks());
  const wait = final ? 0 : DRAG_MS;
  ask(page.editing, { final: final && "changed", wait });
  // B says only how it differs, so a change of A is one of B too.
  if (page.state.b && page.editing === "a") ask("b", { wait });
  if (simulated) ask("a", { wait });
}

function differing(values) {
  const base = { columns: "", ...fallbacks(), ...page.state.a };
  return Object.fromEntries(Object.entries(values).filter(([name, value]) => value !== base[name]));
}

async function askForColumns() {
  const values = valuesOf(page.editing);
  const columns = await chooseColumns(values.trace, values.columns);
  if (columns !== null) changed({ ...values, columns }, true);
}

function submitted(values) {
  take(values);
  page.state.a.run = "1";
  page.sheet.close(); // what was asked for is to be seen
  url.commit(page.state, fallbacks());
  for (const which of page.state.b ? ["a", "b"] : ["a"]) ask(which, { final: "asked" });
}

function takePreset(preset) {
  const known = Object.keys(fallbacks());
  const inputs = page.view.fromPreset?.(preset.inputs) ?? preset.inputs;
  const taken = Object.fromEntries(
    Object.entries(inputs)
      .filter(([name]) => known.includes(name))
      .map(([name, value]) => [name, String(value === true ? "1" : value === false ? "" : value)]),
  );
  // A preset says the whole traffic: what the one before said of it is gone.
  const rest = (values) => Object.fromEntries(Object.entries(values).filter(([name]) => !TRAFFIC.includes(name)));
  page.state[page.editing] = { ...rest(page.state[page.editing]), ...taken };
  delete page.state.a.run;
  url.commit(page.state, fallbacks());
  page.form.fill(valuesOf(page.editing));
  announce(`${preset.name}: ${preset.what ?? ""}`);
  ask(page.editing, { final: "changed" });
}

// What an answer offers: to go on with one of its rows, or to compare the scenario with it.
function taken({ target, detail: { set, compare } }) {
  if (compare) page.state.b = set;
  else if (page.panes.b?.element.contains(target)) page.state.b = { ...page.state.b, ...set };
  else page.state.a = { ...page.state.a, ...set };
  delete page.state.a.run;
  url.commit(page.state, fallbacks());
  build();
  window.scrollTo(0, 0);
  if (compare) [...document.querySelectorAll(".editing button")].at(1)?.click();
  announce(compare ? "Comparing: the form now changes scenario B." : "The scenario has changed.");
}

// ---- views

function goTo(key, { carried = {}, push = true } = {}) {
  // An emptied box is nothing to another view, whose default stands; an emptied SLO says that there is none.
  const stays = ([name, value]) => !OF_ONE_VIEW.includes(name) && (value !== "" || name === "slo");
  const kept = Object.fromEntries(Object.entries({ ...page.state?.a }).filter(stays));
  const view = VIEWS.find((each) => each.key === key);
  page.state = { view: key, a: { ...(view.entered?.(kept) ?? kept), ...carried }, b: null };
  build();
  if (push) url.commit(page.state, fallbacks());
  window.scrollTo(0, 0);
}

// The plan behind a figure. A model that was uploaded is known by its file, which the scenario names.
function openPlan({ model, ...rest }) {
  const isKnown = page.catalog.models.some(({ key }) => key === model);
  goTo("plan", { carried: isKnown ? { model, ...rest } : rest });
}

function restore() {
  const found = url.read();
  page.state = { view: VIEWS.some((each) => each.key === found.view) ? found.view : "plan", a: found.a, b: found.b };
  build();
}

function build() {
  page.leave?.();
  page.form?.close(); // a box that loses its focus because it goes says nothing any more
  for (const run of Object.values(page.runs)) run.stop();
  const view = VIEWS.find((each) => each.key === page.state.view);
  const labels = labelled(view.groups);
  Object.assign(page, { view, labels, editing: "a", panes: {}, runs: {}, answers: {}, form: null, leave: null });
  document.title = `${view.name} · tokonomics`;
  for (const link of document.querySelectorAll("#views a")) {
    if (link.dataset.view === view.key) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  page.nowIn(view.name);
  glanceAt({});
  // By hand: scrollIntoView would also move where the Tab key starts from.
  const [bar, here] = [document.getElementById("views"), document.querySelector("#views [aria-current]")];
  if (here) bar.scrollLeft = here.offsetLeft - (bar.clientWidth - here.clientWidth) / 2;
  const heading = h(
    "div",
    { class: "heading" },
    h("div", {}, h("h1", {}, view.name), h("p", { class: "lede" }, view.lede)),
    view.groups && actions(),
  );
  const answers = h("div", { class: "answers" });
  refill(main, h("div", { class: view.groups ? "work" : "work wide" }, heading, view.groups && side(), answers));
  main.dataset.view = view.key;
  if (view.request) spread(answers);
  else page.leave = reading(view, answers);
}

// A view without a form: what the server has to say, and, where it can be watched, whenever that changes. What it says
// may be chosen above it.
function reading(view, answers) {
  const place = pane({ name: view.name, labels: page.labels });
  const above = h("div", { class: "above" });
  refill(answers, view.above && above, place.element);
  const left = new AbortController();
  const unlessLeft = (act) => (said) => left.signal.aborted || act(said);
  const failed = (error) => {
    if (error.status === 404 && view.empty) return place.empty(view.empty(error));
    if (!error.what) console.error(error);
    place.refused({ ...error, what: error.what ?? error.message }, {});
  };
  const show = (said, how) => (place.show(said, how), glanceAt({ a: said }));
  const choose = (values) => {
    Object.assign(page.state.a, values);
    url.commit(page.state, fallbacks());
    load();
  };
  const offer = (answer) => {
    if (!view.above) return;
    const at = [...above.querySelectorAll("select, button")].indexOf(document.activeElement);
    refill(above, view.above({ values: page.state.a, answer, catalog: page.catalog, change: choose }));
    above.querySelectorAll("select, button")[at]?.focus();
  };
  let turn = 0;
  function load() {
    const mine = ++turn;
    place.working(null);
    const latest = (act) => unlessLeft((said) => mine === turn && act(said));
    view.read(page.state.a).then(latest((said) => (offer(said), show(said), watch()))).catch(latest(failed));
  }
  function watch() {
    const close = view.watch?.(unlessLeft((next) => show(next, { isQuiet: true })));
    left.signal.addEventListener("abort", () => close?.());
  }
  load();
  return () => left.abort();
}

function actions() {
  const label = () => (page.state.b ? "Stop comparing" : "Compare with another");
  return h(
    "div",
    { class: "actions" },
    page.view.comparable &&
      h(
        "button",
        { type: "button", class: "quiet", "aria-pressed": String(Boolean(page.state.b)), onclick: toggleCompare },
        label(),
      ),
  );
}

function side() {
  page.form = form({
    groups: page.view.groups,
    catalog: page.catalog,
    changed,
    submitted,
    submitLabel: page.view.submitLabel,
    submits: page.view.submits,
  });
  page.form.fill(valuesOf("a"));
  const presets = page.view.presets === false ? [] : (page.catalog.presets ?? []);
  page.sheet = sheet(
    presets.length > 0 &&
      h(
        "div",
        { class: "presets", role: "group", "aria-label": "Presets" },
        presets.map((each) =>
          h("button", { type: "button", title: each.what, onclick: () => takePreset(each) }, each.name),
        ),
      ),
    page.state.b && editing(),
    page.form.element,
  );
  return page.sheet.element;
}

function editing() {
  const choose = (which) => () => {
    page.editing = which;
    for (const button of group.children) button.setAttribute("aria-pressed", String(button.dataset.which === which));
    page.form.fill(valuesOf(which));
  };
  const group = h(
    "div",
    { class: "editing", role: "group", "aria-label": "Which scenario the form changes" },
    ["a", "b"].map((which) =>
      h(
        "button",
        { type: "button", "data-which": which, "aria-pressed": String(which === page.editing), onclick: choose(which) },
        `Scenario ${which.toUpperCase()}`,
      ),
    ),
  );
  return group;
}

function toggleCompare() {
  page.state.b = page.state.b ? null : {};
  url.commit(page.state, fallbacks());
  build();
  document.querySelector(".actions button").focus(); // the one that was pressed, made anew
  if (page.state.b) {
    [...document.querySelectorAll(".editing button")].at(1)?.click();
    announce("Comparing: the form now changes scenario B.");
  }
}

function spread(answers) {
  page.difference = h("div", { class: "difference", "aria-live": "polite" });
  page.panes.a = pane({ name: page.state.b ? "Answer A" : "Answer", labels: page.labels, hero: page.view.hero });
  answers.classList.toggle("two", Boolean(page.state.b));
  if (page.state.b) {
    page.panes.b = pane({ name: "Answer B", labels: page.labels, hero: page.view.hero });
    refill(
      answers,
      page.difference,
      ["a", "b"].map((which) =>
        h(
          "div",
          { class: "column" },
          h("p", { class: "which" }, `Scenario ${which.toUpperCase()}`),
          page.panes[which].element,
        ),
      ),
    );
    page.runs.b = running("b");
    ask("b", {});
  } else refill(answers, page.panes.a.element);
  page.runs.a = running("a");
  ask("a", {});
}

// ---- the frame

let hasBegun; // a view may be chosen before the catalogue is there: it is shown then
const begun = new Promise((resolve) => (hasBegun = resolve));

function drawNavigation() {
  const links = VIEWS.map((view) =>
    h(
      "a",
      {
        href: `/?view=${view.key}`,
        "data-view": view.key,
        onclick: (event) =>
          event.metaKey ||
          event.ctrlKey ||
          event.shiftKey ||
          (event.preventDefault(), begun.then(() => goTo(view.key))),
      },
      view.name,
    ),
  );
  refill(document.getElementById("views"), links);
}

function drawTheme() {
  const button = document.getElementById("theme");
  const label = () => {
    button.textContent = themeNow() === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${themeNow() === "dark" ? "light" : "dark"} colours`);
  };
  button.addEventListener("click", () => {
    const next = themeNow() === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("theme", next);
    } catch {
      /* no storage: the choice holds for this visit */
    }
    label();
    redrawAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (label(), redrawAll()));
  label();
}

async function start() {
  drawTheme();
  drawNavigation();
  page.nowIn = menu();
  try {
    const [catalog, verbs] = await Promise.all([api.catalog(), api.verbs()]);
    page.catalog = catalog;
    learn(verbs);
  } catch (error) {
    refill(
      main,
      h(
        "div",
        { class: "trouble" },
        h("h1", {}, error.what ?? "The page could not start"),
        h("p", {}, error.fix ?? error.message),
      ),
    );
    return;
  }
  document.getElementById("about").textContent =
    `tokonomics ${page.catalog.version}; ${page.catalog.prices}; today ${page.catalog.today}`;
  addEventListener("popstate", restore);
  addEventListener("choose-columns", askForColumns);
  addEventListener("open-plan", ({ detail }) => openPlan(detail));
  main.addEventListener("scenario", taken);
  dropping({ goTo, now: () => page.state });
  restore();
  hasBegun();
  // The chart library is large: it loads while the reader reads, not before the first paint.
  warm();
}

start();
