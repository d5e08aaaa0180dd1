// Runs before the first paint, so that a reader who chose dark never sees a white flash.
try {
  const kept = localStorage.getItem("theme");
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
} catch {
  /* no storage: the system's choice holds */
}
