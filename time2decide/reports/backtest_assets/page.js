"use strict";
const D = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const make = (tag, text, attributes = {}) => {
  const node = document.createElement(tag);
  if (text !== null && text !== undefined) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
};
/* Text whose parts in backticks are code. */
const prose = (tag, text) => {
  const node = make(tag, null);
  node.append(...text.split("`").map((part, i) => (i % 2 ? make("code", part) : part)));
  return node;
};
const number = (x, digits = 2) => (x === null || x === undefined ? "–" : x.toFixed(digits).replace(/^-(0\.?0*)$/, "$1").replace("-", "−"));
const percent = (x, digits = 1) => (x === null || x === undefined ? "–" : number(100 * x, Math.abs(x) < 10 ? digits : 0) + "\u00a0%");
const signed = (x, digits = 2) => (x === null || x === undefined ? "–" : (x > 0 && Number(x.toFixed(digits)) > 0 ? "+" : "") + number(x, digits));
const basisPoints = (x) => number(1e4 * x, Math.abs(x) < 1e-5 ? 3 : 1); // basis points; more digits of small ones
const typeset = (text) => text.replace(/(^|[^\w])-(?=\d)/g, "$1−").replace(/(\d) ?%/g, "$1\u00a0%"); // minus signs, no break before %
const narrow = () => window.innerWidth < 600;
const MOST_TRADES = 15; // shown before the smaller ones are folded away
const MOST_LINES = 6; // strategies drawn at first
function shownFirst() {
  const usual = D.names.filter((name) => name !== "oracle");
  if (usual.length <= MOST_LINES) return new Set(usual);
  const rows = D.summary.filter((row) => row.turnover_l1 === D.budgets[0] && row.strategy !== "oracle");
  const best = rows.sort((a, b) => b.sharpe - a.sharpe).map((row) => row.strategy);
  const first = [...new Set([D.own ?? best[0], "uniform", ...best])].filter((name) => usual.includes(name));
  return new Set(first.slice(0, MOST_LINES));
}
const state = { budget: 0, shown: shownFirst(), sort: ["sharpe", -1] };

/* ---------- theme ---------- */
const dark = () => document.documentElement.dataset.theme === "dark";
document.documentElement.dataset.theme = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
at("theme").addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; drawAll(); });

/* ---------- charts ---------- */
function layout(extra = {}) {
  const text = dark() ? "#e8ebee" : "#1b1f24", line = dark() ? "#343b43" : "#d9dee4";
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  const { xaxis = {}, yaxis = {}, ...rest } = extra;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: text, size: narrow() ? 11 : 12 },
    margin: { l: 44, r: 10, t: 8, b: 34 }, showlegend: false, hovermode: narrow() ? "closest" : "x unified",
    hoverlabel: { bgcolor: dark() ? "#1d2126" : "#ffffff", font: { color: text } },
    xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
  };
}
/* The chart library is packed in the page; everything but the charts is there before it is unpacked. */
async function unpackPlotly() {
  const packed = Uint8Array.from(atob(at("plotly").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  document.head.append(make("script", await new Response(stream).text()));
}
const draw = (id, traces, extra) => Plotly.react(at(id), traces, layout(extra), { responsive: true, displayModeBar: false });
const chosen = () => D.names.filter((name) => state.shown.has(name));
/* Lines that lie on each other are told apart: its own is a wide band below, the others are thin, dashed ones on top. */
const DASHES = { solid: "", dash: "9 5", dot: "2.5 3", dashdot: "9 4 2.5 4", longdash: "18 4", pairs: "5 3 5 8" };
function dashOf(name) {
  const kinds = Object.keys(DASHES).slice(D.own ? 1 : 0), others = D.names.filter((one) => one !== D.own);
  return name === D.own ? "solid" : kinds[others.indexOf(name) % kinds.length];
}
const strokeOf = (name) => (name === D.own ? 4 : 1.8) * (narrow() ? 0.75 : 1);
const dashed = (name) => (name === D.own ? -1 : Number(dashOf(name) !== "solid"));
function lines(id, key, extra = {}, labelled = false) {
  const path = (name) => D.paths[state.budget][name][key];
  const names = chosen().sort((a, b) => dashed(a) - dashed(b));
  const traces = names.map((name) => ({
    x: D.time, y: path(name), name, mode: "lines", opacity: name === D.own && !dark() ? 0.7 : 1,
    line: { width: strokeOf(name), color: D.colours[name], dash: dashed(name) > 0 ? DASHES[dashOf(name)].replaceAll(" ", "px,") + "px" : "solid" },
  }));
  draw(id, traces, labelled && names.length && !narrow() ? { ...extra, ...endLabels(id, names, path, extra) } : extra);
}
/* Names at the right end of the lines, moved apart where they would cover each other. */
function endLabels(id, names, path, extra) {
  const log = extra.yaxis?.type === "log", scaled = (y) => (log ? Math.log10(y) : y), step = 15 / (at(id).clientHeight - 42);
  const all = names.flatMap((name) => path(name).map(scaled)), least = Math.min(...all), most = Math.max(...all);
  const room = 0.04 * (most - least || 1), range = [least - room, most + room];
  const ends = names.map((name) => ({ name, y: (scaled(path(name).at(-1)) - range[0]) / (range[1] - range[0]) })).sort((a, b) => a.y - b.y);
  ends.forEach((end, i) => { if (i) end.y = Math.max(end.y, ends[i - 1].y + step); });
  ends.reverse().forEach((end, i) => { end.y = Math.min(end.y, i ? ends[i - 1].y - step : 1); });
  return {
    yaxis: { ...extra.yaxis, range }, margin: { l: 44, r: 12 + 7 * Math.min(24, Math.max(...names.map((name) => name.length))), t: 8, b: 34 },
    annotations: ends.map(({ name, y }) => ({
      xref: "paper", yref: "paper", x: 1, y, xanchor: "left", yanchor: "middle", xshift: 4, showarrow: false,
      text: plain(name.length > 24 ? name.slice(0, 23) + "…" : name), font: { color: D.colours[name], size: 12 },
    })),
  };
}
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"); // the chart library reads tags in texts
function drawAreas() {
  const held = at("held").value, parts = D.areas[state.budget][held];
  const traces = parts.map(({ name, weights }, i) => ({
    x: D.areaTime, y: weights, name, stackgroup: "one", mode: "lines",
    line: { width: 0.4, color: D.palette[i % D.palette.length] }, hovertemplate: "%{y:.1%}",
  }));
  const legend = narrow() ? { orientation: "h", y: -0.15 } : {};
  draw("areas", traces, { yaxis: { range: [0, 1], tickformat: ".0%" }, hovermode: "closest", showlegend: true, legend });
}
/* Of one budget: a row per strategy, the best on top. */
function drawOneComparison() {
  const rows = D.summary.filter((row) => state.shown.has(row.strategy)).sort((a, b) => a.sharpe - b.sharpe);
  at("compare").style.height = 60 + 34 * Math.max(rows.length, 2) + "px";
  draw("compare", [{
    mode: "markers", y: rows.map((row) => row.strategy), x: rows.map((row) => row.sharpe), marker: { size: 11, color: rows.map((row) => D.colours[row.strategy]) },
    hovertemplate: "%{y}: %{x:.2f}<extra></extra>",
    error_x: {
      type: "data", symmetric: false, thickness: 1.6, width: 5, color: dark() ? "#9aa5b1" : "#5b6570",
      array: rows.map((row) => row.sharpe_high - row.sharpe), arrayminus: rows.map((row) => row.sharpe - row.sharpe_low),
    },
  }], { hovermode: "closest", xaxis: { title: { text: `Sharpe ratio a ${D.facts.span}` }, zeroline: true }, yaxis: { type: "category", ticktext: rows.map((row) => plain(row.strategy)), tickvals: rows.map((row) => row.strategy) } });
}
function drawComparison() {
  if (D.budgets.length === 1) return drawOneComparison();
  const traces = chosen().map((name) => {
    const rows = D.summary.filter((row) => row.strategy === name);
    return {
      type: "bar", name, x: rows.map((row) => "γ = " + row.turnover_l1), y: rows.map((row) => row.sharpe), marker: { color: D.colours[name] },
      error_y: {
        type: "data", symmetric: false, thickness: 1, width: 2, color: dark() ? "#9aa5b1" : "#5b6570",
        array: rows.map((row) => row.sharpe_high - row.sharpe), arrayminus: rows.map((row) => row.sharpe - row.sharpe_low),
      },
    };
  });
  draw("compare", traces, { barmode: "group", hovermode: "closest" });
}
function drawFrontier() {
  const curve = D.decision.frontier.curve, now = D.decision, x = curve.turnover_l1.map((turnover) => 100 * turnover);
  const here = { x: [100 * now.turnover_from_budget], y: [1e4 * gainAt(now.turnover_from_budget)] }, budget = 100 * now.turnover_l1;
  const line = dark() ? "#9aa5b1" : "#5b6570";
  draw("frontier", [
    { x, y: curve.gain.map((gain) => 1e4 * gain), mode: "lines", name: "gain", line: { color: D.colours[D.own] ?? D.palette[0], width: 2.4 }, hovertemplate: "turnover %{x:.1f} %: gain %{y:.2f} bp<extra></extra>" },
    { ...here, mode: "markers", name: "this decision", marker: { size: 12, color: "#D55E00" }, hovertemplate: "this decision: turnover %{x:.1f} %, gain %{y:.2f} bp<extra></extra>" },
  ], {
    hovermode: "closest", showlegend: false, margin: { l: 56, r: 10, t: 8, b: 56 }, xaxis: { title: { text: "turnover, % of the portfolio", standoff: 14 }, ticksuffix: " %", rangemode: "tozero" },
    yaxis: { title: { text: "gain net of costs, bp", standoff: 14 }, rangemode: "tozero" },
    shapes: budget <= x.at(-1) ? [{ type: "line", x0: budget, x1: budget, yref: "paper", y0: 0, y1: 1, line: { color: line, width: 1, dash: "dot" } }] : [],
    annotations: [
      ...(budget <= x.at(-1) ? [{ x: budget, yref: "paper", y: 0.06, text: "budget γ", showarrow: false, xanchor: "left", xshift: 4, font: { color: line } }] : []),
      { x: here.x[0], y: here.y[0], text: "this decision", showarrow: false, ...(here.x[0] > 0.6 * x.at(-1) ? { xanchor: "right", xshift: -6, yshift: 16 } : { xanchor: "left", xshift: 10, yshift: -18 }) },
    ],
  });
}
function drawAll() {
  if (!window.Plotly) return;
  lines("wealth", "wealth", { yaxis: { type: "log" } }, true);
  lines("drawdown", "drawdown", { yaxis: { ticksuffix: " %" } });
  lines("traded", "traded", { yaxis: { rangemode: "tozero" } });
  if (D.names.includes("oracle")) {
    at("regrets").hidden = false;
    lines("regret", "regret", { yaxis: { ticksuffix: " %" } }, true);
  }
  drawAreas();
  drawComparison();
  if (!at("worth").hidden && !at("frontier").hidden) drawFrontier();
}

/* ---------- tables ---------- */
const interval = (row, key, form) => (row[key + "_low"] === undefined ? "" : " [" + form(row[key + "_low"]) + ", " + form(row[key + "_high"]) + "]");
const yearly = (x) => (x === null || x === undefined ? null : 100 * D.facts.periods * x);
const beyond = (row, key) => (row[key + "_low"] > 0 ? "up" : row[key + "_high"] < 0 ? "down" : "");
const COLUMNS = [
  { key: "strategy", title: "strategy", form: (row) => row.strategy },
  { key: "annual_return", title: "return", form: (row) => percent(row.annual_return), small: (row) => interval(row, "annual_return", (x) => number(100 * x, 0)) },
  { key: "annual_volatility", title: "volatility", form: (row) => percent(row.annual_volatility), small: (row) => interval(row, "annual_volatility", (x) => number(100 * x, 1)) },
  { key: "sharpe", title: "Sharpe", form: (row) => number(row.sharpe), small: (row) => interval(row, "sharpe", number) },
  { key: "net_utility", title: "utility", form: (row) => number(yearly(row.net_utility), 1) + " %", small: (row) => interval(row, "net_utility", (x) => number(yearly(x), 1)) },
  { key: "traded", title: "turnover", form: (row) => percent(row.traded, 2) },
  { key: "max_drawdown", title: "drawdown", form: (row) => percent(row.max_drawdown) },
  ...(D.differences.length ? [
    { key: "sharpe_gain", title: D.own + " − this, Sharpe", form: (row) => signed(row.sharpe_gain), small: (row) => (row.sharpe_gain === undefined ? "" : interval(row, "sharpe_gain", signed)), tone: (row) => beyond(row, "sharpe_gain") },
    { key: "net_utility_gain", title: D.own + " − this, utility", form: (row) => (row.net_utility_gain === undefined ? "–" : signed(yearly(row.net_utility_gain), 1) + " %"), small: (row) => (row.net_utility_gain === undefined ? "" : interval(row, "net_utility_gain", (x) => signed(yearly(x), 1))), tone: (row) => beyond(row, "net_utility_gain") },
  ] : "sharpe_excess" in D.summary[0] ? [
    { key: "sharpe_excess", title: "Sharpe − 1/N", form: (row) => signed(row.sharpe_excess), small: (row) => interval(row, "sharpe_excess", signed), tone: (row) => beyond(row, "sharpe_excess") },
  ] : []),
];
function results() {
  const budget = D.budgets[state.budget], place = state.budget;
  if (D.budgets.length === 1) at("compared").textContent = "After costs, with 95 % intervals.";
  at("results").textContent = "What it would have earned at turnover budget γ = " + budget;
  at("findings").replaceChildren(...D.findings[place].map((text) => prose("li", typeset(text))));
  const rows = D.summary.filter((row) => row.turnover_l1 === budget).map((row) => {
    const gain = D.differences.find((one) => one.strategy === row.strategy && one.turnover_l1 === budget) ?? {};
    const added = Object.entries(gain).filter(([key]) => /^(sharpe|net_utility)/.test(key));
    return { ...row, ...Object.fromEntries(added.map(([key, x]) => [key.replace(/^(sharpe|net_utility)/, "$1_gain"), x])) };
  });
  sortable(at("summary"), COLUMNS, rows, state.sort, (row) => (row.strategy === D.own ? "own" : ""));
}
function sortable(table, columns, rows, order, kind = () => "") {
  const show = () => {
    const [key, sign] = order, value = (row) => row[key] ?? -Infinity;
    const sorted = [...rows].sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * sign);
    const top = make("thead"), head = make("tr"), body = make("tbody");
    for (const { key: name, title, fixed, className } of columns) {
      const cell = make("th", fixed ? title : null, { scope: "col", class: className ?? "" });
      if (!fixed) {
        cell.setAttribute("aria-sort", name === key ? (sign > 0 ? "ascending" : "descending") : "none");
        const button = make("button", title, { type: "button", "data-key": name, title: D.columns[title] ?? "" });
        button.addEventListener("click", () => {
          order[1] = order[0] === name ? -order[1] : typeof rows[0][name] === "string" ? 1 : -1;
          order[0] = name;
          show();
          table.querySelector(`button[data-key="${name}"]`).focus();
        });
        cell.append(button);
      }
      head.append(cell);
    }
    for (const row of sorted) body.append(line(columns, row, kind(row)));
    top.append(head);
    table.replaceChildren(top, body);
  };
  show();
}
function line(columns, row, kind) {
  const made = make("tr", null, kind ? { class: kind } : {});
  for (const { title, form, small, tone, className } of columns) {
    const cell = make("td", null, { "data-label": title, class: [tone?.(row), className].filter(Boolean).join(" ") });
    cell.append(make("span", form(row)));
    if (small?.(row)) cell.append(make("span", small(row), { class: "interval" }));
    made.append(cell);
  }
  return made;
}

/* ---------- the decision ---------- */
const traded = (x) => Math.abs(x) > 5e-5;
function why(asset) {
  const parts = D.decision.reasons_bps;
  const words = { risk: "risk", prior: "mean", forecast: "forecast" };
  return Object.keys(words).map((part) => [words[part], parts[part][asset]]).filter(([, x]) => Math.abs(x) >= 0.05)
    .map(([word, x]) => word + " " + signed(x, 1)).join(", ");
}
function decisionTable() {
  const now = D.decision, assets = Object.keys(now.weights), trades = assets.filter((asset) => traded(now.change[asset]));
  at("latest").hidden = false;
  const whose = now.input.simulated ? "From the simulated portfolio of the backtest, not yours: for yours use `time2decide decide --previous`. " : "";
  if (whose) at("trading").textContent = "What to trade from the simulated portfolio of the backtest";
  at("decided").replaceChildren(...prose("p", whose + (!trades.length ? "Nothing: no trade is worth its cost. " + riskWords(now) :
    `${trades.length} of ${assets.length} assets: ${percent(now.turnover, 2)} turnover, budget ${percent(now.turnover_l1, 0)}` +
    (now.exact ? `; the trade costs ${number(1e4 * now.exact.cost, 1)} bp of the portfolio. ` : ". ") + riskWords(now) +
    (now.input.previous_given ? "" : " Current weights were not given: equal weights are assumed.") +
    (now.constraints.satisfied ? "" : " A CONSTRAINT IS VIOLATED.") +
    (now.constraints.waiting?.length ? ` NOT MET, because it cannot be traded: ${now.constraints.waiting.join(", ")}.` : ""))).childNodes);
  at("limits").hidden = !now.limit_words?.length;
  at("limits").replaceChildren(...(now.limit_words ?? []).map((text) => make("li", typeset(text))));
  const gaps = [now.gap_summary, ...(now.gap_notes ?? [])].filter(Boolean);
  at("gaps").hidden = !gaps.length;
  at("gaps").replaceChildren(...gaps.map((text) => make("li", text)));
  const rows = trades.map((asset) => ({
    asset, size: Math.abs(now.change[asset]), change: now.change[asset], weight: now.weights[asset], forecast: now.forecast[asset],
    spread: now.uncertainty?.weights[asset],
  })).sort((a, b) => b.size - a.size);
  const columns = [
    { key: "asset", title: "asset", form: (r) => r.asset }, { key: "change", title: "trade, %", form: (r) => signed(100 * r.change), tone: (r) => (r.change > 0 ? "up" : "down") },
    { key: "weight", title: "weight, %", form: (r) => number(100 * now.previous[r.asset]) + " → " + number(100 * r.weight) },
    ...(now.uncertainty ? [{ key: "spread", title: "± s.d.", form: (r) => percent(r.spread) }] : []),
    ...(now.reasons_bps ? [{ key: "why", title: `why, bp a ${now.period}`, fixed: true, form: (r) => why(r.asset), className: "why" }]
      : [{ key: "forecast", title: "forecast, bp", form: (r) => signed(1e4 * r.forecast, 1) }]),
  ];
  at("trades").hidden = !trades.length;
  if (trades.length) sortable(at("trades"), columns, rows.slice(0, MOST_TRADES), ["size", -1]);
  const small = rows.slice(MOST_TRADES);
  if (small.length) {
    at("smaller").hidden = false;
    at("smaller").firstChild.textContent = `${small.length} smaller trades, ${percent(small.reduce((sum, r) => sum + r.size, 0), 2)} of turnover together`;
    sortable(at("small"), columns, small, ["size", -1]);
  }
  untraded(now, assets.filter((asset) => !traded(now.change[asset])));
  at("whyhint").textContent = now.reasons_bps && trades.length ?
    `Why: what one more unit of the asset brings a ${now.period} beside the target portfolio, by its risk, its expected mean and its forecast. Their sum is greater for what is bought than for what is sold, trades that a limit forces apart.` :
    now.uncertainty && trades.length ? "± s.d.: one standard deviation of the weight over perturbed histories." : "";
}
function riskWords(now) {
  const year = Math.sqrt(D.facts.periods);
  return `Expected volatility ${percent(year * now.risk_previous, 2)} before, ${percent(year * now.risk, 2)} after, a ${D.facts.span}.`;
}
function untraded(now, assets) {
  if (!assets.length) return;
  const kept = assets.filter((asset) => now.weights[asset] > 5e-5).sort((a, b) => now.weights[b] - now.weights[a]);
  const none = assets.length - kept.length, share = kept.reduce((sum, asset) => sum + now.weights[asset], 0);
  at("untraded").hidden = false;
  at("untraded").open = assets.length === Object.keys(now.weights).length && kept.length <= 30;
  at("untraded").firstChild.textContent = `Not traded: ${kept.length} held (${percent(share)} of the portfolio)` + (none ? `, ${none} not held` : "");
  at("kept").append(...kept.flatMap((asset) => [make("span", `${asset} ${percent(now.weights[asset], 2)}`), " "]));
}
function verdictTable() {
  const { verdict, without_forecasts: without, weights } = D.decision;
  at("judged").hidden = false;
  at("verdict").textContent = typeset(verdict.text);
  sortable(at("records"), [
    { key: "first", title: "forecast of", form: (r) => (r.last > r.first ? `${D.decision.period}s ${r.first} to ${r.last}` : r.last === 1 ? `the next ${D.decision.period}` : `${D.decision.period} ${r.last}`) + `, from ${r.reads}` },
    { key: "slope", title: "outcomes followed", form: (r) => percent(r.slope, 0), small: (r) => ` [${percent(r.interval[0], 0)}, ${percent(r.interval[1], 0)}]`, tone: (r) => (r.interval[0] > 0 ? "up" : r.interval[1] < 0 ? "down" : "") },
    { key: "follow", title: "followed", form: (r) => percent(r.follow, 0) },
  ], verdict.records, ["first", 1]);
  const differs = Object.keys(weights).reduce((sum, asset) => sum + Math.abs(weights[asset] - without[asset]), 0);
  at("recordhint").textContent = "How much of a forecast came true out of sample so far, with 95 % intervals (green: more than nothing; red: the reverse). " +
    `Without forecasts the weights would differ by ${percent(differs, 2)} (ℓ1).`;
}
function gainAt(turnover) {
  const { turnover_l1: x, gain } = D.decision.frontier.curve;
  const next = x.findIndex((one) => one >= turnover);
  if (next < 0) return gain.at(-1);
  if (next === 0) return gain[0];
  return gain[next - 1] + ((gain[next] - gain[next - 1]) * (turnover - x[next - 1])) / (x[next] - x[next - 1]);
}
function frontierWords() {
  const now = D.decision, { points, stops_paying_at: stop } = now.frontier, last = points.at(-1);
  at("worth").hidden = false;
  const least = points[0].turnover_l1;
  if (stop - least < 5e-5) { // one point, which is no curve
    at("stops").textContent = least < 5e-5 ? "No trade pays for its cost: the best turnover is 0." :
      `The constraints ask for a turnover of ${percent(least)}. More than that does not pay.`;
    at("frontier").hidden = true;
    return;
  }
  const here = gainAt(now.turnover_from_budget), days = Math.round(now.days ?? 1), over = days === 1 ? `the next ${now.period}` : `${days} ${now.period}s`;
  at("stops").textContent = `Expected gain in utility over ${over} beside no trade, net of costs. ` +
    (least < 5e-5 ? "Trading" : `The constraints ask for a turnover of ${percent(least)}, which brings ${basisPoints(gainAt(least))} bp. Beyond it trading`) +
    ` pays up to a turnover of ${percent(stop)}: ` +
    `${basisPoints(last.gain)} bp of the portfolio. This decision trades ${percent(now.turnover_from_budget)} for ${basisPoints(here)} bp.`;
}

/* ---------- words and buttons ---------- */
function lead() {
  const f = D.facts;
  at("lead").textContent = `${f.assets} assets. Walk-forward over ${f.steps} steps from ${f.first} to ${f.last}: each strategy chose weights from at least ${f.window} steps before it, traded ${f.traded}. ` +
    `Costs ${f.cost_bps} bp of the amount traded; risk aversion λ = ${f.risk_aversion}.` + (f.constraints ? " " + typeset(f.constraints) : "");
  for (const [name, meaning] of Object.entries(D.columns)) at("meanings").append(make("dt", name), prose("dd", meaning));
}
function chooseBudget(place) {
  state.budget = place;
  for (const button of document.querySelectorAll(".budgets button")) button.setAttribute("aria-pressed", Number(button.dataset.place) === place);
  results();
  drawAll();
}
function swatch(name) {
  const draw = (tag, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  const box = draw("svg", { width: 30, height: 10, class: "swatch", "aria-hidden": "true" });
  box.append(draw("line", { x1: 0, x2: 30, y1: 5, y2: 5, stroke: D.colours[name], "stroke-width": strokeOf(name) + 0.4, "stroke-dasharray": DASHES[dashOf(name)] }));
  return box;
}
function undrawn() {
  at("undrawn").hidden = state.shown.size === D.names.length;
  at("undrawn").textContent = `${state.shown.size} of ${D.names.length} strategies are drawn; the buttons show the others. The tables have all.`;
}
function controls() {
  for (const group of document.querySelectorAll(".budgets")) {
    group.hidden = D.budgets.length < 2;
    D.budgets.forEach((budget, place) => {
      const button = make("button", "γ = " + budget, { type: "button", "data-place": place, "aria-pressed": place === state.budget });
      button.addEventListener("click", () => chooseBudget(place));
      group.append(button);
    });
  }
  for (const name of D.names) {
    const button = make("button", null, { type: "button", "aria-pressed": state.shown.has(name) });
    button.append(swatch(name), name);
    button.addEventListener("click", () => {
      if (!state.shown.delete(name)) state.shown.add(name);
      button.setAttribute("aria-pressed", state.shown.has(name));
      undrawn();
      drawAll();
    });
    at("legend").append(button);
    at("held").append(make("option", name, { value: name }));
  }
  at("held").addEventListener("change", drawAreas);
  undrawn();
}
lead();
controls();
results();
if (D.decision) decisionTable();
if (D.decision?.verdict) verdictTable();
if (D.decision?.frontier) frontierWords();
unpackPlotly().then(drawAll);
