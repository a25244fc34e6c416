// The official JavaScript client of Anthropic against a running server: node anthropic.mjs URL [URL of one that calls
// tools]. Prints one JSON object: what each part found. Anything unexpected ends it with a traceback and status 1.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const [url, agent] = process.argv.slice(2);
const open = (at) => new Anthropic({ baseURL: at, apiKey: "none", maxRetries: 0 });
const client = open(url);
const ask = (messages, more = {}) => client.messages.create({ model: "any", messages, max_tokens: 8, ...more });
const user = (content) => ({ role: "user", content });
const found = {};

const whole = await ask([user("Who is there?")]);
found.text = whole.content[0].text;
assert.equal(whole.type, "message");

const stream = client.messages.stream({
  model: "any", messages: [user("Who is there?")], max_tokens: 8, sp: { progress: true },
});
let text = "";
stream.on("text", (part) => (text += part));
const final = await stream.finalMessage();
assert.equal(text, found.text);
assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
assert.equal(final.stop_reason, whole.stop_reason);

const { input_tokens: tokens } = await client.messages.countTokens({ model: "any", messages: [user("Who is there?")] });
assert.equal(tokens, whole.usage.input_tokens + whole.usage.cache_read_input_tokens);

const turns = [user("Who is there?")];
for (let turn = 0; turn < 3; turn++) {
  const reply = await ask(turns);
  found.cached = reply.usage.cache_read_input_tokens;
  turns.push({ role: reply.role, content: reply.content }, user(`And then, ${turn}?`));
}
found.turns = turns.length;

await assert.rejects(ask([user("x")], { max_tokens: -1 }), (error) => {
  assert.ok(error instanceof Anthropic.BadRequestError);
  assert.match(error.message, /max_tokens is -1/);
  return true;
});

const cut = await ask([user("Who is there?")], { stream: true, max_tokens: 64 });
for await (const _ of cut) break;
cut.controller.abort();

if (agent) {
  const tools = [{ name: "read_file", input_schema: { type: "object", properties: {} } }];
  const talk = open(agent).messages;
  const calls = (messages) => talk.stream({ model: "any", messages, tools, max_tokens: 200 }).finalMessage();
  const message = await calls([user("What is in a.py?")]);
  const made = message.content.filter((block) => block.type === "tool_use");
  assert.equal(message.stop_reason, "tool_use");
  found.calls = made.map((block) => [block.name, block.input]);
  const results = made.map((block) => ({ type: "tool_result", tool_use_id: block.id, content: "seen" }));
  await calls([user("What is in a.py?"), { role: "assistant", content: message.content }, user(results)]);
}
console.log(JSON.stringify(found));
