// One request to a model and its answer, sent as frames before the agent gets the answer.
//
//     asked    what the user said last, and before
//     deltas   as they come; their session is the number of the request
//     message  a reply that calls tools, before they run
//     over     nothing more comes

'use strict';

const { StringDecoder } = require('string_decoder');
const { Frames } = require('./frames');
const { Answer, asked } = require('./models');

// Of a line that is not complete yet; a longer one is no event of a model's.
const LONGEST = 16 * 1024 * 1024;

let frames = null;
let count = 0;

/** The exchange that a request begins; null: it is none that a user follows. */
function begin(folder, path, body) {
  const about = asked(path, JSON.parse(body));
  if (about === null) return null;
  const exchange = new Exchange(open(folder), String(++count));
  exchange.tell({ kind: 'asked', ...about });
  return exchange;
}

/** The agent writes lines into this file. */
function wrote(folder, path) {
  open(folder).record({ kind: 'wrote', path });
}

function open(folder) {
  if (frames === null) frames = new Frames(folder);
  return frames;
}

class Exchange {
  constructor(to, name) {
    this._frames = to;
    this._name = name;
    this._answer = new Answer();
    this._decoder = new StringDecoder('utf8');
    this._rest = '';
    this._reported = false;
    this._over = false;
  }

  tell(record) {
    this._frames.record({ ...record, session: this._name });
  }

  /** A piece of the body, in server-sent events. */
  came(data) {
    if (this._over) return;
    try {
      this._rest += typeof data === 'string' ? data : this._decoder.write(Buffer.from(data));
      const lines = this._rest.split('\n');
      this._rest = lines.pop();
      for (const line of lines) if (line.startsWith('data:')) this._event(line.slice(5).trim());
      if (this._rest.length > LONGEST) this.over();
    } catch {
      // One that is not understood is no reason to lose the next.
    }
  }

  _event(data) {
    if (data === '[DONE]' || data === '') return;
    try {
      this._answer.event(JSON.parse(data));
    } catch {
      return;
    }
    for (const [kind, text] of this._answer.pieces.splice(0)) {
      this._frames.delta(this._name, text, kind);
    }
    if (this._answer.complete && this._answer.calls && !this._reported) {
      this._reported = true;
      this.tell({ kind: 'message', message: this._answer.message });
    }
  }

  over() {
    if (this._over) return;
    this._over = true;
    this.tell({ kind: 'over', complete: this._answer.complete });
  }
}

module.exports = { begin, wrote };
