// Where an answer stands: empty, working, refused or shown. An old answer stays, dimmed, until the next one is whole.

import { report } from "./api.js";
import { showCharts } from "./chart.js";
import { announce, copyButton, download, h, refill } from "./dom.js";
import { capital, csvOf, seconds } from "./format.js";

export function badge(kind, text = kind) {
  return h("span", { class: `badge ${kind}` }, text);
}

// Speeds are modelled, at best from kernels timed on that GPU: only load tests and the meter measure them.
export function speedBadge(speed) {
  return speed === "measured" ? badge("modelled", "kernels timed") : badge(speed);
}

// Where a number comes from: measured, modelled, assumed, or quoted on a date.
export function origins({ speed, price_date, price_stale, simulated }) {
  return [
    speed && (speed === "measured" ? speedBadge(speed) : badge(speed, `speed ${speed}`)),
    simulated !== undefined && badge(simulated ? "simulated" : "estimate", simulated ? "simulated" : "closed form"),
    price_date && badge(price_stale ? "stale" : "quoted", `price quoted ${price_date}${price_stale ? ", old" : ""}`),
  ];
}

export function headline({ label, value, unit, detail, badges, next, mood }) {
  return h(
    "div",
    { class: mood ? `headline ${mood}` : "headline" },
    h("p", { class: "label" }, label),
    h("p", { class: "value" }, h("strong", {}, value), unit && h("span", { class: "unit" }, unit)),
    detail && h("p", { class: "detail" }, detail),
    badges && h("p", { class: "badges" }, badges),
    next && h("p", { class: "next" }, h("b", {}, "Next: "), next),
  );
}

export function tiles(...items) {
  return h(
    "dl",
    { class: "tiles" },
    items
      .filter(Boolean)
      .map(({ name, value, note, mood }) =>
        h(
          "div",
          { class: mood ?? null },
          h("dt", {}, name),
          h("dd", {}, value),
          note && h("dd", { class: "note" }, note),
        ),
      ),
  );
}

export function section(title, ...content) {
  return h("section", { class: "part" }, h("h2", {}, title), content);
}

export function files(list) {
  return list.map(({ name, text, fill_in }) =>
    h(
      "details",
      { class: "file" },
      h(
        "summary",
        {},
        h("code", {}, name),
        fill_in?.length ? h("span", { class: "soft" }, ` fill in: ${fill_in.join(", ")}`) : null,
      ),
      h(
        "div",
        { class: "tools" },
        copyButton(text),
        h("button", { type: "button", class: "quiet", onclick: () => download(name, text, "text/plain") }, "Save"),
      ),
      h("pre", { tabindex: "0" }, text),
    ),
  );
}

export function pane({ name, fixed = false }) {
  const progress = h("div", { class: "progress", role: "status", hidden: true });
  const trouble = h("div", { class: "trouble", tabindex: "-1", hidden: true });
  const before = h("div", { class: "before" });
  const charts = h("div", { class: "charts" });
  const after = h("div", { class: "after" });
  const tail = h("div", { class: "tail" });
  const content = h("div", { class: "content" }, before, charts, after, tail);
  const element = h(
    "section",
    { class: "pane", "aria-label": name, "data-state": "empty" },
    progress,
    trouble,
    content,
  );
  let ticking = null;

  function state(next) {
    element.dataset.state = next;
    clearInterval(ticking);
    progress.hidden = next !== "working";
    trouble.hidden = next !== "refused";
    if (next === "refused" || next === "empty") [before, charts, after, tail].forEach((each) => refill(each));
  }

  return {
    element,
    empty(...what) {
      state("empty");
      refill(before, h("div", { class: "empty" }, what));
    },
    // A short wait shows nothing but the dimmed answer; a long one says what is done and can be stopped.
    working(cancel) {
      state("working");
      if (!before.querySelector(".headline"))
        refill(before, h("div", { class: "empty waiting" }, h("p", {}, "Computing …")));
      if (!cancel) return { tell: () => {} };
      const began = performance.now();
      const what = h("span", { class: "what" }, "starting");
      const clock = h("span", { class: "clock" });
      const tick = () => (clock.textContent = seconds((performance.now() - began) / 1e3));
      ticking = setInterval(tick, 500);
      refill(
        progress,
        h("span", { class: "bar" }),
        what,
        clock,
        h("button", { type: "button", class: "quiet", onclick: cancel }, "Cancel"),
      );
      element.dataset.state = "long";
      progress.hidden = false;
      return { tell: (said) => (what.textContent = said.what ?? String(said)) };
    },
    idle(text) {
      const there = before.querySelector(".headline");
      state(there ? "shown" : "empty");
      if (!there) refill(before, h("div", { class: "empty" }, h("p", {}, text)));
    },
    changedSince(is) {
      element.classList.toggle("outdated", is);
    },
    refused({ what, where, at, fix }, { focus }) {
      state("refused");
      refill(
        trouble,
        h("h2", {}, capital(what)),
        at && h("p", {}, "At ", at),
        where && h("p", {}, "At ", h("code", {}, where)),
        fix && h("p", {}, fix),
      );
      announce(`${what}. ${fix ?? ""}`);
      if (focus) trouble.focus();
    },
    draw(view, answer, values) {
      const made = view.render(answer, values);
      showCharts(charts, (made.charts ?? ((all) => all))(answer.charts ?? []));
    },
    show(view, answer, values, { chartsFollow = false } = {}) {
      state("shown");
      element.classList.remove("outdated");
      const made = view.render(answer, values);
      refill(before, made.headline && headline(made.headline), made.before);
      if (!chartsFollow) showCharts(charts, (made.charts ?? ((all) => all))(answer.charts ?? []));
      refill(after, made.after);
      refill(tail, ending(answer, made));
      if (made.headline) announce(`${made.headline.label}: ${made.headline.value} ${made.headline.unit ?? ""}`);
    },
  };
}

// What the answer can be taken away as: the command, a report in one file, Markdown, JSON, CSV.
function ending(answer, made) {
  const name = `tokonomics-${answer.verb}`;
  const save = h("button", { type: "button", onclick: saveReport }, "Save report");
  async function saveReport() {
    save.disabled = true;
    try {
      download(
        `${name}.html`,
        await report(answer.job ? { job: answer.job } : { verb: answer.verb, inputs: answer.inputs }),
        "text/html",
      );
    } catch (error) {
      announce(error.message);
      save.textContent = `Not saved: ${error.message}`;
    } finally {
      save.disabled = false;
    }
  }
  const markdown = () =>
    `### ${answer.title}\n\n\`\`\`console\n$ ${answer.command}\n${answer.text}\n\`\`\`\n\n${location.href}\n`;
  const rows = made.rows;
  const button = (label, act) => h("button", { type: "button", class: "quiet", onclick: act }, label);
  return [
    h(
      "div",
      { class: "command" },
      h("p", { class: "label" }, "The same on the command line"),
      h("div", {}, h("code", {}, answer.command), copyButton(answer.command)),
    ),
    h(
      "div",
      { class: "take" },
      save,
      button("Print", () => print()),
      copyButton(() => location.href, "Copy link"),
      copyButton(markdown, "Copy as Markdown"),
      rows?.length && button("CSV", () => download(`${name}.csv`, csvOf(rows, Object.keys(rows[0])), "text/csv")),
      button("JSON", () => download(`${name}.json`, JSON.stringify(answer.result, null, 1), "application/json")),
    ),
    h(
      "details",
      { class: "asText" },
      h("summary", {}, "As the command line prints it"),
      h("pre", { tabindex: "0" }, answer.text),
    ),
    h(
      "p",
      { class: "made" },
      `Made ${String(answer.made ?? "").slice(0, 10)} by tokonomics ${answer.version ?? ""} in ${seconds(answer.seconds)}.`,
    ),
  ];
}
