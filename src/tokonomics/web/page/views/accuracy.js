// Accuracy: how sure is this. Predictions against measurements, as the benchmark wrote them; no row dropped silently.

import { accuracy } from "../api.js";

export default {
  key: "accuracy",
  name: "Accuracy",
  lede: "How sure is this: predictions held against measurements.",
  read: accuracy,
};
