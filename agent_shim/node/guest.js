// The guest inside a Node agent: the first code that runs in it, by NODE_OPTIONS=--require.
//
// Never prints, never throws into the agent, and never keeps it alive. It takes itself out of the
// agent's environment, so that no tool or container of the agent's meets it; only a copy of the
// same program that the agent starts itself, as some do to have more memory, gets it again. What is
// heavier than a check is loaded when the agent asks a model.
//
//     HERMES_SUPERVISE_TAP      a known agent: the folder that its tap writes into (tap.js)
//     HERMES_SUPERVISE_SPOOL    without it: the folder for what an unknown program says (floor.js),
//     HERMES_SUPERVISE_SOCKET   and the supervisor's socket
//     HERMES_SUPERVISE=0        do nothing
//
// A file that NODE_OPTIONS names has to exist wherever Node starts: this one lies in the state
// folder, under a name made of its contents, and stays there.

'use strict';

const VARIABLE = 'NODE_OPTIONS';
// Programs that start the agent. They pass their environment on, and are left alone.
const LAUNCHERS = /[/\\](npm|npx|pnpm|pnpx|yarn|corepack|tsx|nodemon)(-cli)?(\.[cm]?js)?$/;

function begin(env) {
  const program = process.argv[1];
  const listener = listenerFor(env); // loads nothing yet
  if (!listener || !program || env.HERMES_SUPERVISE === '0' || LAUNCHERS.test(program)) return;
  const ours = takeOut(env);
  if (!require('worker_threads').isMainThread) return;
  if (ours) followCopies(ours, program);
  require('./taps').install(listener, env.HERMES_SUPERVISE_TAP ? null : env.HERMES_SUPERVISE_SOCKET);
}

/** Makes who hears what the program asks its model; null: nobody does. */
function listenerFor(env) {
  const { HERMES_SUPERVISE_TAP: tap, HERMES_SUPERVISE_SPOOL: spool } = env;
  const address = env.HERMES_SUPERVISE_SOCKET;
  if (tap) return () => new (require('./tap').Tap)(tap);
  if (!spool || !address) return null;
  return (reportsItself) => new (require('./floor').Floor)(spool, address, reportsItself);
}

/** Takes the words that load this file out of NODE_OPTIONS, and leaves the user's own. */
function takeOut(env) {
  const before = env[VARIABLE];
  const quoted = __filename.replace(/[\\"]/g, '\\$&');
  const words = [`--require "${quoted}"`, `--require ${__filename}`];
  const ours = before && words.find((one) => before.includes(one));
  if (!ours) return null;
  const rest = before.replace(ours, '').trim();
  if (rest) env[VARIABLE] = rest;
  else delete env[VARIABLE];
  return ours;
}

/** A child that runs the same program gets this file again, if it is still there. */
function followCopies(words, program) {
  const { ChildProcess } = require('child_process');
  const spawn = ChildProcess.prototype.spawn;
  ChildProcess.prototype.spawn = function (options) {
    try {
      if (isCopy(options, program) && require('fs').existsSync(__filename)) {
        options = { ...options, envPairs: withWords(options.envPairs, words) };
      }
    } catch {
      // It starts without.
    }
    return spawn.call(this, options);
  };
}

function isCopy(options, program) {
  return options.file === process.execPath && Array.isArray(options.args)
    && options.args.includes(program) && Array.isArray(options.envPairs);
}

function withWords(pairs, words) {
  const name = `${VARIABLE}=`;
  const before = pairs.find((pair) => pair.startsWith(name));
  const all = before ? `${before} ${words}` : name + words;
  return [...pairs.filter((pair) => pair !== before), all];
}

try {
  begin(process.env);
} catch {
  // The agent runs without.
}
