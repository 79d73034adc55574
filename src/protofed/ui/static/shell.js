// What all pages share in the browser: the theme, and charts that follow it.
"use strict";

window.protofed = (() => {
  const preferred = window.matchMedia("(prefers-color-scheme: dark)");
  const listeners = [];

  function stored() {
    try {
      return localStorage.getItem("protofed-theme");
    } catch {
      return null; // storage is switched off: the system's preference decides
    }
  }

  function isDark() {
    return document.documentElement.dataset.theme === "dark";
  }

  function apply() {
    const dark = stored() ? stored() === "dark" : preferred.matches;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    if (typeof setDark === "function" && document.body) setDark(dark);
    document.querySelectorAll(".nicegui-echart").forEach(dress);
    listeners.forEach((listen) => listen(dark));
  }

  function switchTheme() {
    try {
      localStorage.setItem("protofed-theme", isDark() ? "light" : "dark");
    } catch {
      // as above; the switch then has no effect beyond this page
    }
    apply();
  }

  function variable(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  }

  // An ECharts theme from the page's own variables.
  function chartTheme() {
    const [ink, soft, line, card] = ["ink", "soft", "line", "card"].map(variable);
    const axis = {
      axisLine: { lineStyle: { color: line } },
      axisTick: { lineStyle: { color: line } },
      axisLabel: { color: soft },
      nameTextStyle: { color: soft },
      splitLine: { lineStyle: { color: line } },
    };
    return {
      darkMode: isDark(),
      color: variable("palette").split(/\s+/),
      textStyle: { color: ink, fontFamily: getComputedStyle(document.body).fontFamily },
      title: { textStyle: { color: ink }, subtextStyle: { color: soft } },
      legend: { textStyle: { color: ink }, inactiveColor: line, pageTextStyle: { color: soft } },
      tooltip: { backgroundColor: card, borderColor: line, textStyle: { color: ink } },
      visualMap: { textStyle: { color: soft } },
      valueAxis: axis,
      categoryAxis: axis,
      logAxis: axis,
      timeAxis: axis,
    };
  }

  function instance(element) {
    return typeof getElement === "function" ? getElement(element)?.chart : undefined;
  }

  function dress(element) {
    const chart = instance(element);
    if (!chart) return false;
    chart.setTheme(chartTheme());
    element.dataset.dressed = document.documentElement.dataset.theme;
    return true;
  }

  // Charts come and go; each is dressed as soon as it is there.
  function watch() {
    const waiting = new Set();
    const later = () => {
      for (const element of waiting) if (!element.isConnected || dress(element)) waiting.delete(element);
      if (waiting.size) setTimeout(later, 20);
    };
    const look = () => {
      const before = waiting.size;
      document.querySelectorAll(".nicegui-echart:not([data-dressed])").forEach((e) => waiting.add(e));
      if (!before && waiting.size) later();
    };
    new MutationObserver(look).observe(document.body, { childList: true, subtree: true });
    look();
  }

  apply();
  preferred.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    const mounted = () => (typeof darkSetter === "undefined" || !darkSetter ? setTimeout(mounted, 10) : apply());
    mounted();
    watch();
  });

  return { isDark, switchTheme, variable, chartTheme, instance, onTheme: (listen) => listeners.push(listen) };
})();
