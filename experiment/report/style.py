"""The page's style sheet: one column of text, figures that keep their own size, light and dark."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #f7f6f2; --card: #ffffff; --ink: #1d2128; --muted: #646b76; --grid: #e6e4de; --line: #d9d6cd;
  --link: #1f5a9e; --good: #1c7a4f; --bad: #b3372b; --warn: #99620a; --neutral: #5a626e;
  --series-1: #2a62b8; --series-2: #c2571a; --series-3: #22806a; --series-4: #8a4fa8; --series-5: #8a7412;
  --series-6: #4d5866; --fail: #cf8578; --mixed: #b9c3d1; --pass: #76ad93;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171c; --card: #1b1f26; --ink: #e7e6e1; --muted: #9aa3af; --grid: #2d333c; --line: #353c46;
    --link: #8ab8f0; --good: #63c394; --bad: #f08d80; --warn: #e3b25c; --neutral: #a7b0bc;
    --series-1: #7eb0f5; --series-2: #f0935a; --series-3: #5cc7ab; --series-4: #c795e3; --series-5: #d9c25c;
    --series-6: #a9b4c2; --fail: #a5574b; --mixed: #4a5666; --pass: #3f8a6a;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif;
}
main { max-width: 70rem; margin: 0 auto; padding: 2.5rem 1.25rem 5rem; }
h1, h2, h3 { font-family: "Iowan Old Style", "Palatino Linotype", Palatino, Georgia, "Liberation Serif", serif;
  line-height: 1.2; font-weight: 600; text-wrap: balance; }
h1 { font-size: clamp(1.8rem, 1.2rem + 2.4vw, 2.6rem); margin: .2rem 0 .6rem; overflow-wrap: anywhere; }
h2 { font-size: 1.45rem; margin: 3.2rem 0 .6rem; padding-top: 1.1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.08rem; margin: 1.8rem 0 .5rem; }
p, ul, dl { margin: .5rem 0 1rem; max-width: 46rem; }
a { color: var(--link); }
.eyebrow { text-transform: uppercase; letter-spacing: .09em; font-size: .75rem; color: var(--muted); margin: 0; }
.question { font-size: 1.15rem; max-width: 46rem; margin: 0 0 .8rem; }
.meta { display: flex; flex-wrap: wrap; gap: .25rem 1.4rem; color: var(--muted); font-size: .85rem; margin: 0;
  max-width: none; }
.meta b { font-weight: 500; color: var(--ink); overflow-wrap: anywhere; }
.verdicts { display: grid; gap: 1rem; margin: 1.8rem 0 0; }
.verdict { background: var(--card); border: 1px solid var(--line); border-left: 5px solid var(--tone);
  border-radius: 6px; padding: 1rem 1.2rem 1.1rem; display: flex; flex-wrap: wrap; gap: .6rem 2rem;
  align-items: center; }
.verdict > div { flex: 1 1 28rem; }
.verdict .figure { flex: 0 0 auto; margin: 0; color: var(--muted); font-variant-numeric: tabular-nums;
  line-height: 1.25; }
.verdict .figure b { color: var(--tone); font-size: 2rem; font-weight: 650; letter-spacing: -.01em; }
.verdict .figure small { font-size: .82rem; }
.verdict p { margin: .35rem 0 0; max-width: 56rem; }
.verdict .head { display: flex; flex-wrap: wrap; align-items: baseline; gap: .1rem .8rem; margin: 0; }
.verdict .arm { font-weight: 650; } .verdict .call { color: var(--tone); font-weight: 650; }
.good { --tone: var(--good); } .bad { --tone: var(--bad); } .warn { --tone: var(--warn); }
.neutral { --tone: var(--neutral); }
.swatch { display: inline-block; width: .72em; height: .72em; border-radius: 2px; margin-right: .45em;
  background: var(--swatch); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .88rem; margin: .2rem 0 .8rem; padding: 0;
  list-style: none; max-width: none; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr)); gap: 1rem;
  margin: .6rem 0 1.2rem; }
.figures.wide { grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); align-items: start; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .7rem; }
figure h3 { margin: 0 0 .4rem; font-size: .98rem; }
figcaption { color: var(--muted); font-size: .82rem; margin-top: .4rem; }
svg.plot { display: block; width: 100%; height: auto; max-width: 28rem; font-family: inherit; }
.scroll { overflow-x: auto; margin: .6rem 0 .3rem; border: 1px solid var(--line); border-radius: 6px;
  background: var(--card); }
table { border-collapse: collapse; width: 100%; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { padding: .42rem .7rem; text-align: right; vertical-align: top; white-space: nowrap; }
thead th { font-weight: 600; color: var(--muted); border-bottom: 1px solid var(--line); white-space: normal;
  vertical-align: bottom; line-height: 1.25; }
tbody tr + tr td { border-top: 1px solid var(--grid); }
th.word, td.word, th:first-child, td:first-child { text-align: left; }
td.long { white-space: normal; min-width: 16rem; }
.caption { color: var(--muted); font-size: .84rem; margin: .2rem 0 1.2rem; }
code, pre { font: .86em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem;
  overflow-x: auto; max-width: none; }
.limits { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(20rem, 100%), 1fr)); gap: .2rem 1.8rem;
  max-width: none; }
.limits dt { font-weight: 650; margin-top: .7rem; } .limits dd { margin: 0; color: var(--ink); font-size: .95rem; }
details { margin: .8rem 0; } summary { cursor: pointer; color: var(--link); }
.prereg dt { font-weight: 650; margin-top: .7rem; } .prereg dd { margin: 0; white-space: pre-line; }
footer { margin-top: 3rem; color: var(--muted); font-size: .82rem; }
article + article { margin-top: 5rem; border-top: 3px double var(--line); padding-top: 2rem; }
@media (max-width: 40rem) {
  main { padding: 1.4rem 1rem 3rem; } h2 { margin-top: 2.4rem; } .verdict { padding: .85rem .95rem; }
  th, td { padding: .4rem .55rem; }
}
@media print { body { background: #fff; } .scroll { overflow: visible; } figure, .verdict { break-inside: avoid; } }
"""
