// Runs before the page is drawn, so that the chosen theme does not flash.
"use strict";
try {
  const theme = localStorage.getItem("bucketwire-theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch {
  // A browser without storage has the theme of its system.
}
