"""What frames the leaderboard's HTML: a style for light and dark and narrow screens, and the scripts that sort and
filter."""

from sp.page.tables import sort_script

STYLE = """
:root { color-scheme: light dark; --ink: #1b1e23; --soft: #5f6773; --paper: #ffffff; --line: #dfe3e8;
  --band: #f5f7f9; --good: 46, 158, 68; --mark: #1c7ed6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ed; --soft: #9aa3af; --paper: #14171b; --line: #2d333b; --band: #1c2026;
    --good: 64, 192, 87; --mark: #4dabf7; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 84rem; padding: 1rem; color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: .5rem 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; overflow-wrap: anywhere; }
p { max-width: 46rem; } .facts, .note { color: var(--soft); font-size: .875rem; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; margin: .75rem 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
thead th { background: var(--band); position: sticky; top: 0; font-weight: 600; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); z-index: 1;
  white-space: normal; min-width: 11rem; max-width: 18rem; overflow-wrap: anywhere; font-weight: 500; }
thead th:first-child { background: var(--band); z-index: 2; font-weight: 600; }
td.text, th.text { text-align: left; }
td.share { background: rgba(var(--good), calc(var(--share) * .35)); }
small { color: var(--soft); display: block; } td.share small { white-space: normal; color: inherit; }
td.share span { white-space: nowrap; }
tr.oracle td:first-child, tr.control td:first-child { font-weight: 400; font-style: italic; }
tr.full td { border-bottom: 2px solid var(--soft); }
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid var(--mark); }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
summary { cursor: pointer; padding: .35rem 0; } summary:focus-visible { outline: 2px solid var(--mark); }
.filters { display: flex; flex-wrap: wrap; align-items: baseline; gap: .5rem 1rem; }
label, output { font-size: .875rem; color: var(--soft); } label { max-width: 100%; }
select { font: inherit; color: inherit; background: var(--paper); border: 1px solid var(--line); border-radius: 4px;
  padding: .2rem; max-width: 100%; }
code { font: 12px/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }
td code { display: block; white-space: normal; width: max-content; max-width: 60rem; text-align: left; }
@media (max-width: 40rem) { body { padding: .6rem; font-size: 14px; } th, td { padding: .3rem .4rem; }
  th:first-child, td:first-child { min-width: 7rem; max-width: 9.5rem; } }
@media print { .filters { display: none; } .scroll { overflow: visible; } th, td:first-child { position: static; } }
"""

FILTER = """
const filters = [...document.querySelectorAll("select")];
const show = () => {
  const rows = [...document.querySelectorAll("#all tbody tr")];
  for (const row of rows)
    row.hidden = filters.some(one => one.value !== "" && row.dataset[one.name] !== one.value);
  const left = rows.filter(row => !row.hidden).length;
  for (const told of document.querySelectorAll("output")) told.textContent = `${left} of ${rows.length} entries`;
};
filters.forEach(one => one.addEventListener("change", show));
show();
"""
SCRIPT = sort_script() + FILTER

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Leaderboard</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
<script>{script}</script>
</body>
</html>
"""
