// What a delta costs in opencode's plugin, here in Node: from the event to a line on disk. Writes the
// microseconds of each turn as JSON to its first argument. The plugin writes beside itself.

import fs from 'node:fs';

const [answer, plugin, count, turns] = process.argv.slice(2);
const { Tap } = await import(plugin);
const { event } = await Tap();
const about = {
  sessionID: 'ses_1', messageID: 'msg_1', partID: 'prt_1', field: 'text', delta: 'twenty letters, well',
};

const found = [];
for (let turn = 0; turn < Number(turns); turn++) {
  const from = process.cpuUsage();
  for (let number = 0; number < Number(count); number++) {
    await event({ event: { type: 'message.part.delta', properties: about } });
  }
  const { user, system } = process.cpuUsage(from);
  found.push((user + system) / Number(count));
}
fs.writeFileSync(answer, JSON.stringify(found));
