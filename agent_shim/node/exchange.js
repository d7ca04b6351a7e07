// The answer to one request to a model, read before the agent gets it.
//
// Knows no agent, and does no I/O: a listener hears of it.
//
//     piece(kind, text)    as it comes
//     complete(answer)     nothing of it is missing, though more may be sent
//     over(answer)         nothing more comes

'use strict';

const { StringDecoder } = require('string_decoder');
const { Answer } = require('./models');

// Of a line that is not complete yet; a longer one is no event of a model's.
const LONGEST = 16 * 1024 * 1024;

class Exchange {
  constructor(listener) {
    this._listener = listener;
    this._answer = new Answer();
    this._decoder = new StringDecoder('utf8');
    this._rest = '';
    this._streams = null;
    this._complete = false;
    this._over = false;
  }

  /** A piece of the body: server-sent events, or a part of one JSON text. */
  came(data) {
    if (this._over) return;
    try {
      this._rest += typeof data === 'string' ? data : this._decoder.write(Buffer.from(data));
      if (this._streams === null && this._rest.trim()) {
        this._streams = !/^\s*[{[]/.test(this._rest);
      }
      if (this._streams) this._lines();
      if (this._rest.length > LONGEST) this.over();
    } catch {
      // One that is not understood is no reason to lose the next.
    }
  }

  _lines() {
    const lines = this._rest.split('\n');
    this._rest = lines.pop();
    for (const line of lines) if (line.startsWith('data:')) this._event(line.slice(5).trim());
  }

  _event(data) {
    if (data === '[DONE]' || data === '') return;
    try {
      this._answer.event(JSON.parse(data));
    } catch {
      return;
    }
    this._tell();
  }

  _tell() {
    if (this._answer.id !== null) this._listener.named?.(this._answer.id);
    for (const [kind, text] of this._answer.pieces.splice(0)) this._listener.piece(kind, text);
    if (this._answer.complete && !this._complete) {
      this._complete = true;
      this._listener.complete(this._answer);
    }
  }

  over() {
    if (this._over) return;
    this._over = true;
    try {
      if (this._streams === false) {
        // A list holds what would otherwise have come as events.
        const body = JSON.parse(this._rest);
        if (Array.isArray(body)) body.forEach((event) => this._answer.event(event));
        else this._answer.whole(body);
        this._tell();
      }
    } catch {
      // It was cut off.
    }
    this._listener.over(this._answer);
  }
}

module.exports = { Exchange };
