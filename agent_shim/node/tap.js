// The tap of a known agent: what it asks its model and what comes back, for the supervisor to join
// with the agent's transcript (supervisor/agents/node_tap.py).
//
//     asked    what the user said last, and before
//     deltas   as they come; their session is the number of the request
//     message  a reply that calls tools, before they run
//     over     nothing more comes
//     wrote    a file of lines that the agent writes

'use strict';

const { Exchange } = require('./exchange');
const { Frames } = require('./frames');
const { asked } = require('./models');

class Tap {
  constructor(folder) {
    this._frames = new Frames(folder);
    this._count = 0;
  }

  /** A request is sent; what to do when it is answered. It belongs to the session whose question
   * the agent has written down by then. */
  asks(path, body) {
    return { answered: () => this._begin(path, body) };
  }

  /** Null: it is no request that a user follows. */
  _begin(path, body) {
    const about = asked(path, JSON.parse(body));
    if (about === null) return null;
    const session = String(++this._count);
    this._frames.record({ kind: 'asked', ...about, session });
    return new Exchange({
      piece: (kind, text) => this._frames.delta(session, text, kind),
      complete: (answer) => {
        if (answer.calls) this._frames.record({ kind: 'message', message: answer.message, session });
      },
      over: ({ complete }) => this._frames.record({ kind: 'over', complete, session }),
    });
  }

  wrote(path) {
    this._frames.record({ kind: 'wrote', path });
  }
}

module.exports = { Tap };
