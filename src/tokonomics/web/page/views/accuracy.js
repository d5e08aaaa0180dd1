// Accuracy: how sure is this. Predictions against measurements, every published row a point; a results file dropped on
// the page joins them. No row is dropped silently.

import { accuracy } from "../api.js";
import { filters } from "../filters.js";
import { h } from "../dom.js";
import { openFile } from "../drop.js";
import { shown } from "../uploads.js";

// By the name in the address: the server's own name, its label, and what is chosen at first.
const CHOICES = {
  of_metric: ["metric", "Figure", "TPOT"],
  of_engine: ["engine", "Engine", ""],
  of_gpu: ["gpu", "GPU", ""],
  of_speed: ["speed", "Speed", ""],
  of_fit: ["fit", "Row", "left out"],
  files: ["files"],
  ran_on: ["ran_on", "It ran on", ""],
};
const ANY = { engine: "every engine", gpu: "every GPU", speed: "however known", fit: "all rows", ran_on: "as the file says" };
const FITS = { "left out": "left out of every fit", seen: "seen, not fitted on", shaped: "shaped the model" };

const DEFAULTS = Object.fromEntries(Object.entries(CHOICES).map(([name, [, , first = ""]]) => [name, first]));
const chosen = (values, name) => values[name] ?? DEFAULTS[name];

export default {
  key: "accuracy",
  name: "Accuracy",
  lede: "How sure is this: predictions held against measurements.",
  defaults: DEFAULTS,
  read: (values) =>
    accuracy(Object.entries(CHOICES).map(([name, [asked]]) => [asked, chosen(values, name)]).filter(([, value]) => value)),
  // What chooses the points, above the answer; `change` asks again.
  above({ values, answer, catalog, change }) {
    const options = { ...answer.options, ran_on: catalog.gpus.map(({ key }) => key) };
    const fields = Object.entries(CHOICES)
      .filter(([name, [, label]]) => label && (name !== "ran_on" || values.files))
      .map(([name, [asked, label]]) => ({
        name,
        label,
        value: chosen(values, name),
        options: [...(ANY[asked] ? [["", ANY[asked]]] : []), ...options[asked].map((value) => [value, FITS[value] ?? value])],
      }));
    const own = values.files
      ? h(
          "p",
          { class: "own" },
          "With your results: ",
          h("b", {}, shown(values.files)),
          h("button", { type: "button", class: "quiet", onclick: () => change({ files: "", ran_on: "" }) }, "Leave them out"),
        )
      : h("button", { type: "button", class: "quiet", onclick: openFile }, "Add your results");
    return filters({ name: "Which points", fields, change, after: own });
  },
};
