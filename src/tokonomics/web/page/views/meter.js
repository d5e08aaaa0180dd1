// Meter: what the running servers cost now, how much of it is idle, and how that went; new sums as the ledger grows.

import { meter, meterEvents } from "../api.js";
import { h } from "../dom.js";
import { capital } from "../format.js";

export default {
  key: "meter",
  name: "Meter",
  lede: "What the running servers cost per million tokens: now, this hour, today.",
  read: meter,
  watch: meterEvents,
  empty: ({ what }) => [
    h("h2", {}, "Nothing is metered yet"),
    h(
      "p",
      {},
      `${capital(what)}. The meter reads the metrics page of your inference servers, prices what they do, and writes it into a ledger; this page shows it as it grows. In two terminals:`,
    ),
    h("pre", { tabindex: "0" }, "tokonomics meter http://localhost:8000 --gpu H100\ntokonomics web --ledger FILE"),
  ],
};
