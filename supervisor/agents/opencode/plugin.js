// The live tap in opencode: writes down, beside this file, what is streamed and which tools are
// about to run. tap.py copies it into the folder of a run and reads what it writes.
//
//   sessions.jsonl    which sessions this opencode has: {"pid"} first, then {"session"} once each
//   msg_….jsonl       one message: {"session"} first, then, in order,
//                     {"n", "part", "type", "text"}      a piece of a reply
//                     {"n", "call", "arguments"}         a tool that is about to run
//
// Nobody has to read it: it needs no supervisor, prints nothing, and never throws into opencode.
// After an entry that could not be written, nothing more is written of that message.

import { closeSync, fstatSync, openSync, writeSync } from "node:fs"
import { dirname, join } from "node:path"
import { fileURLToPath } from "node:url"

const folder = dirname(fileURLToPath(import.meta.url))
const MOST = 64 // messages that are open at a time

const sessions = new Set()
const files = new Map() // by message: {fd, n, session}
const types = new Map() // by part: text or reasoning
const callers = new Map() // by call: the message that makes it
let list = -1

function open(name) {
  return openSync(join(folder, name), "a", 0o600)
}

function write(fd, entry) {
  const data = Buffer.from(JSON.stringify(entry) + "\n")
  return writeSync(fd, data) === data.length
}

function close(file) {
  try {
    if (file.fd >= 0) closeSync(file.fd)
  } catch {}
  file.fd = -1
}

function note(session) {
  if (list < 0 || !session || sessions.has(session)) return
  sessions.add(session)
  write(list, { session })
}

function append(message, session, entry) {
  let file = files.get(message)
  if (file === undefined) {
    if (files.size >= MOST) finish(files.keys().next().value)
    file = { fd: -1, n: 0, session }
    files.set(message, file)
    // A run that is over has no folder: a file of it would grow unseen.
    if (list < 0 || fstatSync(list).nlink === 0) return
    file.fd = open(message.replace(/\W/g, "_") + ".jsonl")
    if (!write(file.fd, { session })) close(file)
  }
  if (file.fd < 0) return
  let whole = false
  try {
    whole = write(file.fd, { n: file.n++, ...entry })
  } finally {
    if (!whole) close(file)
  }
}

function finish(message) {
  const file = files.get(message)
  if (file === undefined) return
  close(file)
  files.delete(message)
}

function happened(type, about) {
  note(about.sessionID)
  if (type === "message.part.delta") {
    if (about.field !== "text" || !about.delta) return
    const kind = types.get(about.partID) ?? "text"
    append(about.messageID, about.sessionID, { part: about.partID, type: kind, text: about.delta })
  } else if (type === "message.part.updated") {
    const part = about.part
    if (part.type === "tool") callers.set(part.callID, part.messageID)
    else if (part.time?.end === undefined) types.set(part.id, part.type)
    else types.delete(part.id)
  } else if (type === "message.updated" && about.info.time?.completed !== undefined) {
    finish(about.info.id)
  } else if (type === "session.idle") {
    callers.clear()
    for (const [message, file] of files) if (file.session === about.sessionID) finish(message)
  }
}

function quietly(act) {
  try {
    act()
  } catch {}
}

export const Tap = async () => {
  quietly(() => {
    if (list >= 0) return // opencode loads it once more for another folder
    list = open("sessions.jsonl")
    write(list, { pid: process.pid })
  })
  return {
    event: async ({ event }) => quietly(() => happened(event.type, event.properties)),
    "tool.execute.before": async (input, output) =>
      quietly(() => {
        const message = callers.get(input.callID)
        if (message === undefined) return
        append(message, input.sessionID, { call: input.callID, arguments: output.args })
      }),
  }
}
