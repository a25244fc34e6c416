// The official JavaScript client of OpenAI against a running server: node client.mjs URL [URL of one that calls tools].
// Prints one JSON object: what each part found. Anything unexpected ends it with a traceback and status 1.
import assert from "node:assert/strict";
import OpenAI from "openai";

const [url, agent] = process.argv.slice(2);
const open = (at) => new OpenAI({ baseURL: `${at}/v1`, apiKey: "none", maxRetries: 0 });
const client = open(url);
const ask = (messages, more = {}) => client.chat.completions.create({ model: "any", messages, max_tokens: 8, ...more });
const user = (content) => ({ role: "user", content });
const found = {};

const model = (await client.models.list()).data[0].id;
assert.equal((await client.models.retrieve(model)).id, model);
await assert.rejects(client.models.retrieve("other"), OpenAI.NotFoundError);

const whole = await ask([user("Who is there?")]);
assert.match(whole._request_id, /^req-/);
found.chat = whole.choices[0].message.content;

let text = "";
let usage = null;
const options = { stream: true, stream_options: { include_usage: true }, sp: { progress: true } };
for await (const chunk of await ask([user("Who is there?")], options)) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, found.chat);
assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
found.question = usage.sp.question.found;

const turns = [user("Who is there?")];
for (let turn = 0; turn < 3; turn++) {
  const reply = (await ask(turns)).choices[0].message;
  turns.push({ role: reply.role, content: reply.content || "." }, user(`And then, ${turn}?`));
}
found.turns = turns.length;

const told = (await ask([user("Who is there?")], { logprobs: true, top_logprobs: 3 })).choices[0];
assert.equal(told.logprobs.content.map((each) => each.token).join(""), told.message.content);
assert.ok(told.logprobs.content.every((each) => each.top_logprobs.length === 3 && each.logprob <= 0));

const drawn = { temperature: 1.8, top_p: 0.98, seed: 7, n: 2 };
const answers = async () => (await ask([user("Who?")], drawn)).choices.map((choice) => choice.message.content);
found.sampled = await answers();
assert.deepEqual(await answers(), found.sampled);

const schema = {
  type: "object",
  properties: { kind: { enum: ["fact", "story"] }, count: { type: "integer", minimum: 0, maximum: 9 } },
  required: ["kind", "count"],
  additionalProperties: false,
};
const format = { type: "json_schema", json_schema: { name: "found", strict: true, schema } };
if (process.env.SP_GRAMMAR !== "no") {
  const parsed = await client.chat.completions.parse({
    model: "any", messages: [user("Which?")], max_tokens: 40, response_format: format,
  });
  found.json = JSON.parse(parsed.choices[0].message.content);
}

await assert.rejects(ask([user("x")], { max_tokens: 0 }), (error) => {
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.equal(error.param, "max_tokens");
  return true;
});

const asked = { model: "any", input: "Who is there?", max_output_tokens: 8 };
const response = await client.responses.create(asked);
const kinds = [];
let written = "";
for await (const event of await client.responses.create({ ...asked, stream: true, sp: { progress: true } })) {
  assert.equal(event.sequence_number, kinds.length);
  kinds.push(event.type);
  if (event.type === "response.output_text.delta") written += event.delta;
}
assert.equal(written, response.output_text);
assert.ok(["response.completed", "response.incomplete"].includes(kinds.at(-1)));
found.response = response.output_text;
await assert.rejects(client.responses.create({ ...asked, previous_response_id: "resp_1" }), OpenAI.BadRequestError);

const left = new AbortController();
const cut = await ask([user("Who is there?")], { stream: true, max_tokens: 64 });
for await (const _ of cut) break;
left.abort();

if (agent) {
  const tools = [{ type: "function", function: { name: "read_file", parameters: { type: "object", properties: {} } } }];
  const talk = open(agent).chat.completions;
  const calls = async (messages) => {
    const stream = talk.stream({ model: "any", messages, tools, max_tokens: 200 });
    return (await stream.finalChatCompletion()).choices[0].message;
  };
  const message = await calls([user("What is in a.py?")]);
  found.calls = message.tool_calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]);
  const results = message.tool_calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: "seen" }));
  await calls([user("What is in a.py?"), message, ...results]);

  const flat = [{ type: "function", ...tools[0].function, strict: false }];
  const input = [user("What is in a.py?")];
  for (let turn = 0; turn < 2; turn++) {
    const given = { model: "any", input, tools: flat, max_output_tokens: 200 };
    const answer = await open(agent).responses.stream(given).finalResponse();
    const made = answer.output.filter((item) => item.type === "function_call");
    const outputs = made.map((call) => ({ type: "function_call_output", call_id: call.call_id, output: "seen" }));
    input.push(...answer.output, ...outputs);
  }
  found.items = input.map((item) => item.type ?? item.role);
}
console.log(JSON.stringify(found));
