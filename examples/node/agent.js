// A small agent in Node.js that is recovered when it dies: the wire protocol of docs/protocol.md,
// in one file and with nothing to install.
//
//     hermes-supervise -- node examples/node/agent.js "Count for me"
//
// and then `kill -9` it while it counts. Not supervised, it does the same and tells nobody.

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

// When this process began, in clock ticks since boot: with the pid, its identity.
function startTime() {
  try {
    const line = fs.readFileSync('/proc/self/stat', 'latin1');
    return Number(line.slice(line.lastIndexOf(')') + 2).split(' ')[19]);
  } catch {
    return undefined;
  }
}

/** The line to the supervisor. What `say` was awaited for, no signal can take back. */
class Link {
  constructor(address, spoolFolder) {
    this.address = address;
    this.stream = crypto.randomBytes(16).toString('hex');
    this.spool = path.join(spoolFolder, `${this.stream}.spool`);
    this.next = 1;
    this.unacknowledged = []; // [number, frame]
    this.hello = frame(0, asJson({
      kind: 'hello', version: 1, oldest: 1, stream: this.stream, pid: process.pid,
      start: startTime(), argv: process.argv, cwd: process.cwd(),
    }));
  }

  connect() {
    return new Promise((resolve) => {
      const line = net.createConnection(this.address);
      line.unref(); // it keeps nobody alive
      line.once('connect', () => {
        this.line = line;
        line.write(this.hello);
        for (const [, known] of this.unacknowledged) line.write(known);
        resolve();
      });
      line.on('data', (data) => this.hear(data));
      line.on('error', () => {});
      line.once('close', () => {
        if (this.line === line) this.spill(); // it may be dead: what it had not stored is ours
        this.line = null;
        resolve();
        setTimeout(() => this.connect(), 200).unref();
      });
    });
  }

  /** Answers: number n with an empty payload acknowledges everything up to n. */
  hear(data) {
    this.heard = Buffer.concat([this.heard || Buffer.alloc(0), data]);
    while (this.heard.length >= 20) {
      const length = this.heard.readUInt32LE(4);
      if (this.heard.length < 20 + length) break;
      const number = Number(this.heard.readBigUInt64LE(8));
      this.unacknowledged = this.unacknowledged.filter(([known]) => known > number);
      this.heard = this.heard.subarray(20 + length);
    }
  }

  /** Nobody listens: the same frames go into a file, where they are found. */
  spill() {
    this.heard = undefined;
    if (this.unacknowledged.length === 0) return;
    const frames = this.unacknowledged.map(([, known]) => known);
    const first = fs.existsSync(this.spool) ? [] : [this.hello];
    fs.appendFileSync(this.spool, Buffer.concat([...first, ...frames]), { mode: 0o600 });
    this.unacknowledged = [];
  }

  say(payload) {
    const number = this.next++;
    const told = frame(number, payload);
    this.unacknowledged.push([number, told]);
    if (!this.line) return this.spill();
    return new Promise((resolve) => this.line.write(told, resolve));
  }
}

class Session {
  static async begin(id, about) {
    const session = new Session();
    session.id = id;
    const { HERMES_SUPERVISE_SOCKET: address, HERMES_SUPERVISE_SPOOL: spool } = process.env;
    if (address && spool && process.env.HERMES_SUPERVISE !== '0') {
      session.link = new Link(address, spool);
      await session.link.connect();
    }
    await session.tell({ kind: 'session', ...about });
    return session;
  }

  async tell(record) {
    const told = { ...record, session: this.id, at: Date.now() / 1000 };
    if (this.link) await this.link.say(asJson(told));
  }

  message(role, content) {
    return this.tell({ kind: 'message', uid: crypto.randomUUID(), message: { role, content } });
  }

  async delta(text) {
    if (this.link) await this.link.say(asDelta(this.id, text));
  }

  end(reason) {
    return this.tell({ kind: 'ended', reason });
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
    await chat.delta(piece); // handed over first,
    process.stdout.write(piece); // shown second
    reply += piece;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  process.stdout.write('\n');
  await chat.message('assistant', reply);
  await chat.end('completed');
}

module.exports = { Link, asDelta, asJson, frame };

if (require.main === module) main();
