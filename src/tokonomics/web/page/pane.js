// Where an answer stands: empty, working, refused or shown. An old answer stays, dimmed, until the next one is whole.

import { described, headlineIn, tableIn } from "./answer.js";
import { report, withParts } from "./api.js";
import { showCharts } from "./chart.js";
import { heroOf, isFrontier } from "./frontier.js";
import { announce, copyButton, download, h, refill } from "./dom.js";
import { exampleNote } from "./examples.js";
import { capital, csvOf, flattened } from "./format.js";
import { coded } from "./labels.js";
import { player } from "./player.js";

export function pane({ name, labels, hero: isHero = false }) {
  const progress = h("div", { class: "progress", role: "status", hidden: true });
  const trouble = h("div", { class: "trouble", tabindex: "-1", hidden: true });
  const before = h("div", { class: "before" });
  const plays = h("div", { class: "plays" });
  const hero = isHero ? heroOf() : null;
  const beneath = h("div", { class: "beneath" });
  const charts = h("div", { class: "charts" });
  const after = h("div", { class: "after" });
  const tail = h("div", { class: "tail" });
  const content = h("div", { class: "content" }, before, hero?.element, beneath, plays, charts, after, tail);
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
    if (next === "refused" || next === "empty") clear();
  }

  function clear() {
    [before, beneath, plays, charts, after, tail].forEach((each) => refill(each));
    hero?.show(null);
  }

  // The frontier of a view that has a hero stands right below the headline.
  function draw(drawn) {
    content.classList.remove("undrawn");
    const first = hero && isFrontier(drawn[0]);
    hero?.show(first ? drawn[0] : null);
    showCharts(charts, first ? drawn.slice(1) : drawn);
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
      const tick = () => (clock.textContent = `${Math.round((performance.now() - began) / 1e3)} s`);
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
        h("h2", {}, coded(capital(what))),
        at && h("p", {}, "At ", at),
        where && h("p", {}, "At ", h("code", {}, where)),
        fix && h("p", {}, coded(fix)),
      );
      announce(`${what}. ${fix ?? ""}`);
      if (focus) trouble.focus();
    },
    draw: (answer) => draw(answer.charts),
    undrawn({ what, fix }) {
      content.classList.remove("undrawn");
      hero?.show(null);
      refill(charts, h("p", { class: "said note" }, `The charts could not be drawn: ${what}. ${fix ?? ""}`));
    },
    show(answer, { chartsFollow = false, isQuiet = false } = {}) {
      state("shown");
      element.classList.remove("outdated");
      const made = described(answer.sections, labels, { hero: isHero });
      refill(before, answer.example && exampleNote(answer), made.before);
      refill(plays, answer.plays && player(answer.plays));
      refill(beneath, made.beneath);
      content.classList.toggle("undrawn", chartsFollow); // the charts are still those of before
      if (!chartsFollow) draw(answer.charts);
      refill(
        after,
        made.after,
        answer.notes?.map((note) => h("p", { class: "said note" }, labels.nodes(note))),
      );
      refill(tail, answer.verb && ending(answer));
      if (!isQuiet) announce(labels.text(headlineIn(answer.sections)?.text ?? answer.title));
    },
  };
}

// What the answer can be taken away as: the command, a report in one file, Markdown, JSON, CSV.
function ending(answer) {
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
  // What is not shown is asked for when it is taken.
  const markdown = async () => {
    const { title, markdown: text, command } = await withParts(answer, "markdown");
    return `### ${title}\n\n${text}\n\n\`\`\`console\n$ ${command}\n\`\`\`\n\n${location.href}\n`;
  };
  const table = tableIn(answer.sections);
  const saveCsv = async () => {
    const { result, rows: where } = await withParts(answer, "result");
    const rows = where && where.split(".").reduce((part, name) => part?.[name], result);
    download(`${name}.csv`, csvOf(rows?.length ? flattened(rows) : table), "text/csv");
  };
  const saveJson = async () => {
    const { result } = await withParts(answer, "result");
    download(`${name}.json`, JSON.stringify(result, null, 1), "application/json");
  };
  const printed = h("pre", { tabindex: "0" }, answer.text);
  const showText = async () => (printed.textContent = (await withParts(answer, "text")).text);
  const button = (label, act) => {
    const say = (text) => (made.textContent = text);
    const made = h("button", { type: "button", class: "quiet", onclick: told(act, say) }, label);
    return made;
  };
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
      !answer.example && save, // a report is made of what the server answered itself
      button("Print", () => print()),
      copyButton(() => location.href, "Copy link"),
      copyButton(markdown, "Copy as Markdown"),
      (answer.rows || table) && button("CSV", saveCsv),
      button("JSON", saveJson),
    ),
    h(
      "details",
      { class: "asText", ontoggle: told(showText, (text) => (printed.textContent = text)) },
      h("summary", {}, "As the command line prints it"),
      printed,
    ),
    h(
      "p",
      { class: "made" },
      `Made ${answer.made} by tokonomics ${answer.version}${answer.example ? "" : ` in ${answer.seconds.toPrecision(2)} s`}.`,
    ),
  ];
}

// What fails on the server is said where it was asked for, to eyes and to screen readers.
const told = (act, say) => async () => {
  try {
    await act();
  } catch (error) {
    announce(error.message);
    say(`Not made: ${error.message}`);
  }
};
