// Sets the stored theme before anything is drawn. Without one, the system's theme is used.

(() => {
  const themes = ["", "light", "dark"];
  let stored = "";
  try {
    stored = localStorage.getItem("lamella-theme") || "";
  } catch { /* no storage */ }
  const apply = (theme) => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  };
  if (themes.includes(stored)) apply(stored);
  window.lamellaTheme = {
    get: () => document.documentElement.dataset.theme || "",
    set(theme) {
      apply(theme);
      try {
        localStorage.setItem("lamella-theme", theme);
      } catch { /* no storage */ }
    },
  };
})();
