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

  // The palette of the present theme.
  function palette() {
    return variable(isDark() ? "palette-dark" : "palette").split(/\s+/);
  }

  // Options name colours of the light palette; on a dark ground each becomes its lighter partner, and back.
  function recolour(value) {
    if (typeof value === "string" && value.length === 7 && value[0] === "#") {
      const [from, to] = ["palette", "palette-dark"].map((n) => variable(n).toUpperCase().split(/\s+/));
      const [old, now] = isDark() ? [from, to] : [to, from];
      const place = old.indexOf(value.toUpperCase());
      return place < 0 ? value : now[place];
    }
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map(recolour);
    if (value && typeof value === "object" && Object.getPrototypeOf(value) === Object.prototype) {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, k === "data" && !v?.[0]?.itemStyle ? v : recolour(v)]));
    }
    return value;
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
      color: palette(),
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

  // The parts of a series that hold its colours.
  function paint(series) {
    const parts = ["color", "itemStyle", "lineStyle", "areaStyle", "label", "endLabel", "markLine"];
    return Object.fromEntries(["type", ...parts].filter((p) => series[p] !== undefined).map((p) => [p, series[p]]));
  }

  function dress(element) {
    const chart = instance(element);
    if (!chart) return false;
    chart.setTheme(chartTheme());
    if (!chart.plainly) {
      chart.plainly = chart.setOption;
      chart.setOption = (option, ...rest) => chart.plainly(recolour(option), ...rest);
    }
    const { series, visualMap } = chart.getOption() ?? {};
    if (series?.length) chart.plainly(recolour({ series: series.map(paint), ...(visualMap ? { visualMap } : {}) }));
    element.dataset.dressed = document.documentElement.dataset.theme;
    return true;
  }

  // Bytes in words, as the Python side writes them.
  function size(value) {
    if (value < 999.5) return `${Math.round(value)} B`;
    let power = 0;
    while (value >= 999.5 && power < 5) [value, power] = [value / 1000, power + 1];
    return `${value.toFixed(value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2)} ${"kMGTP"[power - 1]}B`;
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

  return { isDark, switchTheme, variable, palette, size, chartTheme, instance, onTheme: (listen) => listeners.push(listen) };
})();
