// Forms from a list of fields: labelled, with presets from the catalogue, and one answer per change.
// A field: {name, label, kind, unit, hint, fallback, low, high, log, options, wide}. Values are text, as in the address.

import { apis } from "./api.js";
import { columnsButton } from "./columns.js";
import { freshId, h, refill } from "./dom.js";
import { capital } from "./format.js";
import { coded } from "./labels.js";
import { meant, shown } from "./uploads.js";

const STEPS = 400; // of a slider: fine enough that a pixel is a step

export function fallbacksOf(groups) {
  return Object.fromEntries(
    groups.flatMap((group) => group.fields).map((field) => [field.name, String(field.fallback ?? "")]),
  );
}

export function form({ groups, catalog, changed, submitted, submitLabel, submits = () => true }) {
  const parts = new Map();
  const state = {};
  let isOpen = true;
  const set = (name, final) => (value) => {
    if (!isOpen) return;
    state[name] = value;
    reveal();
    changed({ ...state }, final);
  };
  const drawn = groups.map((group) => {
    const fields = group.fields.map((field) => {
      const part = (KINDS[field.kind] ?? text)(field, {
        live: set(field.name, false),
        final: set(field.name, true),
        catalog,
      });
      parts.set(field.name, { field, ...part });
      return part.element;
    });
    const body = h("div", { class: "fields" }, fields);
    return group.folded
      ? h("details", { class: "group" }, h("summary", {}, group.name), body)
      : h("fieldset", { class: "group" }, h("legend", {}, group.name), body);
  });
  const go = submitLabel && h("button", { type: "submit", class: "go" }, submitLabel);
  const element = h(
    "form",
    { class: "form", autocomplete: "off", onsubmit: submit },
    drawn,
    go && h("div", { class: "submit" }, go),
  );

  function submit(event) {
    event.preventDefault();
    submitted?.({ ...state });
  }

  function reveal() {
    for (const part of parts.values()) {
      if (part.field.when) part.element.hidden = !part.field.when(state);
      if (part.field.unless) overrule(part, part.field.unless(state), state[part.field.name]);
      part.told?.(state[part.field.name]);
      if (typeof part.field.placeholder === "function")
        part.element.querySelector("input").placeholder = part.field.placeholder(state);
    }
    if (go) go.parentElement.hidden = !submits(state);
  }

  function fill(values) {
    for (const [name, part] of parts) {
      state[name] = String(values[name] ?? part.field.fallback ?? "");
      part.fill(state[name]);
    }
    for (const [at, group] of groups.entries())
      if (group.folded && group.fields.some((field) => state[field.name] !== String(field.fallback ?? "")))
        drawn[at].open = true;
    reveal();
  }

  // Points at the fields that a refusal names, or whose value it quotes.
  function blame(error) {
    const named = error?.names ?? [];
    const quoted = (value) => value !== "" && String(error?.what ?? "").includes(`'${value}'`);
    for (const [name, part] of parts) {
      part.fault?.remove();
      const wrong = named.includes(name) || quoted(shown(state[name]));
      part.fault = wrong ? h("p", { class: "fault", id: freshId(`${name}-fault`) }, coded(capital(error.what))) : null;
      if (wrong) part.element.append(part.fault);
      part.blame(part.fault?.id);
    }
  }

  return { element, fill, blame, close: () => (isOpen = false) };
}

// What another field says in its place: the control rests, shows nothing of its own, and says why.
function overrule(part, why, value) {
  if (why) for (const box of part.element.querySelectorAll("input[type=text]")) box.value = "";
  else if (part.said) part.fill(value);
  part.said?.remove();
  part.said = why ? h("p", { class: "hint", id: freshId("overruled") }, why) : null;
  if (part.said) part.element.append(part.said);
  for (const control of part.element.querySelectorAll("input, select")) {
    control.disabled = Boolean(why);
    if (why) control.setAttribute("aria-describedby", part.said.id);
    else if (control.getAttribute("aria-describedby")?.startsWith("overruled"))
      control.removeAttribute("aria-describedby");
  }
}

function framed(field, id, ...controls) {
  const hint = field.hint && h("p", { class: "hint", id: `${id}-hint` }, field.hint);
  const unit = field.unit && h("span", { class: "unit" }, field.unit);
  const label = h("label", { for: id }, field.label, unit);
  return h("div", { class: field.wide === false ? "field half" : "field" }, label, controls, hint);
}

const described = (field, id) => (field.hint ? `${id}-hint` : null);
// Marks a control as wrong, for the eye and for screen readers; `fault` is the id of the text that says why.
// It describes the control as well: few screen readers tell of an error message by itself.
const marker = (input) => (fault) => {
  const hints = (input.getAttribute("aria-describedby") ?? "").split(" ").filter((id) => !id.includes("-fault-"));
  for (const [name, value] of [
    ["aria-invalid", fault && "true"],
    ["aria-errormessage", fault],
    ["aria-describedby", [...hints, fault].filter(Boolean).join(" ")],
  ])
    if (value) input.setAttribute(name, value);
    else input.removeAttribute(name);
};

function text(field, { live, final }) {
  const id = freshId(field.name);
  const input = h("input", {
    id,
    type: "text",
    name: field.name,
    placeholder: field.placeholder,
    spellcheck: "false",
    inputmode: field.numeric ? "decimal" : null,
    "aria-describedby": described(field, id),
    class: field.numeric ? "number" : null,
    oninput: () => live(meant(input.value.trim())),
    onchange: () => final(meant(input.value.trim())),
  });
  return { element: framed(field, id, input), fill: (value) => (input.value = shown(value)), blame: marker(input) };
}

// A box to type in and a slider to drag; the box also takes what a slider cannot say, such as lognormal:mean=800.
function number(field, { live, final }) {
  const id = freshId(field.name);
  const { low, high, log = false, whole = false } = field;
  const place = (value) => (log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low)) * STEPS;
  const at = (step) => (log ? low * (high / low) ** (step / STEPS) : low + ((high - low) * step) / STEPS);
  const tidy = (value) => String(whole ? Math.round(Number(value.toPrecision(3))) : Number(value.toPrecision(2)));
  const input = h("input", {
    id,
    type: "text",
    name: field.name,
    class: "number",
    inputmode: "decimal",
    spellcheck: "false",
    placeholder: field.placeholder,
    "aria-describedby": described(field, id),
    oninput: () => (slide(input.value), live(input.value.trim())),
    onchange: () => final(input.value.trim()),
  });
  const slider = h("input", {
    type: "range",
    min: "0",
    max: String(STEPS),
    step: "1",
    "aria-label": `${field.label}, slider`,
    oninput: () => live(take()),
    onchange: () => final(take()),
  });
  const take = () => {
    input.value = tidy(at(Number(slider.value)));
    slider.setAttribute("aria-valuetext", `${input.value} ${field.unit ?? ""}`);
    return input.value;
  };
  const slide = (value) => {
    const parsed = Number(value);
    slider.disabled = value !== "" && !Number.isFinite(parsed);
    if (Number.isFinite(parsed) && parsed > 0) slider.value = String(Math.min(Math.max(place(parsed), 0), STEPS));
    slider.setAttribute("aria-valuetext", `${value || "not given"} ${field.unit ?? ""}`);
  };
  const fill = (value) => ((input.value = value), slide(value));
  return { element: framed(field, id, h("div", { class: "slid" }, input, slider)), fill, blame: marker(input) };
}

function choice(field, { final, catalog }) {
  const id = freshId(field.name);
  const options = typeof field.options === "function" ? field.options(catalog) : field.options;
  const select = h(
    "select",
    { id, name: field.name, "aria-describedby": described(field, id), onchange: () => final(select.value) },
    options.map((each) =>
      Array.isArray(each) ? h("option", { value: each[0] }, each[1]) : h("option", { value: each }, each),
    ),
  );
  const fill = (value) => {
    // An address may name what the list does not hold: it is kept, and the server says what it thinks of it.
    if (![...select.options].some((each) => each.value === value)) select.append(h("option", { value }, value));
    select.value = value;
  };
  return { element: framed(field, id, select), fill, blame: marker(select) };
}

function segments(field, { final }) {
  const id = freshId(field.name);
  const inputs = field.options.map(([value, label]) => {
    const input = h("input", { type: "radio", name: id, value, onchange: () => final(value) });
    return { input, element: h("label", {}, input, h("span", {}, label)) };
  });
  const element = h(
    "div",
    { class: "field" },
    h(
      "div",
      { class: "segments", role: "radiogroup", "aria-label": field.label },
      inputs.map((each) => each.element),
    ),
  );
  const fill = (value) => inputs.forEach(({ input }) => (input.checked = input.value === value));
  return { element, fill, blame: () => {} };
}

function check(field, { final }) {
  const id = freshId(field.name);
  const input = h("input", { id, type: "checkbox", name: field.name, onchange: () => final(input.checked ? "1" : "") });
  const element = h(
    "div",
    { class: "field check" },
    input,
    h("label", { for: id }, field.label),
    field.hint && h("p", { class: "hint" }, field.hint),
  );
  return { element, fill: (value) => (input.checked = value === "1"), blame: marker(input) };
}

// A box that searches the catalogue; what is not in it may be typed all the same.
function searched(listed) {
  return (field, { live, final, catalog }) => {
    const id = freshId(field.name);
    let known = [];
    const list = h("datalist", { id: `${id}-list` });
    const about = h("p", { class: "hint", id: `${id}-hint` });
    const input = h("input", {
      id,
      type: "text",
      name: field.name,
      list: `${id}-list`,
      spellcheck: "false",
      placeholder: typeof field.placeholder === "function" ? "" : (field.placeholder ?? "type to search"),
      "aria-describedby": `${id}-hint`,
      onfocus: () => input.select(),
      oninput: () => (tell(), known.some((each) => each.key === input.value) && live(input.value)),
      onchange: () => (tell(), final(meant(input.value.trim()))),
    });
    const tell = () => {
      const found = known.find((each) => each.key === input.value);
      refill(about, found?.about ?? field.hint ?? "");
    };
    const learn = (found) => {
      known = found;
      refill(
        list,
        known.map(({ key, label }) => h("option", { value: key, label })),
      );
      tell();
    };
    const found = listed(catalog, field);
    // A long list comes later; until then anything may be typed.
    if (found instanceof Promise) found.then(learn, () => {});
    else learn(found);
    const element = h(
      "div",
      { class: "field" },
      h("label", { for: id, class: field.bare ? "unseen" : null }, field.label),
      input,
      list,
      about,
    );
    return { element, fill: (value) => ((input.value = shown(value)), tell()), blame: marker(input) };
  };
}

// A box for a log; of one's own it can be said which column is what.
function logs(field, context) {
  const part = ofSamples(field, context);
  const { button, told } = columnsButton();
  part.element.append(button);
  return { ...part, told };
}

const LATENCIES = [
  ["ttft", "First token ≤"],
  ["tpot", "Next tokens ≤"],
  ["e2e", "Whole answer ≤"],
];

// The SLO as three rows; in the address it is the text that the command line takes: ttft_p99=0.5,tpot_p99=0.05.
function slo(field, { live, final }) {
  const rows = LATENCIES.map(([latency, label]) => {
    const id = freshId(latency);
    const box = h("input", {
      id,
      type: "text",
      class: "number",
      inputmode: "decimal",
      placeholder: "none",
      oninput: () => live(said()),
      onchange: () => final(said()),
    });
    const statistic = h(
      "select",
      { "aria-label": `${label}: for which share of requests`, onchange: () => final(said()) },
      ["p50", "p90", "p95", "p99", "mean"].map((each) => h("option", { value: each }, each)),
    );
    const unit = latency === "e2e" ? "s" : "ms";
    return {
      latency,
      box,
      statistic,
      unit,
      element: h(
        "div",
        { class: "slo" },
        h("label", { for: id }, label),
        box,
        h("span", { class: "unit" }, unit),
        statistic,
      ),
    };
  });
  const said = () =>
    rows
      .filter(({ box }) => box.value.trim())
      .map(({ latency, box, statistic, unit }) => `${latency}_${statistic.value}=${box.value.trim()}${unit}`)
      .join(",");
  const fill = (value) => {
    const asked = Object.fromEntries(
      value
        .split(",")
        .filter(Boolean)
        .map((each) => {
          const [, latency, statistic = "p99", amount, unit] =
            each.match(/^\s*(\w+?)(?:_(\w+))?\s*=\s*([\d.]+)\s*(\w*)\s*$/) ?? [];
          return [latency, { statistic, seconds: Number(amount) * (unit === "ms" ? 1e-3 : 1) }];
        }),
    );
    for (const { latency, box, statistic, unit } of rows) {
      const found = asked[latency];
      box.value = found ? String(Number((found.seconds * (unit === "ms" ? 1e3 : 1)).toPrecision(6))) : "";
      statistic.value = found?.statistic ?? "p99";
    }
  };
  const element = h(
    "div",
    { class: "field slos", role: "group", "aria-label": "SLO" },
    rows.map((each) => each.element),
  );
  return { element, fill, blame: (fault) => rows.forEach(({ box }) => marker(box)(fault)) };
}

const short = (value) =>
  value === null || value === undefined ? "" : Number(Number(value).toPrecision(3)).toLocaleString("en-US");

const ofSamples = searched((catalog) =>
  (catalog.samples ?? []).map((each) =>
    typeof each === "string"
      ? { key: each, label: each, about: "shipped sample" }
      : {
          key: each.key,
          label: each.name ?? each.what ?? each.key,
          about: each.what ?? each.about ?? each.name ?? "shipped sample",
        },
  ),
);

const KINDS = {
  text,
  number,
  choice,
  segments,
  check,
  slo,
  model: searched((catalog) =>
    catalog.models.map(({ key, name, params_b, active_b, context, is_moe }) => {
      const size = is_moe
        ? `${short(params_b)} B parameters, ${short(active_b)} B active`
        : `${short(params_b)} B parameters`;
      return { key, label: name, about: `${name} · ${size} · context ${short(context)}` };
    }),
  ),
  gpu: searched((catalog) =>
    catalog.gpus.map(({ key, name, memory_gb, architecture }) => ({
      key,
      label: `${memory_gb} GB ${architecture ?? ""}`,
      about: `${name ?? key} · ${short(memory_gb)} GB${architecture ? ` · ${architecture}` : ""}`,
    })),
  ),
  api: searched(async () => (await apis()).map(({ key }) => ({ key, label: key, about: key }))),
  sample: logs,
};
