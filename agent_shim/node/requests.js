// The messages of a request to a model, in the forms that providers have, as one form.
//
// Knows no agent, does no I/O, and leaves out what nobody said: system prompts and tools.
//
//     Gemini              contents of parts: text, functionCall, functionResponse
//     OpenAI chat         messages, as they are
//     OpenAI responses    input: messages, function_call, function_call_output
//     Anthropic messages  messages of blocks: text, tool_use, tool_result
//
// The one form is a chat completion's message: role, content, tool_calls, tool_call_id.

'use strict';

const ROLES = ['user', 'assistant', 'tool'];
// What agents say to their model in the user's name.
const INJECTED = /^\s*<system-reminder>[^]*<\/system-reminder>\s*$/;

const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);
const objects = (value) => (Array.isArray(value) ? value.filter(isObject) : []);

/** The messages of a request, in order. */
function messagesOf(body) {
  const contents = body.contents || (body.request && body.request.contents);
  if (contents) return fromContents(objects(contents));
  let items = body.messages === undefined ? body.input : body.messages;
  if (typeof items === 'string') items = [{ role: 'user', content: items }];
  const found = objects(items).flatMap(fromItem).filter(isSaid);
  return body.messages === undefined ? joined(found) : found;
}

function isSaid({ role, content }) {
  return ROLES.includes(role) && !(role === 'user' && INJECTED.test(content));
}

/** What a request of the Responses API continues, if it carries only what is new, and the id of
 * the conversation that the provider adds it to. */
function continued(body) {
  const kept = isObject(body.conversation) ? body.conversation.id : body.conversation;
  const keptAs = typeof kept === 'string' ? kept : null;
  const previous = body.previous_response_id;
  return { after: typeof previous === 'string' ? previous : keptAs, keptAs };
}

/** True if a user may follow the reply; false: a single question, as for a title. */
function isLasting(path, body) {
  const { tools } = body.request || body;
  return Boolean(body.stream) || /streamGenerateContent/i.test(path) || objects(tools).length > 0;
}

function fromItem(item) {
  if (item.type === 'function_call') {
    const call = callOf(item.call_id, item.name, item.arguments);
    return [{ role: 'assistant', content: null, tool_calls: [call] }];
  }
  if (item.type === 'function_call_output') return [answer(item.call_id, item.output)];
  if (typeof item.role !== 'string') return [];
  const blocks = objects(item.content);
  const answers = blocks.filter((block) => block.type === 'tool_result')
    .map((block) => answer(block.tool_use_id, textOf(block.content)));
  const message = { role: item.role, content: textOf(item.content) };
  const calls = item.tool_calls || blocks.filter((block) => block.type === 'tool_use')
    .map((block) => callOf(block.id, block.name, JSON.stringify(block.input || {})));
  if (calls.length > 0) message.tool_calls = calls;
  if (item.role === 'tool') message.tool_call_id = item.tool_call_id;
  return answers.length > 0 && !message.content ? answers : [...answers, message];
}

/** In the Responses API, one answer is several items: the text, and each call. */
function joined(items) {
  const found = [];
  for (const item of items) {
    const before = found[found.length - 1];
    if (before && before.role === 'assistant' && item.role === 'assistant') {
      before.content = [before.content, item.content].filter(Boolean).join('') || null;
      const calls = [...(before.tool_calls || []), ...(item.tool_calls || [])];
      if (calls.length > 0) before.tool_calls = calls;
    } else {
      found.push({ ...item });
    }
  }
  return found;
}

function fromContents(contents) {
  const found = [];
  let calls = []; // of the last reply, of those without an id as well
  for (const content of contents) {
    const parts = objects(content.parts);
    const text = parts.filter((part) => typeof part.text === 'string' && !part.thought)
      .map((part) => part.text).join('');
    if (content.role === 'model') {
      const made = parts.filter((part) => isObject(part.functionCall));
      calls = made.map(({ functionCall: { id, name, args } }, place) => callOf(
        id || nameOfCall(found.length, place), name, JSON.stringify(args || {}),
      ));
      const message = { role: 'assistant', content: text || null };
      if (calls.length > 0) message.tool_calls = calls;
      found.push(message);
      continue;
    }
    parts.filter((part) => isObject(part.functionResponse)).forEach(({ functionResponse }, place) => {
      const known = calls[place];
      const id = functionResponse.id || (known && known.id);
      found.push(answer(id, JSON.stringify(functionResponse.response || {})));
    });
    if (text) found.push({ role: 'user', content: text });
  }
  return found;
}

/** The id of a call that its provider gave none: where it is in the conversation. */
function nameOfCall(place, number) {
  return `call-${place}-${number}`;
}

function textOf(content) {
  if (!Array.isArray(content)) return content === undefined ? null : content;
  const parts = [];
  for (const part of objects(content)) {
    if (typeof part.text === 'string') parts.push(part.text);
    else if (/image/.test(part.type)) parts.push('[screenshot]');
  }
  return parts.length > 0 ? parts.join('\n') : null;
}

function callOf(id, name, given) {
  return {
    id: String(id), type: 'function',
    function: { name: String(name || 'tool'), arguments: String(given || '{}') },
  };
}

function answer(id, content) {
  const text = typeof content === 'string' || content === null ? content : JSON.stringify(content);
  return { role: 'tool', content: text === undefined ? null : text, tool_call_id: String(id) };
}

module.exports = { continued, isLasting, messagesOf, nameOfCall };
