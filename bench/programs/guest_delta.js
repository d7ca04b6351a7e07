// What a delta costs in the guest of a Node agent: from the bytes of an event to a frame on disk, in a
// known agent and in a program that nobody knows. Writes the microseconds of each turn as JSON to its
// first argument.

'use strict';

const fs = require('fs');

const [answer, guest, tap, count, turns] = process.argv.slice(2);
const { Floor } = require(`${guest}/floor.js`);
const { Tap } = require(`${guest}/tap.js`);
const event = Buffer.from(`data: ${JSON.stringify({
  choices: [{ index: 0, delta: { content: 'twenty letters, well' }, finish_reason: null }],
})}\n\n`);
const body = JSON.stringify({ stream: true, messages: [{ role: 'user', content: 'Hello?' }] });

const found = {};
for (const [name, listener] of [
  ['tap', new Tap(tap)],
  ['floor', new Floor(tap, `${tap}/nobody`, () => false)],
]) {
  const exchange = listener.asks('/v1/chat/completions', body).answered();
  found[name] = [];
  for (let turn = 0; turn < Number(turns); turn++) {
    const from = process.cpuUsage();
    for (let number = 0; number < Number(count); number++) exchange.came(event);
    const { user, system } = process.cpuUsage(from);
    found[name].push((user + system) / Number(count));
  }
  exchange.over();
}
fs.writeFileSync(answer, JSON.stringify(found));
