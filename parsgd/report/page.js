// Draws the plots, filters them by what a configuration is, follows light and dark.
"use strict";
const parsgd = (() => {
  const { figures, configurations, facets, colors, dashes } =
    JSON.parse(document.getElementById("data").textContent);
  for (const { data } of Object.values(figures)) {
    for (const trace of data) { // a trace names its configuration, or one per point
      const meta = trace.meta || {};
      if (meta.key) {
        const { facets: own, about } = configurations[meta.key];
        Object.assign(meta, { facets: own }, meta.about ? { about } : {});
      } else if (meta.keys) {
        const points = meta.keys.map((key) => configurations[key]);
        trace.text = points.map((point) => point.about);
        // What differs along a line (the workers) does not hide it.
        meta.facets = Object.fromEntries(Object.entries(points[0].facets)
          .filter(([key, value]) => points.every((p) => p.facets[key] === value)));
      }
    }
  }
  const hidden = Object.fromEntries(Object.keys(facets).map((key) => [key, new Set()]));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const mouse = matchMedia("(hover: hover)").matches; // a finger scrolls past the plots
  const DASH = { solid: "", dash: "8 4", dot: "2 3", dashdot: "8 3 2 3",
    longdash: "13 4", longdashdot: "13 3 2 3" };

  function shown(trace) {
    const own = (trace.meta || {}).facets || {};
    return Object.entries(own).every(([key, value]) => !hidden[key]?.has(value));
  }

  // Points that no other visible one matches in both: less time and more accuracy.
  function front(traces) {
    const points = traces.filter((t) => t.meta?.about && shown(t))
      .map((t) => [t.x[0], t.y[0]]).sort((a, b) => a[0] - b[0] || b[1] - a[1]);
    let best = -Infinity;
    return points.filter(([, y]) => y > best && ((best = y), true));
  }

  function theme() {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(name).trim();
    const axis = { gridcolor: get("--edge"), linecolor: get("--edge"),
      zerolinecolor: get("--edge") };
    return { axis, soft: get("--soft"), font: { color: get("--text"), size: 13,
      family: getComputedStyle(document.body).fontFamily },
      hoverlabel: { bgcolor: get("--card"), bordercolor: get("--edge"),
        font: { color: get("--text") } } };
  }

  function draw(id, figure) {
    const { axis, font, hoverlabel, soft } = theme();
    const layout = { ...figure.layout, font, hoverlabel, template: {},
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 62, r: 14, t: 30, b: 48 }, showlegend: false, hovermode: "closest",
      dragmode: mouse ? "zoom" : false,
      modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: font.color },
      xaxis: { automargin: true, ...figure.layout.xaxis, ...axis },
      yaxis: { automargin: true, ...figure.layout.yaxis, ...axis } };
    const data = figure.data.map((trace) => {
      if (trace.meta?.front) {
        const points = front(figure.data);
        return { ...trace, x: points.map((p) => p[0]), y: points.map((p) => p[1]) };
      }
      return { ...trace, visible: shown(trace) };
    });
    return Plotly.react(id, data, layout, { responsive: true, displaylogo: false,
      showSendToCloud: false, // the page never talks to a network
      modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d", "zoomIn2d",
        "zoomOut2d"], displayModeBar: mouse && "hover" });
  }

  const drawAll = () => Promise.all(Object.entries(figures).map(([id, f]) => draw(id, f)));

  function mark(key, value) {
    if (key === "strategy" && colors[value]) {
      const swatch = document.createElement("span");
      swatch.className = "swatch";
      swatch.style.background = colors[value];
      return [swatch];
    }
    if (key !== "workers") return [];
    const line = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    line.innerHTML = `<line x1="0" y1="5" x2="30" y2="5" stroke="currentColor"
      stroke-width="2" stroke-dasharray="${DASH[dashes[value]]}"/>`;
    return [line];
  }

  function chip(key, value) {
    const button = document.createElement("button");
    button.className = "chip";
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.append(...mark(key, value), value);
    button.addEventListener("click", () => {
      const off = hidden[key];
      if (!off.delete(value)) off.add(value);
      button.setAttribute("aria-pressed", String(!off.has(value)));
      drawAll();
    });
    return button;
  }

  function filters() {
    const bar = document.getElementById("filters");
    for (const [key, values] of Object.entries(facets)) {
      const row = document.createElement("div");
      const name = document.createElement("span");
      name.textContent = key;
      row.className = "facet";
      row.append(name, ...values.map((value) => chip(key, value)));
      bar.append(row);
    }
  }

  const digits = (n) => new Intl.NumberFormat("en", { maximumSignificantDigits: n });
  const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

  // As the terminal has it: whole where it is large.
  const number = (value) => (Math.abs(value) < 100 ? digits(3) : whole).format(value);

  function bytes(value) {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let i = 0;
    while (value >= 999.5 && i < units.length - 1) { value /= 1000; i += 1; }
    return `${digits(3).format(value)} ${units[i]}`;
  }

  // An error as the terminal has it: 0 only where all runs gave the same.
  function error(sem, k) {
    if (sem == null) return "";
    if (sem < 1e-7) return ` ± ${sem.toPrecision(1)}`; // of 0 "0"
    return ` ± ${sem.toFixed(Math.max(k, -Math.floor(Math.log10(sem))))}`;
  }

  // A cell of the table: the number itself to sort by, words to show and to filter.
  function cell(form, value, type, row, beside) {
    if (type === "sort" || type === "type") return value;
    if (value === null) return "";
    const [sem, runs] = beside.map((i) => row[i]); // runs: n, or "1 of 2"
    const [some, all] = String(runs ?? "").split(" of ");
    const part = all === undefined || some === all ? "" : ` (${runs})`;
    if (form === "accuracy") return `${value.toFixed(4)}${error(sem, 4)} (n=${runs})`;
    if (form === "seconds") { // finer where it is short, as the terminal has it
      const k = value < 1 ? 4 : 2;
      const text = value < 100 ? `${value.toFixed(k)}${error(sem, k)}`
        : `${whole.format(value)}${error(sem, 0)}`;
      return text + part;
    }
    if (form === "bytes") {
      const more = sem == null ? "" : ` ± ${sem === 0 ? "0" : bytes(sem)}`;
      return bytes(value) + more + part;
    }
    if (form === "count") {
      return number(value) + (sem == null ? "" : ` ± ${number(sem)}`) + part;
    }
    return number(value);
  }

  // A kind of column for DataTables, whose missing values are last in both directions.
  function missingLast($) {
    const missing = (x) => x === null || x === "";
    const compared = (a, b) => typeof a === "number" && typeof b === "number"
      ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
    const order = (sign) => (a, b) => missing(a) || missing(b)
      ? missing(a) - missing(b) : sign * compared(a, b);
    Object.assign($.fn.dataTable.ext.type.order,
      { "parsgd-asc": order(1), "parsgd-desc": order(-1) });
    return "parsgd";
  }

  function start() {
    filters();
    dark.addEventListener("change", () => {
      document.documentElement.classList.toggle("dark", dark.matches);
      drawAll();
    });
    return drawAll();
  }

  return { start, cell, missingLast };
})();
