// What a model answers, and what its user asked last, in the forms that providers have, as one form.
//
// Knows no agent, does no I/O, and keeps nothing of a request but what its user said.
//
//     Gemini              contents, or request.contents; chunks with candidates[0].content.parts
//     OpenAI chat         messages; chunks with choices[0].delta
//     OpenAI responses    input; events response.output_text.delta and others
//     Anthropic messages  messages of blocks; events content_block_delta and others
//
// The one form is a chat completion's message: role, content, tool_calls.

'use strict';

// Of what the user said before, to tell which conversation this is.
const QUESTIONS = 8;
const CUT = 500;

const listOf = (value) => (Array.isArray(value) ? value : []);
const objects = (value) => listOf(value).filter((one) => one !== null && typeof one === 'object');

/** What is asked, if the reply comes in pieces; null: nothing that a user follows. */
function asked(path, body) {
  if (body === null || typeof body !== 'object') return null;
  if (!body.stream && !/streamGenerateContent/i.test(path)) return null;
  const request = body.request && body.request.contents ? body.request : body;
  let items = request.contents || body.messages || body.input;
  if (typeof items === 'string') items = [{ role: 'user', content: items }];
  const texts = [];
  for (const item of objects(items)) if (item.role === 'user') texts.push(...textsIn(item));
  if (texts.length === 0) return null;
  return {
    model: typeof body.model === 'string' ? body.model : modelIn(path),
    tools: listOf(request.tools).length > 0,
    question: texts[texts.length - 1],
    questions: texts.slice(-QUESTIONS).map((text) => text.slice(0, CUT)),
  };
}

function textsIn(item) {
  const content = item.parts || item.content;
  if (typeof content === 'string') return [content];
  return objects(content).map((part) => part.text).filter((text) => typeof text === 'string');
}

function modelIn(path) {
  const found = /models\/([^/:]+):/.exec(path);
  return found ? found[1] : null;
}

/** A reply, put together from what comes of it. */
class Answer {
  constructor() {
    this.pieces = []; // [kind, text], new since somebody took them
    this.text = '';
    this.complete = false;
    this.id = null; // by which a later request may refer to it (Responses)
    this._calls = new Map();
  }

  get message() {
    const message = { role: 'assistant', content: this.text };
    const calls = [...this._calls.values()].map(({ id, name, args }) => ({
      id, type: 'function', function: { name, arguments: args },
    }));
    if (calls.length > 0) message.tool_calls = calls;
    return message;
  }

  get calls() {
    return this._calls.size > 0;
  }

  event(event) {
    if (event === null || typeof event !== 'object') return;
    if (event.response && event.response.candidates) event = event.response;
    if (Array.isArray(event.candidates)) this._candidate(event.candidates[0] || {});
    else if (Array.isArray(event.choices)) this._choice(event.choices[0] || {});
    else this._typed(event);
  }

  /** A reply that came in one piece. */
  whole(body) {
    if (body === null || typeof body !== 'object') return;
    if (Array.isArray(body.choices)) {
      const { message } = body.choices[0] || {};
      this._choice({ delta: message, finish_reason: 'stop' });
    } else if (Array.isArray(body.candidates) || body.response) {
      this.event(body);
    } else if (Array.isArray(body.content)) {
      objects(body.content).forEach((block, index) => {
        this._piece(block.text, 'text');
        this._piece(block.thinking, 'reasoning');
        if (block.type === 'tool_use') {
          this._begin(index, block.id, block.name).args = JSON.stringify(block.input || {});
        }
      });
      this.complete = true;
    } else if (Array.isArray(body.output)) {
      this._named(body);
      for (const item of objects(body.output)) {
        this._item(item);
        if (item.type === 'message') {
          for (const part of objects(item.content)) this._piece(part.text, 'text');
        }
      }
      this.complete = true;
    }
  }

  _candidate(candidate) {
    for (const part of objects((candidate.content || {}).parts)) {
      if (part.functionCall) {
        const { id, name, args } = part.functionCall;
        const place = this._calls.size;
        const known = this._begin(place, id || `call-${place}`, name);
        known.args = JSON.stringify(args || {});
      } else {
        this._piece(part.text, part.thought ? 'reasoning' : 'text');
      }
    }
    if (candidate.finishReason) this.complete = true;
  }

  _choice(choice) {
    const delta = choice.delta || {};
    this._piece(delta.reasoning_content || delta.reasoning, 'reasoning');
    this._piece(delta.content, 'text');
    objects(delta.tool_calls).forEach((call, place) => {
      const given = call.function || {};
      const index = call.index === undefined ? place : call.index;
      this._begin(index, call.id, given.name).args += given.arguments || '';
    });
    if (choice.finish_reason) this.complete = true;
  }

  _typed(event) {
    const delta = event.delta || {};
    const block = event.content_block || {};
    const item = event.item || {};
    switch (event.type) {
      case 'content_block_start':
        if (block.type === 'tool_use') this._begin(event.index, block.id, block.name);
        this._piece(block.text, 'text');
        this._piece(block.thinking, 'reasoning');
        break;
      case 'content_block_delta':
        this._piece(delta.text, 'text');
        this._piece(delta.thinking, 'reasoning');
        if (this._calls.has(event.index)) {
          this._calls.get(event.index).args += delta.partial_json || '';
        }
        break;
      case 'response.output_text.delta':
        this._piece(delta, 'text');
        break;
      case 'response.reasoning_text.delta':
      case 'response.reasoning_summary_text.delta':
        this._piece(delta, 'reasoning');
        break;
      case 'response.output_item.done':
        this._item(item);
        break;
      case 'response.created':
        this._named(event.response);
        break;
      case 'message_stop':
      case 'response.completed':
      case 'response.incomplete':
        this.complete = true;
        break;
      default:
    }
  }

  _item(item) {
    if (item.type === 'function_call') {
      this._begin(item.call_id, item.call_id, item.name).args = item.arguments || '';
    }
  }

  _named(response) {
    if (response && typeof response.id === 'string') this.id = response.id;
  }

  _begin(index, id, name) {
    const known = this._calls.get(index) || { id: null, name: null, args: '' };
    known.id = id || known.id;
    known.name = name || known.name;
    this._calls.set(index, known);
    return known;
  }

  _piece(text, kind) {
    if (typeof text !== 'string' || text === '') return;
    this.pieces.push([kind, text]);
    if (kind === 'text') this.text += text;
  }
}

module.exports = { Answer, asked };
