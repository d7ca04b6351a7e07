// The floor: the conversations of a program that nobody knows, from its requests to its model.
//
// A request continues the conversation that its messages begin with; its other messages are new. A
// request that continues none begins one: its last question is new, and what is before it is history,
// or examples for the model. A request of the Responses API may name an earlier response, or a
// conversation that the provider keeps, and carry only what is new. A single request that is neither
// streamed nor has tools is an aside (a title, a summary) until another one continues it.
//
// A program that speaks the protocol itself reports its own sessions: then nothing is reported here.

'use strict';

const crypto = require('crypto');
const { Exchange } = require('./exchange');
const { Link } = require('./link');
const { continued, isLasting, messagesOf, nameOfCall } = require('./requests');

const SOURCE = 'node';
const KEPT = 64;
const NO_ID = /^call-(\d+)$/; // as models.js makes them up

class Floor {
  /** `reportsItself`: whether the program has connected to the supervisor. */
  constructor(folder, address, reportsItself) {
    this._link = new Link(folder, address);
    this._reportsItself = reportsItself;
    this._conversations = [];
    this._lineages = new Map(); // by an id of the provider's: the conversation and its messages
  }

  /** A request is sent, and told before that. Null: it is none of a user's. */
  asks(path, text) {
    if (this._reportsItself()) return null;
    const body = JSON.parse(text);
    const { after, keptAs } = continued(body);
    const origin = this._lineages.get(after);
    const messages = [...(origin ? origin.messages : []), ...messagesOf(body)];
    if (!messages.some((message) => message.role === 'user')) return null;
    const about = { model: modelOf(path, body) };
    const conversation = this._find(messages, origin && origin.conversation);
    this._link.connect();
    if (isLasting(path, body) || conversation.wasAnswered) conversation.asked(messages, about);
    return { answered: () => this._exchange(conversation, messages, keptAs) };
  }

  _find(messages, origin) {
    const found = this._conversations.filter((one) => one.continues(messages));
    if (found.includes(origin)) return origin;
    if (found.length > 0) return found.reduce((a, b) => (b.length > a.length ? b : a));
    const made = new Conversation(messages, this._link);
    this._conversations.unshift(made);
    this._conversations.length = Math.min(this._conversations.length, KEPT);
    return made;
  }

  _exchange(conversation, messages, keptAs) {
    let id = null;
    const learn = (all) => {
      for (const name of [id, keptAs]) if (name) this._remember(name, conversation, all);
    };
    return new Exchange({
      named(name) {
        id = name;
        learn(messages);
      },
      piece: (kind, text) => conversation.piece(kind, text),
      complete(answer) {
        const message = withOwnIds(answer.message, messages.length);
        conversation.answered(message);
        learn([...messages, message]);
      },
      over() {},
    });
  }

  _remember(id, conversation, messages) {
    this._lineages.delete(id);
    this._lineages.set(id, { conversation, messages });
    for (const old of [...this._lineages.keys()].slice(0, -KEPT)) this._lineages.delete(old);
  }

  wrote() {}
}

class Conversation {
  constructor(messages, link) {
    this._known = messages;
    this._start = lastQuestion(messages);
    this._link = link;
    this._session = null;
    this._names = new Map(); // of tools, by call
    this._restart = false;
    this.wasAnswered = false;
  }

  get length() {
    return this._known.length;
  }

  continues(messages) {
    return this._known.length <= messages.length
      && this._known.every((one, at) => isSame(one, messages[at]));
  }

  asked(messages, about) {
    if (this._session === null) {
      this._session = newSession();
      const started = Date.now() / 1000;
      this._link.record({
        kind: 'session', session: this._session, source: SOURCE, cwd: process.cwd(), started,
        captured: 'model stream', ...about,
      });
      this._known = messages.slice(0, this._start);
    }
    for (const message of messages.slice(this._known.length)) this._say(message);
    this._restart = true;
  }

  piece(kind, text) {
    if (this._session === null) return;
    if (this._restart) {
      this._restart = false;
      this._link.record({ kind: 'delta', session: this._session, [kind]: text, restart: true });
    } else {
      this._link.delta(this._session, text, kind);
    }
  }

  answered(message) {
    this.wasAnswered = true;
    if (this._session !== null) this._say(message);
    else this._known = [...this._known, message];
  }

  _say(message) {
    this._known = [...this._known, message];
    for (const call of message.tool_calls || []) this._names.set(call.id, call.function?.name);
    const name = message.role === 'tool' && this._names.get(message.tool_call_id);
    if (name) message = { ...message, tool_name: name };
    const uid = `${this._session}-${this._known.length}`;
    this._link.record({ kind: 'message', session: this._session, uid, message });
  }
}

function newSession() {
  const now = new Date();
  const date = [now.getFullYear(), now.getMonth() + 1, now.getDate()];
  const time = [now.getHours(), now.getMinutes(), now.getSeconds()];
  const [day, hour] = [date, time].map((parts) => (
    parts.map((part) => String(part).padStart(2, '0')).join('')
  ));
  return `${day}_${hour}_${crypto.randomBytes(3).toString('hex')}`;
}

function modelOf(path, body) {
  const found = /models\/([^/:]+):/.exec(path);
  return typeof body.model === 'string' ? body.model : found ? found[1] : undefined;
}

/** A reply whose calls have no id of the provider's, with those that the next request will have. */
function withOwnIds(message, place) {
  if (!message.tool_calls) return { ...message, content: message.content || null };
  const calls = message.tool_calls.map((call) => {
    const found = NO_ID.exec(call.id);
    return found ? { ...call, id: nameOfCall(place, Number(found[1])) } : call;
  });
  return { ...message, content: message.content || null, tool_calls: calls };
}

/** Where the last question begins: it may be several messages. */
function lastQuestion(messages) {
  let at = messages.length - 1;
  while (at > 0 && messages[at].role !== 'user') at--;
  while (at > 0 && messages[at - 1].role === 'user') at--;
  return Math.max(at, 0);
}

const idsOf = (message) => (message.tool_calls || []).map((call) => call.id).join('\n');
const wordsOf = (message) => String(message.content).trim();

/** As far as that can be known: an agent may have changed the form of an answer, or added text
 * around a question. */
function isSame(one, other) {
  if (one.role !== other.role) return false;
  if (one.role === 'tool') return one.tool_call_id === other.tool_call_id;
  if (one.role === 'assistant') return idsOf(one) === idsOf(other);
  const [a, b] = [wordsOf(one), wordsOf(other)];
  return a === b || (a !== '' && b !== '' && (a.includes(b) || b.includes(a)));
}

module.exports = { Floor };
