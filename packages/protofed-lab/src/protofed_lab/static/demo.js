// The pictures of `protofed demo`: two planes and the curves, drawn from the frames that the server sends.
"use strict";

window.protofedDemo = (() => {
  const SIDES = ["left", "right"];
  const GRID = 32000;
  const NOTHING = -32768;
  // One shape per client; ECharts' own names, or paths.
  const SHAPES = [
    ["triangle", "M12 3 22 21H2z"],
    ["rect", "M4 4H20V20H4z"],
    ["diamond", "M12 2 22 12 12 22 2 12z"],
    ["path://M12 21 2 3H22z", "M12 21 2 3H22z"],
    ["path://M9 2h6v7h7v6h-7v7H9v-7H2V9h7z", "M9 2h6v7h7v6h-7v7H9v-7H2V9h7z"],
    ["path://M12 1 15 9 23 9 17 14 19 22 12 17 5 22 7 14 1 9 9 9z", "M12 1 15 9 23 9 17 14 19 22 12 17 5 22 7 14 1 9 9 9z"],
    ["path://M12 2 22 9 18 21H6L2 9z", "M12 2 22 9 18 21H6L2 9z"],
    ["path://M3 3h18v6h-6v12H9V9H3z", "M3 3h18v6h-6v12H9V9H3z"],
    ["path://M2 2h20v20h-6V8H8v14H2z", "M2 2h20v20h-6V8H8v14H2z"],
    ["path://M2 5 7 2 12 8 17 2 22 5 16 12 22 19 17 22 12 16 7 22 2 19 8 12z", "M2 5 7 2 12 8 17 2 22 5 16 12 22 19 17 22 12 16 7 22 2 19 8 12z"],
  ];

  let charts = null;
  let scene = null;
  let frame = null;
  let points = [];
  let waiting = null;
  let against = "round";
  let by = "accuracy";
  let glyphs = false;
  const extent = { left: null, right: null };

  const root = () => document.querySelector(".demo");
  const colour = (k) => protofed.palette()[k % 8];
  // Beyond eight classes colours repeat, and the dots' shape changes.
  const dotShape = (k) => (k < 8 ? "circle" : "diamond");

  function numbers(text, kind) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return new kind(bytes.buffer);
  }

  function pairs(text, scale) {
    const flat = numbers(text, Int16Array);
    return Array.from({ length: flat.length / 2 }, (_, i) =>
      flat[2 * i] === NOTHING ? null : [(flat[2 * i] * scale) / GRID, (flat[2 * i + 1] * scale) / GRID],
    );
  }

  function readable(fill) {
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(fill.slice(i, i + 2), 16) / 255);
    return 0.299 * r + 0.587 * g + 0.114 * b > 0.58 ? "#111" : "#fff";
  }

  // The square that holds everything worth seeing: all prototypes, and the dots but for a few far out. It follows
  // slowly, so that the picture does not jump.
  function square(side, dots, own, shared) {
    const far = dots.filter(Boolean).map(([x, y]) => Math.max(Math.abs(x), Math.abs(y))).sort((a, b) => a - b);
    const all = [...own, ...shared].filter(Boolean);
    if (scene.rays[side]) all.push([0, 0]);
    const limit = far.length ? 1.3 * far[Math.floor(0.97 * (far.length - 1))] : 0;
    all.push(...dots.filter((p) => p && Math.max(Math.abs(p[0]), Math.abs(p[1])) <= limit));
    if (!all.length) return extent[side] ?? { x: 0, y: 0, r: 1 };
    const [xs, ys] = [0, 1].map((i) => all.map((p) => p[i]));
    const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const wanted = { x: (x0 + x1) / 2, y: (y0 + y1) / 2, r: 0.56 * Math.max(x1 - x0, y1 - y0, 1e-6) };
    const last = extent[side];
    const gone = !last || wanted.r > 3 * last.r || wanted.r < last.r / 3;
    const rate = gone ? 1 : 0.25;
    const next = last ?? wanted;
    return Object.fromEntries(["x", "y", "r"].map((n) => [n, next[n] + rate * (wanted[n] - next[n])]));
  }

  function rays(data) {
    return {
      id: "rays",
      type: "custom",
      silent: true,
      z: 1,
      data,
      encode: { x: 0, y: 1 },
      renderItem: (_, api) => {
        const [x, y, label] = [api.value(0), api.value(1), api.value(2)];
        const from = api.coord([0, 0]);
        const to = api.coord([x, y]);
        const length = Math.hypot(to[0] - from[0], to[1] - from[1]) || 1;
        const far = 2000 / length;
        const end = [from[0] + (to[0] - from[0]) * far, from[1] + (to[1] - from[1]) * far];
        const line = (a, b, opacity) => ({
          type: "line",
          shape: { x1: a[0], y1: a[1], x2: b[0], y2: b[1] },
          style: { stroke: colour(label), lineWidth: 2, opacity },
        });
        return { type: "group", children: [line(from, to, 0.75), line(to, end, 0.18)] };
      },
    };
  }

  function drawPlane(side) {
    const chart = charts[side];
    const view = frame[side];
    const dots = pairs(view.dots, view.scale);
    const own = pairs(view.own, view.scale);
    const shared = pairs(view.shared, view.scale);
    const K = scene.digits.length;
    const [ground, ink] = ["card", "ink"].map(protofed.variable);
    const at = (extent[side] = square(side, dots, own, shared));
    const labels = scene.dots.map(([, row]) => Math.floor((row * K) / scene.images.length));
    const small = chart.getWidth() < 240 ? 0.72 : 1;
    const crowd = shared.length > 2 * K;
    const series = [];
    for (let k = 0; k < K; k++) {
      const label = { show: glyphs, position: "inside", formatter: String(scene.digits[k]), color: colour(k), fontSize: 11, fontWeight: 600 };
      series.push({
        id: `dots-${k}`,
        type: "scatter",
        symbol: dotShape(k),
        symbolSize: glyphs ? 10 : 6 * small,
        itemStyle: glyphs ? { color: "transparent" } : { color: colour(k), opacity: 0.6 },
        label,
        z: 2,
        data: dots.flatMap((p, i) => (labels[i] === k ? [{ value: p ?? [NaN, NaN], dot: i }] : [])),
      });
    }
    scene.clients.forEach((name, c) => {
      series.push({
        id: `own-${c}`,
        type: "scatter",
        symbol: SHAPES[c][0],
        symbolSize: 13 * small,
        z: 3,
        data: Array.from({ length: K }, (_, k) => ({
          value: own[c * K + k] ?? [NaN, NaN],
          itemStyle: { color: colour(k), borderColor: ground, borderWidth: 1.5 },
          says: `${name}'s prototype of digit ${scene.digits[k]}`,
        })),
      });
    });
    series.push({
      id: "shared",
      type: "scatter",
      symbol: "circle",
      symbolSize: (crowd ? 14 : 25) * small,
      z: 4,
      data: shared.map((p, i) => {
        const k = view.labels[i];
        const fill = colour(k);
        return {
          value: p ?? [NaN, NaN],
          itemStyle: { color: fill, borderColor: "#fff", borderWidth: 2.5, shadowBlur: 5, shadowColor: "rgba(0,0,0,0.55)" },
          label: { show: true, formatter: String(scene.digits[k]), color: readable(fill), fontWeight: 700, fontSize: (crowd ? 9 : 13) * small },
          says: `Global prototype of digit ${scene.digits[k]}`,
        };
      }),
    });
    series.push(rays(scene.rays[side] && !crowd ? shared.flatMap((p, i) => (p ? [[...p, view.labels[i]]] : [])) : []));
    const predicted = numbers(view.predicted, Int8Array);
    chart.setOption(
      {
        animation: false,
        tooltip: {
          trigger: "item",
          transitionDuration: 0,
          confine: true,
          formatter: ({ data }) => (data.dot === undefined ? data.says : about(data.dot, predicted[data.dot])),
        },
        xAxis: { min: at.x - at.r, max: at.x + at.r },
        yAxis: { min: at.y - at.r, max: at.y + at.r },
        series,
      },
      { replaceMerge: ["series"], lazyUpdate: true },
    );
  }

  // What the tooltip of a dot shows: the image itself.
  function about(dot, predicted) {
    const [client, row] = scene.dots[dot];
    const image = scene.images[row];
    const [x, y] = [image % scene.columns, Math.floor(image / scene.columns)];
    const digit = scene.digits[Math.floor((row * scene.digits.length) / scene.images.length)];
    const found = predicted < 0 ? "nothing" : scene.digits[predicted];
    return (
      `<div class="seen"><span class="digit" style="background-position:${-x * 56}px ${-y * 56}px;` +
      `background-size:${scene.columns * 56}px auto"></span><span>A test image of digit <b>${digit}</b><br>` +
      `as ${scene.clients[client]} sees it<br>taken for <b>${found}</b>${found === digit ? "" : " ✗"}</span></div>`
    );
  }

  function drawCurves() {
    const [ink, soft, ground] = ["ink", "soft", "card"].map(protofed.variable);
    const narrow = charts.curves.getWidth() < 520;
    const series = SIDES.map((side, s) => {
      const [accuracy, head, bytes] = [1, 2, 3].map((i) => i + 3 * s);
      const y = by === "head" ? head : accuracy;
      const data = points.map((p) => [against === "bytes" ? p[bytes] : p[0], p[y]]);
      const ended = frame[side].ended;
      const most = Math.max(frame.left.bytes, frame.right.bytes);
      // A side that has finished sends no more: its line goes on, level, as far as the other's.
      if (ended !== null && against === "bytes") data.push([most, data.at(-1)[1]]);
      return {
        id: side,
        name: scene.methods[side],
        type: "line",
        data,
        showSymbol: false,
        z: 2 + s,
        lineStyle: { width: s ? 3 : 2.5, type: s ? "solid" : [7, 4], color: s ? ink : soft },
        itemStyle: { color: s ? ink : soft },
        endLabel: { show: false },
        markPoint: {
          silent: true,
          symbol: "circle",
          symbolSize: 9,
          label: {
            show: !narrow,
            position: [0, 14],
            align: against === "bytes" && 2 * frame[side].bytes > most ? "right" : "left",
            color: s ? ink : soft,
            backgroundColor: ground,
            formatter: frame[side].texts.ended,
          },
          data: ended === null || !data[ended] ? [] : [{ coord: data[ended] }],
        },
      };
    });
    charts.curves.setOption(
      {
        grid: { left: 44, right: 16, top: 12, bottom: 24 },
        xAxis: {
          minInterval: against === "bytes" ? 0 : 1,
          max: against === "bytes" ? null : Math.max(20, 10 * Math.ceil((points.length - 1) / 10)),
          axisLabel: { formatter: against === "bytes" ? (v) => protofed.size(v).replace(/\.0+ /, " ") : "{value}" },
          splitNumber: narrow ? 2 : 5,
        },
        yAxis: { axisLabel: { formatter: (v) => `${Math.round(100 * v)}%` } },
        tooltip: { valueFormatter: (v) => `${(100 * v).toFixed(1)}%` },
        series,
      },
      { lazyUpdate: true },
    );
  }

  function write() {
    root().dataset.round = frame.round;
    root().querySelector('[data-read="round"]').textContent = frame.round;
    root().querySelector('[data-read="answer"]').textContent = frame.answer;
    for (const side of SIDES) {
      const texts = { ...frame[side].texts };
      if (by === "head") texts.accuracy = texts.head;
      for (const name of ["accuracy", "bytes", "seconds", "separation", "unseen", "ended"])
        root().querySelector(`.side[data-side="${side}"] [data-read="${name}"]`).textContent = texts[name];
      texts.clients.forEach((text, c) => (root().querySelector(`[data-accuracy="${side}-${c}"]`).textContent = text));
    }
  }

  function draw() {
    if (!charts || !scene || !frame) return;
    SIDES.forEach(drawPlane);
    drawCurves();
    write();
  }

  function shape(client) {
    return `<svg viewBox="0 0 24 24" class="shape" aria-hidden="true"><path d="${SHAPES[client][1]}"/></svg>`;
  }

  function key() {
    const digits = scene.digits.map((digit, k) => `<span class="class ${dotShape(k)}" style="--c:${colour(k)}">${digit}</span>`).join("");
    const clients = scene.clients.map((name, c) => `<span>${shape(c)}${c ? name.replace("Client ", "") : name}</span>`).join(" ");
    root().querySelector(".key").innerHTML =
      `<li>${digits}<span>the digits</span></li>` +
      `<li><i class="dot"></i><span>a test image, as a client's model sees it</span></li>` +
      `<li>${clients}<span>their own prototypes</span></li>` +
      `<li><i class="ring"></i><span>global prototype${SIDES.some((side) => scene.rays[side]) ? ", at the end of its ray" : ""}</span></li>`;
    for (const side of SIDES)
      root().querySelector(`.line[data-side="${side}"] span`).textContent = scene.methods[side];
    root().querySelectorAll("[data-client]").forEach((e) => (e.innerHTML = shape(+e.dataset.client)));
  }

  return {
    mount(ids) {
      const look = () => {
        const found = Object.fromEntries(Object.entries(ids).map(([n, id]) => [n, protofed.instance(id)]));
        if (Object.values(found).some((c) => !c)) return setTimeout(look, 20);
        charts = found;
        protofed.onTheme(() => scene && (key(), draw()));
        if (scene) key();
        draw();
        setTimeout(draw, 50); // NiceGUI sets the server's empty options up to 10 ms after a chart appeared
        if (waiting) this.frame(waiting);
      };
      look();
    },
    scene(next) {
      scene = next;
      frame = null;
      points = [];
      waiting = null;
      extent.left = extent.right = null;
      key();
    },
    frame(next) {
      if (!charts) return void (waiting = next);
      frame = next;
      points.push(...next.points);
      requestAnimationFrame(() => {
        draw();
        emitEvent("drawn");
      });
    },
    against(value) {
      against = value;
      draw();
    },
    by(value) {
      by = value;
      draw();
    },
    glyphs(value) {
      glyphs = value;
      draw();
    },
  };
})();
