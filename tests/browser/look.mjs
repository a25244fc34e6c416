// Opens pages in headless Chromium, on a desk and on a phone, light and dark, and tells of each as JSON on standard
// output: messages of the console, requests, how far anything stands over the edge, what axe-core finds.
// Argument: a JSON file {chromium, pages: [{name, url, steps, looks, rules}], pictures}; steps: see `STEPS`; without
// `rules` (false) axe-core is left out, which takes minutes for many elements; pictures go into a folder if one is named.
import {readFileSync} from "node:fs";
import {createRequire} from "node:module";
import {chromium} from "playwright-core";

const asked = JSON.parse(readFileSync(process.argv[2], "utf8"));
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];
const SIZES = {desk: {width: 1280, height: 900}, phone: {width: 390, height: 844}};
const STEPS = {
  click: (page, {at}) => page.click(at),
  fill: (page, {at, text}) => page.fill(at, text),
  wait: (page, {at, seconds = 60}) => page.waitForSelector(at, {timeout: 1000 * seconds}),
  tell: async (page, step, found) => { found[step.told] = await page.locator(step.at).allTextContents(); },
  seen: async (page, step, found) => { found[step.told] = await page.locator(step.at).evaluateAll(all => all.map(one => {
    const box = one.getBoundingClientRect();
    return box.top >= 0 && box.bottom <= innerHeight && box.width > 0;
  })); },
};

const faults = async page => {
  await page.evaluate(axe);
  const {violations} = await page.evaluate(() => window.axe.run(document, {resultTypes: ["violations"]}));
  return violations.map(one =>
    `${one.id}: ${one.nodes.slice(0, 3).map(node => `${node.target} (${node.any[0]?.message ?? ""})`).join("; ")}`);
};

const browser = await chromium.launch({executablePath: asked.chromium, args: FLAGS, headless: true});
const found = [];
for (const {name, url, steps = [], looks, rules} of asked.pages)
  for (const [size, viewport] of Object.entries(SIZES))
    for (const colorScheme of ["light", "dark"]) {
      const look = `${size} ${colorScheme}`;
      if (looks && !looks.includes(look)) continue;
      const context = await browser.newContext({viewport, colorScheme, reducedMotion: "reduce"});
      const page = await context.newPage(), messages = [], requests = [], told = {};
      page.on("console", one => { if (["error", "warning"].includes(one.type())) messages.push(one.text()); });
      page.on("pageerror", one => messages.push(String(one)));
      page.on("dialog", one => { messages.push(`dialog: ${one.message()}`); one.dismiss(); });
      page.on("request", one => requests.push(one.url()));
      const began = performance.now();
      await page.goto(url, {waitUntil: "load"});
      const seconds = (performance.now() - began) / 1000;
      for (const step of steps) await STEPS[step.do](page, step, told);
      const seen = await page.evaluate(() => ({
        over: document.documentElement.scrollWidth - document.documentElement.clientWidth,
        paper: getComputedStyle(document.body).backgroundColor,
        nodes: document.querySelectorAll("*").length,
      }));
      const violations = rules === false ? [] : await faults(page);
      if (asked.pictures)
        await page.screenshot({path: `${asked.pictures}/${name}-${size}-${colorScheme}.png`, fullPage: asked.whole});
      found.push({name, look, messages, requests, told, seconds, violations, ...seen});
      await context.close();
    }
await browser.close();
console.log(JSON.stringify(found));
