// The link of a program that nobody knows: its frames in a spool, where recovery finds them, and on
// the supervisor's socket, so that others see them while it runs.
//
// The spool is written first and at once, and is all that counts. The socket is written when Node
// comes to it, keeps no program alive, and may fail at any time. Journal and spool are merged by
// number (docs/protocol.md).

'use strict';

const fs = require('fs');
const net = require('net');
const { Frames, HEADER, ofRecord } = require('./frames');

// A supervisor that is stopped reads nothing; what waits for it is in the spool.
const MOST_UNSENT = 4 * 1024 * 1024;
// A spool of this length is not sent when the supervisor is there again: recovery reads it.
const TOO_LONG = 2 * 1024 * 1024;
// What the supervisor has journalled is dropped from a spool of this length.
const LONG = 1024 * 1024;

class Link extends Frames {
  constructor(folder, address) {
    super(folder, '.spool');
    this._address = address;
    this._socket = null;
    this._received = Buffer.alloc(0);
  }

  /** Connect, if nothing is connected: a new request is a good moment to try it again. All that is in
   * the spool is sent first, so that an acknowledgement is for all of it. */
  connect() {
    if (this._socket !== null || this._over || this._size > TOO_LONG) return;
    const known = this._file === null ? this._hello() : fs.readFileSync(this._path);
    const socket = net.createConnection({ path: this._address, isGuest: true });
    socket.unref();
    socket.on('error', () => {});
    socket.on('close', () => { if (this._socket === socket) this._socket = null; });
    socket.on('data', (data) => { if (this._socket === socket) this._answered(data); });
    this._socket = socket;
    this._received = Buffer.alloc(0);
    socket.write(known);
  }

  _append(frame) {
    try {
      super._append(frame);
    } catch (error) {
      if (this._socket === null) throw error; // a full disk: the supervisor still keeps it
    }
    if (this._number > 0) this._send(frame);
  }

  _send(frame) {
    const socket = this._socket;
    if (socket === null) return;
    if (socket.writableLength <= MOST_UNSENT) {
      socket.write(frame);
    } else {
      this._socket = null;
      socket.destroy();
    }
  }

  /** An answer with number n and no payload acknowledges everything up to n. */
  _answered(data) {
    try {
      this._received = Buffer.concat([this._received, data]);
      while (this._received.length >= HEADER) {
        const length = this._received.readUInt32LE(4);
        if (this._received.length < HEADER + length) break;
        const number = Number(this._received.readBigUInt64LE(8));
        this._received = this._received.subarray(HEADER + length);
        if (length === 0 && number === this._number) this._shorten();
      }
    } catch {
      this._socket = null; // nothing is known of what it has
    }
  }

  _shorten() {
    if (this._size < LONG) return;
    const { length } = this._hello();
    fs.ftruncateSync(this._file, length);
    this._size = length;
  }

  _hello() {
    return this._helloFrame ||= ofRecord(0, {
      kind: 'hello', version: 1, oldest: 1, stream: this.stream, pid: process.pid,
      start: startTime(), executable: process.execPath, argv: process.argv, cwd: process.cwd(),
    });
  }
}

/** The start time of this process in clock ticks since boot; with the pid it is unique. */
function startTime() {
  try {
    const line = fs.readFileSync('/proc/self/stat', 'latin1');
    return Number(line.slice(line.lastIndexOf(')') + 2).split(' ')[19]);
  } catch {
    return undefined;
  }
}

module.exports = { Link };
