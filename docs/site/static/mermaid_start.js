// Draws the diagrams of a page in the colors of its theme.
const isDark = document.body.dataset.theme === "dark"
  || (document.body.dataset.theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
mermaid.initialize({ startOnLoad: true, theme: isDark ? "dark" : "default", securityLevel: "strict" });
