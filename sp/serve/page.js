const element = id => document.getElementById(id);
const create = (name, text = "", kind = "") => Object.assign(document.createElement(name), {textContent: text, className: kind});
const integers = new Intl.NumberFormat("en"), seconds = ms => `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
let messages = [], pending = null;

// The key is in the fragment of the URL, which browsers never send.
const key = new URLSearchParams(location.hash.slice(1)).get("key");
const headers = key ? {Authorization: `Bearer ${key}`} : {};

fetch("v1/models", {headers}).then(reply => reply.json())
  .then(models => { element("model").textContent = models.data[0].id; })
  .catch(() => { element("trouble").textContent = "The server does not answer."; });

element("file").addEventListener("change", async () => {
  const [file] = element("file").files;
  if (file) element("document").value = await file.text();
});

const newChat = () => {
  pending?.abort();
  messages = [];
  element("said").replaceChildren();
  element("trouble").textContent = "";
  element("document").readOnly = false;
};
element("new").addEventListener("click", newChat);
element("stop").addEventListener("click", () => pending?.abort());
element("question").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); element("form").requestSubmit(); }
});

// Yields the events of a stream as objects.
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
  const box = create("article", "", `turn ${role}`);
  box.append(create("small", role === "user" ? "you" : "answer"), create("p", text));
  element("said").append(box);
  box.scrollIntoView({block: "nearest"});
  return box;
};

// Shows the cost of an answer, and the prompt with the parts that the model read.
const showUsage = (box, usage, took) => {
  const facts = usage.sp, share = (100 * facts.kept / usage.prompt_tokens).toFixed(1);
  const kept = `kept ${integers.format(facts.kept)} of ${integers.format(usage.prompt_tokens)} tokens (${share} %)`;
  const first = `first token after ${seconds(facts.ttft_ms)}`;
  box.append(create("small", [first, `in total ${seconds(took)}`, kept].join(" · "), "times"));
  const more = create("details"), text = create("div", "", "tokens"), table = create("dl");
  more.append(create("summary", facts.compressed ? "What the model read" : "Nothing was left out"), create("p", facts.reason, "note"));
  for (const stage of facts.stages)
    table.append(create("dt", stage.name), create("dd", `${seconds(stage.ms)}, ${integers.format(stage.tokens)} tokens`));
  for (const piece of facts.kept_text) {
    const span = create("span", piece.text, piece.kind);
    span.dataset.left = integers.format(piece.tokens);
    text.append(span);
  }
  Object.assign(text, {tabIndex: 0, role: "region", ariaLabel: `Prompt of answer ${(messages.length >> 1) + 1}`});
  more.append(table, text);
  box.append(more);
  more.open = facts.compressed;
};

const contentOf = (document, question) => document.trim()
  ? [{type: "text", text: document}, {type: "text", text: question}] : question;

element("form").addEventListener("submit", async event => {
  event.preventDefault();
  const question = element("question").value.trim(), keep = element("keep").valueAsNumber;
  if (!question || pending) return;
  const first = messages.length === 0;
  const userMessage = {role: "user", content: first ? contentOf(element("document").value, question) : question};
  const options = {compress: element("compress").value, return_kept: true, ...(keep > 0 && {keep_ratio: keep / 100})};
  const body = {messages: [...messages, userMessage], stream: true, stream_options: {include_usage: true}, sp: options};
  turn("user", question);
  const box = turn("assistant", ""), text = box.querySelector("p");
  pending = new AbortController();
  element("ask").disabled = true; element("stop").disabled = false; element("trouble").textContent = "";
  box.setAttribute("aria-busy", "true");
  const began = performance.now();
  let answer = "", thought = null;
  try {
    const reply = await fetch("v1/chat/completions", {
      method: "POST", headers: {...headers, "Content-Type": "application/json"}, body: JSON.stringify(body), signal: pending.signal});
    if (!reply.ok) throw new Error((await reply.json()).error.message);
    for await (const chunk of events(reply.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      const delta = chunk.choices[0]?.delta;
      if (delta?.reasoning_content) {
        if (!thought) text.before(thought = create("p", "", "thought"));
        thought.textContent += delta.reasoning_content;
      }
      if (delta?.content) text.textContent = answer += delta.content;
      if (chunk.usage) showUsage(box, chunk.usage, performance.now() - began);
    }
    messages.push(userMessage, {role: "assistant", content: answer});
    element("question").value = "";
    element("document").readOnly = true;  // it is part of the first message now
  } catch (error) {
    element("trouble").textContent = error.name === "AbortError" ? "Stopped." : error.message;
    if (!answer) box.remove();
  } finally {
    box.removeAttribute("aria-busy");
    pending = null;
    element("ask").disabled = false; element("stop").disabled = true;
    element("question").focus();
  }
});
