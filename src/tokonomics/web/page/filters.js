// A row of choices above an answer: labelled selects, and what else belongs there.

import { freshId, h } from "./dom.js";

export function filters({ name, fields, change, after }) {
  const selects = fields.map(({ name, label, value, options }) => {
    const id = freshId("filter");
    const select = h(
      "select",
      { id, onchange: () => change({ [name]: select.value }) },
      options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)),
    );
    return h("div", {}, h("label", { for: id }, label), select);
  });
  return h("div", { class: "filters", role: "group", "aria-label": name }, selects, after);
}
