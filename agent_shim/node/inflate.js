// What is in a compressed body, piece by piece and at once: a piece is written down before the agent
// has it. Node's own streams answer later, and its synchronous functions want a whole body. So a
// stream is asked synchronously for each piece, and kept open in between; npm does the same to unpack.

'use strict';

const zlib = require('zlib');

const { BROTLI_OPERATION_FLUSH, Z_SYNC_FLUSH, ZSTD_e_flush: ZSTD_FLUSH } = zlib.constants;
// By encoding: the stream for a body that begins with these bytes, and what asks it for all it has.
const STREAMS = {
  gzip: () => [zlib.createGunzip(), Z_SYNC_FLUSH],
  'x-gzip': () => STREAMS.gzip(),
  // By some it is sent without its header.
  deflate: (data) => [
    (data[0] & 15) === 8 ? zlib.createInflate() : zlib.createInflateRaw(), Z_SYNC_FLUSH,
  ],
  br: () => [zlib.createBrotliDecompress(), BROTLI_OPERATION_FLUSH],
  zstd: () => [zlib.createZstdDecompress(), ZSTD_FLUSH],
};

class Inflater {
  constructor(encoding) {
    this._encoding = encoding;
    this._stream = null;
  }

  /** What is in the next piece. Throws if that is not known; then nothing is known of the rest. */
  piece(data) {
    if (data.length === 0) return data;
    if (this._stream === null) {
      [this._stream, this._flush] = STREAMS[this._encoding](data);
    }
    const stream = this._stream;
    const handle = stream._handle;
    const { close } = handle;
    handle.close = () => {};
    try {
      return stream._processChunk(Buffer.from(data), this._flush);
    } finally {
      handle.close = close;
      stream._handle = handle;
      stream.removeAllListeners('error'); // each call adds one
      stream.on('error', () => {}); // it comes later as well, and would end the agent
    }
  }

  over() {
    if (this._stream !== null) this._stream.close();
    this._stream = null;
  }
}

/** One for bodies in this encoding; null: it is not known here. */
function inflater(encoding) {
  return Object.hasOwn(STREAMS, encoding) ? new Inflater(encoding) : null;
}

module.exports = { inflater };
