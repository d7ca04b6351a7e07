// A small agent in Node.js that is recovered when it dies. It implements docs/protocol.md in one
// file, without dependencies. Run it, and kill it with `kill -9` while it counts:
//
//     hermes-supervise -- node examples/node/agent.js "Count for me"
//
// Without supervision it does the same and sends nothing.

'use strict';

const crypto = require('crypto');
const fs = require('fs');
const net = require('net');
const path = require('path');

const MAGIC = Buffer.from([0xf5, 0x48, 0x53, 0x01]);

const CRC_TABLE = Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? (byte >>> 1) ^ 0xedb88320 : byte >>> 1;
  return byte >>> 0;
});

function crc32(...parts) {
  let crc = 0xffffffff;
  for (const part of parts) {
    for (const byte of part) crc = CRC_TABLE[(crc ^ byte) & 0xff] ^ (crc >>> 8);
  }
  return (crc ^ 0xffffffff) >>> 0;
}

function frame(number, payload) {
  const covered = Buffer.alloc(12);
  covered.writeUInt32LE(payload.length, 0);
  covered.writeBigUInt64LE(BigInt(number), 4);
  const check = Buffer.alloc(4);
  check.writeUInt32LE(crc32(covered, payload));
  return Buffer.concat([MAGIC, covered, check, payload]);
}

const asJson = (record) => Buffer.from(JSON.stringify(record));

function asDelta(session, text) {
  const name = Buffer.from(session);
  const head = Buffer.from([0x74, name.length & 0xff, name.length >> 8]); // "t", then the length
  return Buffer.concat([head, name, Buffer.from(text)]);
}

// The start time of this process in clock ticks since boot. Together with the pid it is unique.
function startTime() {
  try {
    const line = fs.readFileSync('/proc/self/stat', 'latin1');
    return Number(line.slice(line.lastIndexOf(')') + 2).split(' ')[19]);
  } catch {
    return undefined;
  }
}

/** The connection to the supervisor. After `await send(…)`, a record survives any signal. */
class Connection {
  constructor(address, spoolFolder) {
    this.address = address;
    this.stream = crypto.randomBytes(16).toString('hex');
    this.spoolFile = path.join(spoolFolder, `${this.stream}.spool`);
    this.next = 1;
    this.unacknowledged = []; // [number, frame]
    this.hello = frame(0, asJson({
      kind: 'hello', version: 1, oldest: 1, stream: this.stream, pid: process.pid,
      start: startTime(), argv: process.argv, cwd: process.cwd(),
    }));
  }

  connect() {
    return new Promise((resolve) => {
      const socket = net.createConnection(this.address);
      socket.unref(); // it does not keep the process alive
      socket.once('connect', () => {
        this.socket = socket;
        socket.write(this.hello);
        for (const [, known] of this.unacknowledged) socket.write(known);
        resolve();
      });
      socket.on('data', (data) => this.receive(data));
      socket.on('error', () => {});
      socket.once('close', () => {
        if (this.socket === socket) this.spoolAll(); // the supervisor may be dead
        this.socket = null;
        resolve();
        setTimeout(() => this.connect(), 200).unref();
      });
    });
  }

  /** An answer with number n and an empty payload acknowledges everything up to n. */
  receive(data) {
    this.received = Buffer.concat([this.received || Buffer.alloc(0), data]);
    while (this.received.length >= 20) {
      const length = this.received.readUInt32LE(4);
      if (this.received.length < 20 + length) break;
      const number = Number(this.received.readBigUInt64LE(8));
      this.unacknowledged = this.unacknowledged.filter(([known]) => known > number);
      this.received = this.received.subarray(20 + length);
    }
  }

  /** No connection: append the same frames to the spool file, where recovery finds them. */
  spoolAll() {
    this.received = undefined;
    if (this.unacknowledged.length === 0) return;
    const frames = this.unacknowledged.map(([, known]) => known);
    const first = fs.existsSync(this.spoolFile) ? [] : [this.hello];
    fs.appendFileSync(this.spoolFile, Buffer.concat([...first, ...frames]), { mode: 0o600 });
    this.unacknowledged = [];
  }

  send(payload) {
    const number = this.next++;
    const sent = frame(number, payload);
    this.unacknowledged.push([number, sent]);
    if (!this.socket) return this.spoolAll();
    return new Promise((resolve) => this.socket.write(sent, resolve));
  }
}

class Session {
  static async begin(id, about) {
    const session = new Session();
    session.id = id;
    const { HERMES_SUPERVISE_SOCKET: address, HERMES_SUPERVISE_SPOOL: spool } = process.env;
    if (address && spool && process.env.HERMES_SUPERVISE !== '0') {
      session.connection = new Connection(address, spool);
      await session.connection.connect();
    }
    await session.report({ kind: 'session', ...about });
    return session;
  }

  async report(record) {
    const full = { ...record, session: this.id, at: Date.now() / 1000 };
    if (this.connection) await this.connection.send(asJson(full));
  }

  message(role, content) {
    return this.report({ kind: 'message', uid: crypto.randomUUID(), message: { role, content } });
  }

  async delta(text) {
    if (this.connection) await this.connection.send(asDelta(this.id, text));
  }

  end(reason) {
    return this.report({ kind: 'ended', reason });
  }
}

async function main() {
  const [question = 'Count for me', count = '60'] = process.argv.slice(2);
  const id = `node-${Date.now()}-${process.pid}`;
  const chat = await Session.begin(id, { source: 'cli', model: 'a-counter' });
  await chat.message('user', question);
  let reply = '';
  for (let number = 1; number <= Number(count); number++) {
    const piece = `${number} `;
    await chat.delta(piece); // record it first,
    process.stdout.write(piece); // then show it
    reply += piece;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  process.stdout.write('\n');
  await chat.message('assistant', reply);
  await chat.end('completed');
}

module.exports = { Connection, asDelta, asJson, frame };

if (require.main === module) main();
