"use strict";
const D = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const make = (tag, text, attributes = {}) => {
  const node = document.createElement(tag);
  if (text !== null && text !== undefined) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
};
const number = (x, digits = 2) => (x === null || x === undefined ? "–" : x.toFixed(digits).replace(/^-(0\.?0*)$/, "$1").replace("-", "−"));
const percent = (x, digits = 1) => (x === null || x === undefined ? "–" : number(100 * x, Math.abs(x) < 10 ? digits : 0) + " %");
const signed = (x, digits = 2) => (x > 0 && Number(x.toFixed(digits)) > 0 ? "+" : "") + number(x, digits);
const state = { budget: 0, shown: new Set(D.names.filter((n) => n !== "oracle")), sort: ["sharpe", -1] };
const narrow = () => window.innerWidth < 600;

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
const draw = (id, traces, extra) => Plotly.react(at(id), traces, layout(extra), { responsive: true, displayModeBar: false });
const chosen = () => D.names.filter((name) => state.shown.has(name));
function lines(id, key, extra) {
  const traces = chosen().map((name) => ({
    x: D.time, y: D.paths[state.budget][name][key], name, mode: "lines", line: { width: 1.7, color: D.colours[name] },
  }));
  draw(id, traces, extra);
}
function drawAreas() {
  const held = at("held").value, parts = D.areas[state.budget][held];
  const traces = parts.map((y, i) => ({
    x: D.areaTime, y, name: D.assets[i], stackgroup: "one", mode: "lines",
    line: { width: 0.4, color: D.palette[i % D.palette.length] }, hovertemplate: "%{y:.1%}",
  }));
  draw("areas", traces, { yaxis: { range: [0, 1], tickformat: ".0%" }, hovermode: "closest" });
}
function drawComparison() {
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
function drawAll() {
  lines("wealth", "wealth", { yaxis: { type: "log" } });
  lines("drawdown", "drawdown", { yaxis: { ticksuffix: " %" } });
  lines("traded", "traded", { yaxis: { rangemode: "tozero" } });
  lines("regret", "regret", { yaxis: { ticksuffix: " %" } });
  drawAreas();
  drawComparison();
  if (D.decision) drawDecision();
}

/* ---------- tables ---------- */
const COLUMNS = [
  ["strategy", "strategy", (row) => row.strategy],
  ["annual_return", "return", (row) => percent(row.annual_return), (row) => interval(row, "annual_return", (x) => number(100 * x, 0))],
  ["annual_volatility", "volatility", (row) => percent(row.annual_volatility)],
  ["sharpe", "Sharpe", (row) => number(row.sharpe), (row) => interval(row, "sharpe", number)],
  ["sharpe_excess", "Sharpe − 1/m", (row) => signed(row.sharpe_excess), (row) => interval(row, "sharpe_excess", signed)],
  ["max_drawdown", "drawdown", (row) => percent(row.max_drawdown)], ["traded", "traded", (row) => number(row.traded, 3)],
  ["regret", "regret", (row) => number(1e4 * row.regret, 1)], ["mse", "MSE", (row) => number(1e4 * row.mse, 1)],
].filter(([key]) => key in D.summary[0]);
const interval = (row, key, form) => " [" + form(row[key + "_low"]) + ", " + form(row[key + "_high"]) + "]";
function results() {
  const budget = D.budgets[state.budget];
  at("results").textContent = "Results at turnover budget γ = " + budget;
  sortable(at("summary"), COLUMNS, D.summary.filter((row) => row.turnover_l1 === budget), state.sort);
}
function sortable(table, columns, rows, order) {
  const show = () => {
    const [key, sign] = order, value = (row) => row[key] ?? -Infinity;
    const sorted = [...rows].sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * sign);
    const head = make("tr"), body = make("tbody");
    for (const [name, title] of columns) {
      const cell = make("th", null, { scope: "col", "aria-sort": name === key ? (sign > 0 ? "ascending" : "descending") : "none" });
      const button = make("button", title, { type: "button", "data-key": name, title: D.columns[title] ?? "" });
      button.addEventListener("click", () => {
        order[1] = order[0] === name ? -order[1] : typeof rows[0][name] === "string" ? 1 : -1;
        order[0] = name;
        show();
        table.querySelector(`button[data-key="${name}"]`).focus();
      });
      cell.append(button);
      head.append(cell);
    }
    for (const row of sorted) {
      const line = make("tr");
      for (const [, , form, small] of columns) {
        const cell = make("td", form(row), row.tone && form === columns[3][2] ? { class: row.tone } : {});
        if (small?.(row)) cell.append(make("span", small(row), { class: "interval" }));
        line.append(cell);
      }
      body.append(line);
    }
    const top = make("thead");
    top.append(head);
    table.replaceChildren(top, body);
  };
  show();
}

/* ---------- the latest decision ---------- */
function decisionTable() {
  const now = D.decision, assets = Object.keys(now.weights);
  at("latest").hidden = false;
  at("decided").textContent = `After ${now.input.last}, with at most ${now.turnover_l1} of ℓ1 turnover: ${number(now.turnover, 3)} is used; ` +
    `forecast return ${percent(now.forecast_return, 3)} ± ${percent(now.uncertainty.forecast_return, 3)} for the next step, risk ${percent(now.risk, 2)}. ` +
    (now.constraints.satisfied ? "All constraints hold." : "A constraint is violated.");
  at("hindsight").textContent = now.input.history === "own" ? "" :
    `Without knowing the best past allocations the weights would differ by ${number(now.explanation.hindsight, 3)} (ℓ1).`;
  const rows = assets.map((asset) => ({
    asset, previous: now.previous[asset], weight: now.weights[asset], change: now.change[asset], spread: now.uncertainty.weights[asset],
    forecast: now.forecast[asset], error: now.uncertainty.forecast[asset], tone: now.change[asset] > 5e-5 ? "up" : now.change[asset] < -5e-5 ? "down" : "",
  }));
  sortable(at("allocation"), [
    ["asset", "asset", (r) => r.asset], ["previous", "previous", (r) => percent(r.previous, 2)], ["weight", "new", (r) => percent(r.weight, 2)],
    ["change", "change", (r) => signed(100 * r.change, 2) + " %"], ["spread", "± s.d.", (r) => percent(r.spread, 2)],
    ["forecast", "forecast return", (r) => signed(100 * r.forecast, 3) + " %"], ["error", "± s.d. of forecast", (r) => percent(r.error, 3)],
  ], rows, ["weight", -1]);
}
function drawDecision() {
  const now = D.decision, assets = Object.keys(now.weights);
  const order = [...assets].sort((a, b) => now.change[b] - now.change[a]);
  const values = (from, names) => names.map((name) => 100 * from[name]);
  draw("change", [{
    type: "bar", x: order, y: values(now.change, order), marker: { color: order.map((a) => (now.change[a] >= 0 ? "#009E73" : "#D55E00")) },
    error_y: { type: "data", array: values(now.uncertainty.weights, order), thickness: 1, width: 2, color: dark() ? "#9aa5b1" : "#5b6570" },
  }], { hovermode: "closest" });
  const why = now.explanation, first = [...assets].sort((a, b) => Math.abs(why.pull[b]) - Math.abs(why.pull[a]));
  draw("pull", [
    { type: "bar", name: "recent returns", x: first, y: values(why.pull, first), marker: { color: "#0072B2" } },
    { type: "bar", name: "covariance row", x: first, y: values(why.covariance, first), marker: { color: "#E69F00" } },
  ], { barmode: "group", showlegend: true, legend: { orientation: "h", y: 1.12 }, hovermode: "closest" });
  draw("noise", [{ x: why.noise.map((r) => r.noise), y: why.noise.map((r) => r.moved), mode: "lines+markers", line: { color: "#0072B2" } }],
    { xaxis: { title: { text: "added noise, σ" } }, yaxis: { rangemode: "tozero" }, hovermode: "closest" });
}

/* ---------- words ---------- */
function findings() {
  const f = D.facts, list = at("findings"), usual = D.summary.filter((row) => row.strategy !== "oracle");
  at("lead").textContent = `${f.assets} assets, ${f.steps} steps from ${f.first} to ${f.last}; ${f.cost_bps} basis points per amount traded. ` +
    `At every step each strategy chose weights (long-only, fully invested) from the ${f.window} steps before it.`;
  for (const budget of D.budgets) {
    const rows = usual.filter((row) => row.turnover_l1 === budget).sort((a, b) => b.sharpe - a.sharpe);
    if (!rows.length) continue;
    const best = rows[0];
    let text = `Turnover budget ${budget}: highest Sharpe ratio after costs ${number(best.sharpe)} by ${best.strategy}`;
    const sure = rows.filter((row) => row.sharpe_excess_low > 0).map((row) => row.strategy);
    const worse = rows.filter((row) => row.sharpe_excess_high < 0).map((row) => row.strategy);
    if ("sharpe_excess" in best) {
      text += sure.length ? `; better than equal weights by the 95 % interval: ${sure.join(", ")}` : "; nobody beats equal weights by the 95 % interval";
      if (worse.length) text += `; worse: ${worse.join(", ")}`;
    }
    list.append(make("li", text + "."));
  }
  for (const [name, meaning] of Object.entries(D.columns)) at("meanings").append(make("dt", name), make("dd", meaning));
}
function controls() {
  D.budgets.forEach((budget, place) => {
    const button = make("button", "γ = " + budget, { type: "button", "aria-pressed": place === state.budget });
    button.addEventListener("click", () => {
      state.budget = place;
      for (const other of at("budgets").children) other.setAttribute("aria-pressed", other === button);
      results();
      drawAll();
    });
    at("budgets").append(button);
  });
  for (const name of D.names) {
    const button = make("button", null, { type: "button", "aria-pressed": state.shown.has(name) });
    button.append(make("span", null, { class: "dot", style: "background:" + D.colours[name] }), name);
    button.addEventListener("click", () => {
      if (!state.shown.delete(name)) state.shown.add(name);
      button.setAttribute("aria-pressed", state.shown.has(name));
      drawAll();
    });
    at("legend").append(button);
    at("held").append(make("option", name, { value: name }));
  }
  at("held").addEventListener("change", drawAreas);
}
findings();
controls();
results();
if (D.decision) decisionTable();
drawAll();
