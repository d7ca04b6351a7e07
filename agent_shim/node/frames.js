// Frames of docs/protocol.md, appended to a file of this process' own.
//
// Each is written before the call returns: what the agent shows later survives any signal, whoever
// else is dead. A folder that is gone or full ends the writing, and nothing else. The file never
// ends in half a frame: a write that fails is undone.

'use strict';

const crypto = require('crypto');
const fs = require('fs');
const path = require('path');
const zlib = require('zlib');

const MAGIC = Buffer.from([0xf5, 0x48, 0x53, 0x01]);
const HEADER = 20;
const LIMIT = 16 * 1024 * 1024;
const KINDS = { text: 0x74, reasoning: 0x72 };

let table = null;

function crc32(data, value) {
  if (zlib.crc32) return zlib.crc32(data, value);
  if (table === null) {
    table = new Uint32Array(256).map((_, byte) => {
      for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? (byte >>> 1) ^ 0xedb88320 : byte >>> 1;
      return byte;
    });
  }
  value = ~value;
  for (let at = 0; at < data.length; at++) {
    value = table[(value ^ data[at]) & 0xff] ^ (value >>> 8);
  }
  return ~value >>> 0;
}

/** The frame of a payload that is already in its place, behind room for the header. */
function seal(frame, number) {
  MAGIC.copy(frame);
  frame.writeUInt32LE(frame.length - HEADER, 4);
  frame.writeUInt32LE(number % 2 ** 32, 8);
  frame.writeUInt32LE(Math.floor(number / 2 ** 32), 12);
  const check = crc32(frame.subarray(HEADER), crc32(frame.subarray(4, 16), 0));
  frame.writeUInt32LE(check, 16);
  return frame;
}

function ofRecord(number, record) {
  const text = JSON.stringify(record);
  const frame = Buffer.allocUnsafe(HEADER + Buffer.byteLength(text));
  frame.write(text, HEADER);
  return seal(frame, number);
}

function ofDelta(number, session, text, kind) {
  const name = Buffer.byteLength(session);
  const frame = Buffer.allocUnsafe(HEADER + 3 + name + Buffer.byteLength(text));
  frame[HEADER] = KINDS[kind];
  frame.writeUInt16LE(name, HEADER + 1);
  frame.write(session, HEADER + 3);
  frame.write(text, HEADER + 3 + name);
  return seal(frame, number);
}

class Frames {
  constructor(folder, suffix = '.frames') {
    this.stream = crypto.randomBytes(16).toString('hex');
    this._path = path.join(folder, this.stream + suffix);
    this._file = null;
    this._size = 0;
    this._number = 0;
    this._over = false;
  }

  record(record) {
    const at = Date.now() / 1000;
    const mono = Number(process.hrtime.bigint());
    this._write(() => ofRecord(this._number, { ...record, at, mono }));
  }

  delta(session, text, kind) {
    this._write(() => ofDelta(this._number, session, text, kind));
  }

  _write(make) {
    if (this._over) return;
    try {
      if (this._file === null) this._open();
      this._number++;
      const frame = make();
      if (frame.length <= LIMIT) this._append(frame);
    } catch {
      this._over = true;
    }
  }

  _append(frame) {
    try {
      let done = 0;
      while (done < frame.length) done += fs.writeSync(this._file, frame, done);
      this._size += frame.length;
    } catch (error) {
      fs.ftruncateSync(this._file, this._size);
      throw error;
    }
  }

  _open() {
    this._file = fs.openSync(this._path, 'ax', 0o600);
    this._append(this._hello());
  }

  _hello() {
    return ofRecord(0, {
      kind: 'hello', version: 1, oldest: 1, stream: this.stream, pid: process.pid,
      argv: process.argv, cwd: process.cwd(),
    });
  }
}

module.exports = { Frames, HEADER, ofDelta, ofRecord };
