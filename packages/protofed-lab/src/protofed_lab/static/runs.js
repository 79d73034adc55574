// Charts of runs: the server sends numbers; looks and themes are decided here.
"use strict";

window.runs = (() => {
  // Marks in a box of 16 × 16, for legends and charts alike.
  const MARKS = {
    o: "M8 1.5a6.5 6.5 0 1 0 .001 0Z",
    "^": "M8 1 15.5 14.5H.5Z",
    s: "M2 2H14V14H2Z",
    D: "M8 0 16 8 8 16 0 8Z",
    v: "M8 15 .5 1.5H15.5Z",
    P: "M5.5 1h5v4.5H15v5h-4.5V15h-5v-4.5H1v-5h4.5Z",
    X: "M4.5 1 8 4.5 11.5 1 15 4.5 11.5 8 15 11.5 11.5 15 8 11.5 4.5 15 1 11.5 4.5 8 1 4.5Z",
    "<": "M14.5 .5V15.5L1 8Z",
    ">": "M1.5 .5V15.5L15 8Z",
    p: "M8 .5 15.6 6.1 12.7 15H3.3L.4 6.1Z",
    h: "M8 .3 14.7 4.1V11.9L8 15.7 1.3 11.9V4.1Z",
  };
  // Milliseconds until a chart is given up that never appears, because the page has moved on.
  const PATIENCE = 60000;
  const plots = new Map();
  const waiting = new Set();
  let palette = [];
  let painted = null;

  function paint() {
    if (painted === protofed.isDark() && palette.length === 8) return;
    painted = protofed.isDark();
    palette = protofed.palette();
    palette.forEach((colour, i) => document.documentElement.style.setProperty(`--c${i}`, colour));
  }

  const escaped = (text) =>
    String(text).replace(/[&<>"']/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[c]);

  function swatch(look) {
    const dash = look.dashes?.length ? ` stroke-dasharray="${look.dashes.map((d) => d * 1.3).join(" ")}"` : "";
    const colour = `var(--c${Number(look.colour)})`;
    const width = look.thin ? 1.2 : 2.2;
    const line = `<path d="M0 8H34" stroke="${colour}" stroke-width="${width}"${dash}/>`;
    const mark = `<path transform="translate(17 8) scale(.62) translate(-8 -8)" fill="${colour}" d="${MARKS[look.mark]}"/>`;
    return `<svg class="swatch" viewBox="0 0 34 16" width="34" height="16" aria-hidden="true">${line}${mark}</svg>`;
  }

  const round = (text) => text.replace(/\.0+ /, " ");
  const WRITE = {
    bytes: protofed.size,
    percent: (v) => `${v.toFixed(1)}%`,
    count: (v) => Math.round(v).toLocaleString("en"),
  };

  // One plot: `settings` stay, and every message has all lines by their ids.
  function plot(id, settings) {
    plots.set(id, { id, settings, lines: {}, order: [], hidden: new Set(), fed: 0, since: performance.now() });
    later(id);
  }

  function feed(id, lines) {
    const it = plots.get(id);
    if (!it) return;
    it.fed += 1;
    it.lines = lines;
    it.order = Object.keys(lines);
    later(id);
  }

  // Drawing waits for the next frame, and for the chart to be there: its element and its code arrive when they arrive,
  // later than what is to be drawn on a slow machine. Many messages make one drawing.
  function later(id) {
    if (!waiting.size) requestAnimationFrame(flush);
    waiting.add(id);
  }

  function flush() {
    paint();
    for (const id of [...waiting]) {
      const it = plots.get(id);
      const element = document.getElementById(`c${id}`);
      const chart = element && protofed.instance(element);
      const gone = !it || (!element && (it.drawn || performance.now() - it.since > PATIENCE));
      if (!chart && !gone) continue;
      waiting.delete(id);
      if (gone) plots.delete(id);
      else draw(it, chart, element);
    }
    if (waiting.size) setTimeout(() => requestAnimationFrame(flush), 20);
  }

  function draw(it, chart, element) {
    const option = linesOption(it, element);
    chart.setOption(
      {
        animation: false,
        backgroundColor: "transparent",
        // Nothing to show: say why, where the chart would be.
        title: { show: !option, text: it.fed ? it.settings.missing || "nothing to show yet" : "", left: "center", top: "center",
          textStyle: { color: protofed.variable("soft"), fontSize: 14, fontWeight: 400, width: element.clientWidth - 32, overflow: "break" } },
        ...(option || { series: [], xAxis: { show: false }, yAxis: { show: false }, tooltip: { show: false } }),
      },
      { notMerge: true },
    );
    // NiceGUI sets the server's empty options up to 10 ms after the chart appeared, and so after the first drawing.
    if (!it.drawn) setTimeout(() => later(it.id), 50);
    it.drawn = true;
    element.dataset.fed = it.fed;
    legend(it);
  }

  function legend(it) {
    const place = document.getElementById(`c${it.settings.legend}`);
    if (!place) return;
    const entries = it.order.map((key) => [key, it.lines[key]]);
    const wanted = JSON.stringify(entries.map(([key, e]) => [key, e.name, e.look, it.hidden.has(key)]));
    if (place.dataset.shown === wanted) return;
    place.dataset.shown = wanted;
    const focused = document.activeElement?.closest?.(".legend") === place ? document.activeElement.dataset.key : null;
    place.replaceChildren(
      ...entries.map(([key, entry]) => {
        const button = document.createElement("button");
        button.type = "button";
        button.dataset.key = key;
        button.setAttribute("aria-pressed", String(!it.hidden.has(key)));
        button.title = "Show or hide";
        button.innerHTML = swatch(entry.look) + `<span>${escaped(entry.name)}</span>`;
        button.onclick = () => {
          it.hidden.has(key) ? it.hidden.delete(key) : it.hidden.add(key);
          later(it.id);
        };
        return button;
      }),
    );
    if (focused !== null) [...place.children].find((b) => b.dataset.key === focused)?.focus();
  }

  function tooltip(extra) {
    return {
      confine: true,
      transitionDuration: 0,
      borderWidth: 1,
      extraCssText: "box-shadow: 0 4px 16px rgba(0,0,0,.16); font-variant-numeric: tabular-nums;",
      ...extra,
    };
  }

  // Accuracy against rounds or bytes.
  function linesOption(it, element) {
    const { x = "count", y = "percent", log = false, xName = "" } = it.settings;
    const shown = it.order.filter((key) => !it.hidden.has(key)).map((key) => [key, it.lines[key]]);
    const drawn = shown.filter(([, line]) => line.points.length || line.level != null);
    if (!it.order.some((key) => it.lines[key].points.length || it.lines[key].level != null)) return null;
    const series = [];
    drawn.forEach(([key, line], number) => {
      const { look, points } = line;
      const colour = palette[look.colour];
      const width = look.thin ? 1.2 : 2;
      const type = look.dashes?.length ? look.dashes.map((d) => d * 2) : "solid";
      const base = { id: key, name: line.name, type: "line", showSymbol: false, z: look.thin ? 2 : 3,
        lineStyle: { color: colour, width, type, opacity: look.thin ? 0.75 : 1 }, itemStyle: { color: colour } };
      if (line.level != null) {
        series.push({ ...base, data: [], markLine: { silent: true, symbol: "none", animation: false, label: { show: false },
          lineStyle: { color: colour, width, type: [6, 4] }, data: [{ yAxis: line.level }] } });
        return;
      }
      series.push({ ...base, data: points.map((p) => [p[0], p[1]]) });
      // Marks on some of the points, not on the same ones for every line.
      const every = Math.max(1, Math.round(points.length / 10));
      const last = points.length - 1;
      const at = points.filter((_, i) => i === last || (i + number * 0.37 * every) % every < 1).map((p) => [p[0], p[1]]);
      series.push({ id: `${key} marks`, name: line.name, type: "scatter", silent: true, data: at, tooltip: { show: false },
        symbol: `path://${MARKS[look.mark]}`, symbolSize: look.thin ? 6 : 8, itemStyle: { color: colour }, z: 4 });
      if (points.some((p) => p.length > 2)) {
        const rim = [...points.map((p) => [p[0], p[1] + (p[2] || 0)]), ...points.toReversed().map((p) => [p[0], p[1] - (p[2] || 0)])];
        series.push({ id: `${key} spread`, type: "custom", silent: true, clip: true, z: 1, data: [rim[0]], tooltip: { show: false },
          renderItem: (_, api) => ({ type: "polygon", shape: { points: rim.map((p) => api.coord(p)) }, style: { fill: colour, opacity: 0.13 } }) });
      }
    });
    const heights = drawn.flatMap(([, line]) => line.level != null ? [line.level] : line.points.flatMap((p) => [p[1] - (p[2] || 0), p[1] + (p[2] || 0)]));
    const narrow = element.clientWidth < 480;
    return {
      grid: { left: 6, right: 18, top: 12, bottom: xName ? 30 : 8, outerBoundsMode: "same", outerBoundsContain: "axisLabel" },
      tooltip: tooltip({ trigger: "axis", axisPointer: { type: "line" }, formatter: (items) => linesTip(items, x, y, xName) }),
      xAxis: { type: log ? "log" : "value", name: xName, nameLocation: "middle", nameGap: 28, scale: true,
        minInterval: x === "count" && !log ? 1 : undefined, splitLine: { show: false }, splitNumber: narrow ? 4 : 6,
        ...(x === "count" && !log ? { min: (v) => (v.max - v.min < 1 ? v.min - 1 : v.min), max: "dataMax" } : log ? logRange(drawn) : {}),
        axisLabel: { formatter: (v) => round(WRITE[x](v)), hideOverlap: true, showMinLabel: log ? false : undefined, showMaxLabel: log ? false : undefined } },
      yAxis: { type: "value", scale: true, axisLabel: { formatter: (v) => round(y === "percent" ? `${v}%` : WRITE[y](v)) }, axisLine: { show: false },
        ...(y === "percent" ? percentRange(heights) : {}) },
      series,
    };
  }

  // At least six points high, or else noise would look like a trend; ticks at round numbers.
  function percentRange(heights) {
    if (!heights.length) return { min: 0, max: 100, interval: 20 };
    const middle = (Math.min(...heights) + Math.max(...heights)) / 2;
    const low = Math.max(0, Math.min(...heights, middle - 3)), high = Math.min(100, Math.max(...heights, middle + 3));
    const step = [1, 2, 5, 10, 20, 25].find((s) => Math.ceil(high / s) - Math.floor(low / s) <= 6) ?? 25;
    return { min: Math.floor(low / step) * step, max: Math.ceil(high / step) * step, interval: step };
  }

  function logRange(drawn) {
    const at = drawn.flatMap(([, line]) => (line.points.length ? [line.points[0][0], line.points.at(-1)[0]] : []));
    if (!at.length) return { min: 1, max: 10 };
    const low = Math.min(...at), high = Math.max(...at);
    // Less than a power of ten would have a single tick.
    return high / low < 12 ? { min: 10 ** Math.floor(Math.log10(low)), max: 10 ** Math.ceil(Math.log10(high * 1.0001)) } : { min: low / 1.2, max: high * 1.2 };
  }

  function linesTip(items, x, y, xName) {
    const seen = new Map();
    for (const item of items) if (item.seriesType === "line") seen.set(item.seriesId, item);
    if (!seen.size) return "";
    const it = [...plots.values()].find((p) => [...seen.keys()].every((key) => key in p.lines));
    const rows = [...seen.values()].sort((a, b) => b.value[1] - a.value[1]).slice(0, 24).map((item) => {
      const look = it?.lines[item.seriesId]?.look;
      return `<tr><td>${look ? swatch(look) : ""}</td><td style="padding:0 14px 0 6px">${escaped(item.seriesName)}</td><td style="text-align:right">${escaped(WRITE[y](item.value[1]))}</td></tr>`;
    });
    const head = x === "bytes" ? `${WRITE.bytes(items[0].value[0])} sent` : `${escaped(xName || "Round")} ${WRITE[x](items[0].value[0])}`;
    return `<div style="opacity:.75;margin-bottom:4px">${head}</div><table>${rows.join("")}</table>`;
  }

  paint();
  protofed.onTheme(() => {
    for (const id of plots.keys()) later(id);
  });
  window.addEventListener("resize", () => {
    clearTimeout(window.runs.resized);
    window.runs.resized = setTimeout(() => { for (const id of plots.keys()) later(id); }, 150);
  });

  return { plot, feed, swatch, plots };
})();
