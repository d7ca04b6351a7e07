// The ways by which a Node agent asks a model, and by which it writes its transcript.
//
// Each is replaced by one that does the same and looks: at requests whose path is a model's, and
// at the names of files of JSON lines. Nothing else is looked at, and a look that fails is none.
//
//     fetch                          the body of the response, as whoever reads it gets it
//     http.request, https.request    the chunks of the response, before they are queued
//     fs.appendFileSync, writeFileSync
//     net.Socket.connect             whether the program speaks to the supervisor itself

'use strict';

const MODEL = /(generateContent|\/chat\/completions|\/responses|\/messages)\/?$/i;

function quietly(act) {
  try {
    return act();
  } catch {
    return undefined;
  }
}

/** `make`: who hears of it, made when there is something to hear: `asks(path, body)` when a request
 * is sent, which returns null or what is `answered()`, and `wrote(path)`. It is given a function that
 * says whether the program has connected to `address` itself. */
function install(make, address) {
  let made = null;
  const isConnected = address ? watchSockets(address) : () => false;
  const listener = () => made ||= make(isConnected);
  watchFetch((path, body) => listener().asks(path, body));
  watchHttp((path, body) => listener().asks(path, body));
  watchFiles((path) => listener().wrote(path));
}

function renamed(ours, theirs) {
  Object.defineProperty(ours, 'name', { value: theirs.name, configurable: true });
  Object.defineProperty(ours, 'length', { value: theirs.length, configurable: true });
  return ours;
}

// -- fetch -----------------------------------------------------------------------------------------

function watchFetch(asks) {
  const original = globalThis.fetch;
  if (typeof original !== 'function') return;
  const replaced = renamed(function (input, init) {
    const path = quietly(() => pathOf(input, init));
    if (path === undefined || !MODEL.test(path)) return original.apply(this, arguments);
    const body = quietly(() => bodyOf(input, init));
    if (body === undefined) return original.apply(this, arguments);
    const request = new Asked(path, body, asks);
    return original.apply(this, arguments).then((response) => {
      quietly(() => watchResponse(response, request));
      return response;
    });
  }, original);
  // As Node defines it: replaceable, by the agent as well.
  Object.defineProperty(globalThis, 'fetch', {
    value: replaced, writable: true, enumerable: true, configurable: true,
  });
}

function pathOf(input, init) {
  const method = (init && init.method) || (input && input.method);
  if (String(method).toUpperCase() !== 'POST') return undefined;
  const url = typeof input === 'string' ? input : input.url || String(input);
  return new URL(url).pathname;
}

/** The text of a request, or a promise of it; undefined: it can be read only once. */
function bodyOf(input, init) {
  const given = init && init.body;
  if (typeof given === 'string') return given;
  if (given instanceof Uint8Array) return Buffer.from(given).toString();
  if (!given && input && typeof input.clone === 'function') return input.clone().text();
  return undefined;
}

/** A request, of which the listener hears as soon as its text is known. The agent does not wait. */
class Asked {
  constructor(path, body, asks) {
    this._heard = null;
    this._exchange = undefined;
    const hear = (text) => quietly(() => { this._heard = asks(path, text); });
    if (typeof body === 'string') hear(body);
    else body.then(hear, () => {});
  }

  /** Who gets the answer; null: nobody. */
  get exchange() {
    if (this._exchange === undefined && this._heard !== null) {
      this._exchange = quietly(() => this._heard.answered()) || null;
    }
    return this._exchange || null;
  }
}

function watchResponse(response, request) {
  if (response.status === 200 && response.body) watchStream(response.body, () => request.exchange);
}

/** The same stream, whose readers are looked at. */
function watchStream(stream, exchangeOf) {
  const look = ({ done, value }) => quietly(() => {
    const exchange = exchangeOf();
    if (!exchange) return;
    if (done) exchange.over();
    else exchange.came(value);
  });
  const looked = (result) => {
    look(result);
    return result;
  };
  const { getReader, pipeThrough, values } = stream;
  const through = () => pipeThrough.call(stream, new TransformStream({
    transform(value, controller) {
      look({ done: false, value });
      controller.enqueue(value);
    },
    flush() {
      look({ done: true });
    },
  }));
  const own = {
    getReader(...options) {
      const reader = getReader.apply(stream, options);
      const { read } = reader;
      reader.read = (...into) => read.apply(reader, into).then(looked);
      return reader;
    },
    values(...options) {
      const iterator = values.apply(stream, options);
      const { next } = iterator;
      iterator.next = (...given) => next.apply(iterator, given).then(looked);
      return iterator;
    },
    pipeThrough: (...given) => pipeThrough.apply(through(), given),
    pipeTo: (...given) => through().pipeTo(...given),
    tee: () => through().tee(),
  };
  own[Symbol.asyncIterator] = own.values;
  for (const name of Reflect.ownKeys(own)) {
    Object.defineProperty(stream, name, { value: own[name], configurable: true, writable: true });
  }
}

// -- http and https --------------------------------------------------------------------------------

const REQUESTS = new WeakMap(); // to a model: what was written of each, or the whole of it

function watchHttp(asks) {
  const { prototype } = require('http').ClientRequest;
  const { write, end, emit } = prototype;
  prototype.write = renamed(function (chunk, encoding) {
    quietly(() => noteWritten(this, chunk, encoding));
    return write.apply(this, arguments);
  }, write);
  prototype.end = renamed(function (chunk, encoding) {
    quietly(() => {
      noteWritten(this, chunk, encoding);
      const written = REQUESTS.get(this);
      if (!Array.isArray(written)) return;
      REQUESTS.set(this, new Asked(pathIn(this), Buffer.concat(written).toString(), asks));
    });
    return end.apply(this, arguments);
  }, end);
  prototype.emit = renamed(function (name, response) {
    if (name === 'response' && REQUESTS.has(this)) {
      quietly(() => watchMessage(response, REQUESTS.get(this)));
    }
    return emit.apply(this, arguments);
  }, emit);
}

const pathIn = (request) => String(request.path).split('?')[0];

function noteWritten(request, chunk, encoding) {
  if (request.method !== 'POST' || !MODEL.test(pathIn(request))) return;
  if (!REQUESTS.has(request)) REQUESTS.set(request, []);
  const written = REQUESTS.get(request);
  if (!Array.isArray(written)) return;
  const known = typeof encoding === 'string' ? encoding : 'utf8';
  if (typeof chunk === 'string') written.push(Buffer.from(chunk, known));
  else if (chunk instanceof Uint8Array) written.push(Buffer.from(chunk));
}

function watchMessage(response, request) {
  const encoding = String(response.headers['content-encoding'] || 'identity').trim().toLowerCase();
  if (response.statusCode !== 200) return;
  const body = encoding === 'identity' ? null : require('./inflate').inflater(encoding);
  if (body === null && encoding !== 'identity') return;
  const { exchange } = request;
  if (!exchange) return;
  let known = true;
  const look = (chunk) => {
    if (chunk === null) {
      if (body) body.over();
      exchange.over();
    } else {
      exchange.came(body ? body.piece(chunk) : chunk);
    }
  };
  const { push } = response;
  response.push = function (chunk) {
    if (known) {
      known = false; // after what could not be read nothing is known
      quietly(() => {
        look(chunk);
        known = true;
      });
    }
    return push.apply(this, arguments);
  };
}

// -- the supervisor's socket -----------------------------------------------------------------------

function watchSockets(address) {
  const { prototype } = require('net').Socket;
  const { connect } = prototype;
  let connected = false;
  prototype.connect = renamed(function (...given) {
    quietly(() => {
      const first = Array.isArray(given[0]) ? given[0][0] : given[0];
      const { path, isGuest } = typeof first === 'string' ? { path: first } : first;
      if (path === address && !isGuest) connected = true;
    });
    return connect.apply(this, given);
  }, connect);
  return () => connected;
}

// -- files -----------------------------------------------------------------------------------------

function watchFiles(wrote) {
  const fs = require('fs');
  const known = new Set();
  for (const name of ['appendFileSync', 'writeFileSync']) {
    const original = fs[name];
    fs[name] = renamed(function (path) {
      if (typeof path === 'string' && path.endsWith('.jsonl') && !known.has(path)) {
        known.add(path);
        quietly(() => wrote(path));
      }
      return original.apply(this, arguments);
    }, original);
  }
  require('module').syncBuiltinESMExports();
}

module.exports = { install };
