const at = id => document.getElementById(id);
const made = (name, text = "", kind = "") => Object.assign(document.createElement(name), {textContent: text, className: kind});
const whole = new Intl.NumberFormat("en"), seconds = ms => `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
let messages = [], asking = null;

// What comes behind the # of an address is sent nowhere.
const key = new URLSearchParams(location.hash.slice(1)).get("key");
const headers = key ? {Authorization: `Bearer ${key}`} : {};

fetch("v1/models", {headers}).then(reply => reply.json())
  .then(models => { at("model").textContent = models.data[0].id; })
  .catch(() => { at("trouble").textContent = "The server does not answer."; });

at("file").addEventListener("change", async () => {
  const [file] = at("file").files;
  if (file) at("document").value = await file.text();
});

const begin = () => {
  asking?.abort();
  messages = [];
  at("said").replaceChildren();
  at("trouble").textContent = "";
  at("document").readOnly = false;
};
at("new").addEventListener("click", begin);
at("stop").addEventListener("click", () => asking?.abort());
at("question").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); at("form").requestSubmit(); }
});

// The events of a stream, as objects.
async function* events(body) {
  let rest = "";
  for await (const text of chunks(body.pipeThrough(new TextDecoderStream()))) {
    const parts = (rest + text).split("\n\n");
    rest = parts.pop();
    for (const part of parts)
      if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
  }
}
async function* chunks(stream) {
  const reader = stream.getReader();
  try {
    for (let {done, value} = await reader.read(); !done; {done, value} = await reader.read()) yield value;
  } finally { reader.releaseLock(); }
}

const turn = (role, text) => {
  const box = made("article", "", `turn ${role}`);
  box.append(made("small", role === "user" ? "you" : "answer"), made("p", text));
  at("said").append(box);
  box.scrollIntoView({block: "nearest"});
  return box;
};

// What the answer cost, and all text of the prompt with what the model had of it.
const tell = (box, usage, took) => {
  const told = usage.sp, share = (100 * told.kept / usage.prompt_tokens).toFixed(1);
  const kept = `kept ${whole.format(told.kept)} of ${whole.format(usage.prompt_tokens)} tokens (${share} %)`;
  const first = `first token after ${seconds(told.ttft_ms)}`;
  box.append(made("small", [first, `all of it ${seconds(took)}`, kept].join(" · "), "times"));
  const more = made("details"), text = made("div", "", "tokens"), table = made("dl");
  more.append(made("summary", told.compressed ? "What the model read" : "Nothing was left out"), made("p", told.reason, "note"));
  for (const stage of told.stages)
    table.append(made("dt", stage.name), made("dd", `${seconds(stage.ms)}, ${whole.format(stage.tokens)} tokens`));
  for (const piece of told.kept_text) {
    const span = made("span", piece.text, piece.kind);
    span.dataset.left = whole.format(piece.tokens);
    text.append(span);
  }
  Object.assign(text, {tabIndex: 0, role: "region", ariaLabel: `Prompt of answer ${(messages.length >> 1) + 1}`});
  more.append(table, text);
  box.append(more);
  more.open = told.compressed;
};

const said = (document, question) => document.trim()
  ? [{type: "text", text: document}, {type: "text", text: question}] : question;

at("form").addEventListener("submit", async event => {
  event.preventDefault();
  const question = at("question").value.trim(), keep = at("keep").valueAsNumber;
  if (!question || asking) return;
  const first = messages.length === 0;
  const asked = {role: "user", content: first ? said(at("document").value, question) : question};
  const options = {compress: at("compress").value, return_kept: true, ...(keep > 0 && {keep_ratio: keep / 100})};
  const body = {messages: [...messages, asked], stream: true, stream_options: {include_usage: true}, sp: options};
  turn("user", question);
  const box = turn("assistant", ""), text = box.querySelector("p");
  asking = new AbortController();
  at("ask").disabled = true; at("stop").disabled = false; at("trouble").textContent = "";
  box.setAttribute("aria-busy", "true");
  const began = performance.now();
  let answer = "", thought = null;
  try {
    const reply = await fetch("v1/chat/completions", {
      method: "POST", headers: {...headers, "Content-Type": "application/json"}, body: JSON.stringify(body), signal: asking.signal});
    if (!reply.ok) throw new Error((await reply.json()).error.message);
    for await (const one of events(reply.body)) {
      if (one.error) throw new Error(one.error.message);
      const delta = one.choices[0]?.delta;
      if (delta?.reasoning_content) {
        if (!thought) text.before(thought = made("p", "", "thought"));
        thought.textContent += delta.reasoning_content;
      }
      if (delta?.content) text.textContent = answer += delta.content;
      if (one.usage) tell(box, one.usage, performance.now() - began);
    }
    messages.push(asked, {role: "assistant", content: answer});
    at("question").value = "";
    at("document").readOnly = true;  // it is part of the first message by now
  } catch (error) {
    at("trouble").textContent = error.name === "AbortError" ? "Stopped." : error.message;
    if (!answer) box.remove();
  } finally {
    box.removeAttribute("aria-busy");
    asking = null;
    at("ask").disabled = false; at("stop").disabled = true;
    at("question").focus();
  }
});
