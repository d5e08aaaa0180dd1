// What is said of inputs, in the words of the form: `rate` is what the reader sees as “Requests per second”.

import { h } from "./dom.js";

const PLACES = { what: "model", model_name: "model", models: "model", file: "trace", columns: "trace" };
const SHOWN = { why: "“Why not the others”" }; // a part of the answer, where the command has an option
const NAMED = /`(\w+)(?:=([^`]*))?`/g; // as the server marks names of inputs

const nameOf = (input) => PLACES[input] ?? input.replaceAll("-", "_");

export function labelled(groups = []) {
  const fields = new Map(groups.flatMap((group) => group.fields).map((field) => [field.name, field]));
  const label = (input) => {
    const field = fields.get(nameOf(input));
    if (field && input === "columns") return "“Columns”"; // the button beside the box of the log
    return field ? `“${[field.label, field.unit].filter(Boolean).join(" ")}”` : null;
  };
  // An input that the form does not ask for is one of the command, whose line the page shows.
  const named = (text) =>
    text?.replace(NAMED, (_, input, value) => {
      const given = value === undefined || input === "columns" ? "" : ` ${value.replaceAll('"', "")}`;
      const known = label(input) ?? SHOWN[input];
      return known ? `${known}${given}` : `--${input.replaceAll("_", "-").replace(/-+$/, "")}${given} of the command`;
    });
  return {
    text: named,
    // The text as nodes: what is left in backticks is code.
    nodes: (text) => coded(named(text)),
    // A refusal by the labels of the form; `names` are the fields that it speaks of.
    refusal({ what, where, fix }) {
      const inputs = String(where ?? "")
        .split(/[\s,:.]+/)
        .filter(Boolean);
      const known = inputs.length > 0 && inputs.every(label);
      return {
        what: named(what),
        where: known ? null : where,
        at: known ? inputs.map(label).join(", ") : null,
        fix: named(fix),
        names: inputs.map(nameOf),
      };
    },
  };
}

export function coded(text) {
  return text.split("`").map((part, place) => (place % 2 ? h("code", {}, part) : part));
}
