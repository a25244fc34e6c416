const tokens = document.getElementById("tokens"), strip = document.getElementById("strip");
const show = (place, sought = place) => {
  place.scrollIntoView({block: "center"});
  document.querySelectorAll(".sought").forEach(one => one.classList.remove("sought"));
  sought.classList.add("sought");
};
for (const link of document.querySelectorAll("a[href^='#']"))
  link.addEventListener("click", event => {
    const place = document.getElementById(link.hash.slice(1));
    if (place) { event.preventDefault(); show(place); }
  });
strip?.addEventListener("click", event => {
  const box = strip.getBoundingClientRect();
  const at = (event.clientX - box.left) / box.width * Number(strip.dataset.tokens);
  const blocks = [...tokens.querySelectorAll("[data-at]")];
  const block = blocks.findLast(one => Number(one.dataset.at) <= at) ?? blocks[0];
  const next = blocks[blocks.indexOf(block) + 1];
  const first = Number(block.dataset.at), last = next ? Number(next.dataset.at) : Number(strip.dataset.tokens);
  block.scrollIntoView({block: "start"});
  tokens.scrollTop += block.offsetHeight * (at - first) / Math.max(1, last - first) - tokens.clientHeight / 3;
});
const kept = () => [...tokens.querySelectorAll("span:not(.dropped)")];
let turn = -1;
for (const button of document.querySelectorAll("[data-step]"))
  button.addEventListener("click", () => {
    const pieces = kept();
    turn = (turn + Number(button.dataset.step) + pieces.length) % pieces.length;
    show(pieces[turn]);
  });
