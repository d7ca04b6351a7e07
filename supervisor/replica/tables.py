"""The tables of the replica, and every statement that is run on them. Text only.

    machine   who ships: its lease, by the database's clock; whether it was declared lost
    run       what was supervised there: how it is to be finished, and which machine may do that
    stream    the processes of a run
    share     which session each process spoke in
    frame     what they said, append-only under (stream, position)

`epoch` rises with every change of who may finalise, and a statement that names an older one
changes nothing. Frames need no epoch: a position is written once, by whoever has it.
"""

from __future__ import annotations

from .seal import COMPARED, MAGIC

SCHEMA = "hermes_supervise"
# Forward only, one step for each version. A step that was released is never changed.
_FIRST = f"""
CREATE SCHEMA IF NOT EXISTS {SCHEMA};
CREATE TABLE IF NOT EXISTS {SCHEMA}.meta (key text PRIMARY KEY, value text NOT NULL);
CREATE TABLE IF NOT EXISTS {SCHEMA}.machine (
    machine text PRIMARY KEY,
    name text NOT NULL,
    owner text NOT NULL DEFAULT current_user,
    epoch bigint NOT NULL DEFAULT 1,
    first_seen timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL DEFAULT clock_timestamp(),
    lost_at timestamptz,
    lost_because text
);
CREATE TABLE IF NOT EXISTS {SCHEMA}.run (
    machine text NOT NULL,
    run text NOT NULL,
    about bytea NOT NULL,
    epoch bigint NOT NULL DEFAULT 1,
    began timestamptz NOT NULL DEFAULT clock_timestamp(),
    heard timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz,
    claimed_by text,
    claimed_at timestamptz,
    recovered_at timestamptz,
    PRIMARY KEY (machine, run)
);
CREATE TABLE IF NOT EXISTS {SCHEMA}.stream (
    stream text PRIMARY KEY,
    machine text NOT NULL,
    run text NOT NULL
);
CREATE INDEX IF NOT EXISTS stream_of_run ON {SCHEMA}.stream (machine, run);
CREATE TABLE IF NOT EXISTS {SCHEMA}.share (
    session text NOT NULL,
    stream text NOT NULL,
    title text,
    began timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (session, stream)
);
CREATE INDEX IF NOT EXISTS share_of_stream ON {SCHEMA}.share (stream);
CREATE TABLE IF NOT EXISTS {SCHEMA}.frame (
    stream text NOT NULL,
    position bigint NOT NULL,
    seq bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (stream, position)
);
"""
# What a machine that recovered a run has of it; runs whose records were deleted on purpose.
_SECOND = f"""
ALTER TABLE {SCHEMA}.run ADD COLUMN recovered_to jsonb;
CREATE TABLE {SCHEMA}.forgotten (
    machine text NOT NULL,
    run text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (machine, run)
);
"""
# Who was given the hooks of a run: a claim alone makes a copy. Until now it carried them. Which
# disk a machine reports from: a copy of it has the same id.
_THIRD = f"""
ALTER TABLE {SCHEMA}.run ADD COLUMN hooks_by text;
UPDATE {SCHEMA}.run SET hooks_by = claimed_by WHERE ended_at IS NULL;
ALTER TABLE {SCHEMA}.machine ADD COLUMN disk text;
"""
MIGRATIONS = (_FIRST, _SECOND, _THIRD)
VERSION = len(MIGRATIONS)

# Of several that want to create or migrate, one does.
LOCK_SCHEMA = f"SELECT pg_advisory_xact_lock(hashtext('{SCHEMA}'))"
SCHEMA_EXISTS = f"SELECT to_regclass('{SCHEMA}.meta') IS NOT NULL"
SET_VERSION = f"""
INSERT INTO {SCHEMA}.meta VALUES ('version', %(version)s)
ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""

FIND_VERSION = f"SELECT value FROM {SCHEMA}.meta WHERE key = 'version'"

# -- the shipper -----------------------------------------------------------------------------

REGISTER = f"""
INSERT INTO {SCHEMA}.machine AS m (machine, name, disk)
VALUES (%(machine)s, %(name)s, %(disk)s::text)
ON CONFLICT (machine) DO UPDATE SET name = excluded.name, disk = coalesce(excluded.disk, m.disk)
RETURNING epoch, lost_at IS NOT NULL
"""

# Also the disk that it was last reported from.
RENEW = f"""
UPDATE {SCHEMA}.machine m
SET seen = clock_timestamp(), lease_until = clock_timestamp() + make_interval(secs => %(lease)s),
    disk = coalesce(%(disk)s::text, m.disk)
WHERE machine = %(machine)s AND epoch = %(epoch)s AND lost_at IS NULL
RETURNING (SELECT value FROM {SCHEMA}.meta WHERE key = 'version'),
    (SELECT b.disk FROM {SCHEMA}.machine b WHERE b.machine = m.machine)
"""

# What is compared of a record. What is encrypted differs each time, but for its first bytes: a
# keyed hash of the plaintext.
_CONTENTS = "CASE WHEN substr({0}, 1, 4) = '{1}' THEN substr({0}, 1, {2}) ELSE {0} END"

# The last position of each stream, and a hash of what it holds: the keyed one, or our own.
HAVE = f"""
SELECT s.stream, coalesce(f.position, 0), f.hash FROM unnest(%(streams)s::text[]) AS s (stream)
LEFT JOIN LATERAL (
    SELECT position, CASE WHEN substr(body, 1, 4) = '{MAGIC.decode()}'
        THEN substr(body, 1, {COMPARED}) ELSE sha256(body) END AS hash
    FROM {SCHEMA}.frame WHERE stream = s.stream ORDER BY position DESC LIMIT 1) AS f ON true
"""

ADD_RUN = f"""
INSERT INTO {SCHEMA}.run (machine, run, about) VALUES (%(machine)s, %(run)s, %(about)s)
ON CONFLICT DO NOTHING
"""

ADD_STREAMS = f"""
INSERT INTO {SCHEMA}.stream (stream, machine, run)
SELECT s, %(machine)s, r FROM unnest(%(streams)s::text[], %(runs)s::text[]) AS x (s, r)
ON CONFLICT DO NOTHING
"""

ADD_SHARES = f"""
INSERT INTO {SCHEMA}.share (session, stream, title)
SELECT * FROM unnest(%(sessions)s::text[], %(streams)s::text[], %(titles)s::text[])
ON CONFLICT (session, stream) DO UPDATE SET title = coalesce(excluded.title, share.title)
"""

ADD_FRAMES = f"""
INSERT INTO {SCHEMA}.frame (stream, position, seq, body)
SELECT * FROM unnest(
    %(streams)b::text[], %(positions)b::bigint[], %(seqs)b::bigint[], %(bodies)b::bytea[])
ON CONFLICT DO NOTHING
"""

# The same for records that are all new: it fails, and with it its transaction, if one is not.
ADD_NEW_FRAMES = f"""
WITH added AS (
    INSERT INTO {SCHEMA}.frame (stream, position, seq, body)
    SELECT * FROM unnest(
        %(streams)b::text[], %(positions)b::bigint[], %(seqs)b::bigint[], %(bodies)b::bytea[])
    ON CONFLICT DO NOTHING RETURNING 1)
SELECT 1 / (count(*) = cardinality(%(streams)b::text[]))::int FROM added
"""

# Of the positions that were there already, those with other contents.
DIFFERING = f"""
SELECT f.stream, f.position FROM {SCHEMA}.frame f
JOIN unnest(%(streams)b::text[], %(positions)b::bigint[], %(bodies)b::bytea[])
    AS x (stream, position, body) ON f.stream = x.stream AND f.position = x.position
WHERE {_CONTENTS.format("f.body", MAGIC.decode(), COMPARED)}
    <> {_CONTENTS.format("x.body", MAGIC.decode(), COMPARED)}
"""

UNKNOWN_RUNS = f"""
SELECT x.run FROM unnest(%(runs)s::text[]) AS x (run)
WHERE NOT EXISTS (
    SELECT 1 FROM {SCHEMA}.run r WHERE r.machine = %(machine)s AND r.run = x.run)
"""

HEARD = f"""
UPDATE {SCHEMA}.run SET heard = clock_timestamp()
WHERE machine = %(machine)s AND run = ANY(%(runs)s)
"""

END_RUN = f"""
UPDATE {SCHEMA}.run SET ended_at = clock_timestamp()
WHERE machine = %(machine)s AND run = %(run)s AND ended_at IS NULL
    AND (hooks_by IS NULL OR hooks_by = machine)
"""

LOCK_EPOCH = f"""
SELECT epoch, lost_at IS NOT NULL FROM {SCHEMA}.machine WHERE machine = %(machine)s FOR UPDATE
"""

# -- who may finalise ------------------------------------------------------------------------

LOCK_MACHINES = f"""
SELECT machine, lost_at IS NOT NULL, lease_until < clock_timestamp()
FROM {SCHEMA}.machine WHERE machine = ANY(%(machines)s) ORDER BY machine FOR UPDATE
"""

LOSE = f"""
UPDATE {SCHEMA}.machine
SET lost_at = clock_timestamp(), lost_because = %(because)s, epoch = epoch + 1
WHERE machine = %(machine)s AND lost_at IS NULL
    AND lease_until < clock_timestamp() - make_interval(secs => %(silent)s)
"""

COME_BACK = f"""
UPDATE {SCHEMA}.machine
SET lost_at = NULL, lost_because = NULL, epoch = epoch + 1, seen = clock_timestamp()
WHERE machine = %(machine)s AND lost_at IS NOT NULL
"""

# The runs of a machine that another one has, its name, and whether it was given the hooks.
TAKEN = f"""
SELECT r.run, coalesce(m.name, r.claimed_by), r.hooks_by IS NOT NULL AND r.hooks_by <> r.machine
FROM {SCHEMA}.run r
LEFT JOIN {SCHEMA}.machine m ON m.machine = r.claimed_by
WHERE r.machine = %(machine)s AND r.claimed_by IS NOT NULL AND r.claimed_by <> r.machine
"""

CLAIMED_BY = f"SELECT claimed_by FROM {SCHEMA}.run WHERE machine = %(machine)s AND run = %(run)s"

RUN_FOR_CLAIM = f"""
SELECT epoch, claimed_by, ended_at IS NOT NULL, recovered_at IS NOT NULL, hooks_by
FROM {SCHEMA}.run
WHERE machine = %(machine)s AND run = %(run)s FOR UPDATE
"""

CLAIM = f"""
UPDATE {SCHEMA}.run SET claimed_by = %(me)s, claimed_at = clock_timestamp(), epoch = epoch + 1,
    recovered_to = CASE WHEN claimed_by = %(me)s THEN recovered_to END
WHERE machine = %(machine)s AND run = %(run)s AND epoch = %(epoch)s
RETURNING epoch
"""

GIVE_HOOKS = f"""
UPDATE {SCHEMA}.run SET hooks_by = %(me)s
WHERE machine = %(machine)s AND run = %(run)s AND epoch = %(epoch)s AND claimed_by = %(me)s
"""

RECOVERED = f"""
UPDATE {SCHEMA}.run SET recovered_at = clock_timestamp(), recovered_to = %(upto)s::jsonb
WHERE machine = %(machine)s AND run = %(run)s AND epoch = %(epoch)s AND claimed_by = %(me)s
"""

RECOVERED_TO = f"""
SELECT recovered_to FROM {SCHEMA}.run WHERE machine = %(machine)s AND run = %(run)s
"""

# -- forgetting --------------------------------------------------------------------------------

# Machine, run, whether it is open (nobody has finished it), and whether its machine is alive.
FORGETTABLE = f"""
SELECT r.machine, r.run, r.ended_at IS NULL AND r.recovered_at IS NULL,
    coalesce(m.lost_at IS NULL AND m.lease_until > clock_timestamp(), false)
FROM {SCHEMA}.run r LEFT JOIN {SCHEMA}.machine m USING (machine)
WHERE (%(machine)s::text IS NULL OR r.machine = %(machine)s)
    AND r.heard < clock_timestamp() - make_interval(secs => %(older)s)
ORDER BY r.heard
"""

# Of this machine's own finished runs, some that are older than that.
EXPIRED = f"""
SELECT run FROM {SCHEMA}.run
WHERE machine = %(machine)s AND (ended_at IS NOT NULL OR recovered_at IS NOT NULL)
    AND heard < clock_timestamp() - make_interval(secs => %(older)s)
ORDER BY heard LIMIT 20
"""

IS_OPEN = f"""
SELECT ended_at IS NULL AND recovered_at IS NULL, claimed_by IS NOT NULL AND recovered_at IS NULL
FROM {SCHEMA}.run WHERE machine = %(machine)s AND run = %(run)s FOR UPDATE
"""

FORGET_RUN = tuple(
    statement.format(SCHEMA=SCHEMA)
    for statement in (
        "DELETE FROM {SCHEMA}.frame f USING {SCHEMA}.stream s WHERE f.stream = s.stream "
        "AND s.machine = %(machine)s AND s.run = %(run)s",
        "DELETE FROM {SCHEMA}.share h USING {SCHEMA}.stream s WHERE h.stream = s.stream "
        "AND s.machine = %(machine)s AND s.run = %(run)s",
        "DELETE FROM {SCHEMA}.stream WHERE machine = %(machine)s AND run = %(run)s",
        "DELETE FROM {SCHEMA}.run WHERE machine = %(machine)s AND run = %(run)s",
        "INSERT INTO {SCHEMA}.forgotten (machine, run) VALUES (%(machine)s, %(run)s) "
        "ON CONFLICT (machine, run) DO UPDATE SET at = clock_timestamp()",
    )
)

FORGOTTEN = f"""
SELECT run FROM {SCHEMA}.forgotten WHERE machine = %(machine)s AND run = ANY(%(runs)s)
"""

# A machine without runs, that is not alive.
FORGET_MACHINE = f"""
DELETE FROM {SCHEMA}.machine m WHERE m.machine = %(machine)s
    AND (m.lost_at IS NOT NULL OR m.lease_until < clock_timestamp())
    AND NOT EXISTS (SELECT 1 FROM {SCHEMA}.run r WHERE r.machine = m.machine)
"""

# -- looking ---------------------------------------------------------------------------------

MACHINES = f"""
SELECT machine, name, owner, extract(epoch FROM seen)::float8,
    CASE WHEN lost_at IS NOT NULL THEN 'lost'
         WHEN lease_until < clock_timestamp() THEN 'stale' ELSE 'alive' END,
    extract(epoch FROM lost_at)::float8, lost_because,
    extract(epoch FROM lease_until - clock_timestamp())::float8
FROM {SCHEMA}.machine ORDER BY name, machine
"""

RUNS = f"""
SELECT r.machine, r.run, extract(epoch FROM r.began)::float8, extract(epoch FROM r.heard)::float8,
    extract(epoch FROM r.ended_at)::float8, r.claimed_by, r.hooks_by,
    extract(epoch FROM r.recovered_at)::float8,
    (SELECT coalesce(sum((SELECT max(position) FROM {SCHEMA}.frame f WHERE f.stream = s.stream)), 0)
     FROM {SCHEMA}.stream s WHERE s.machine = r.machine AND s.run = r.run)::bigint
FROM {SCHEMA}.run r
WHERE r.ended_at IS NULL OR r.heard > clock_timestamp() - interval '7 days'
ORDER BY r.began
"""

SESSIONS = f"""
SELECT s.machine, s.run, h.session, max(h.title), extract(epoch FROM min(h.began))::float8
FROM {SCHEMA}.share h JOIN {SCHEMA}.stream s USING (stream)
GROUP BY s.machine, s.run, h.session ORDER BY min(h.began)
"""

# The runs in which a session was spoken, the latest last.
RUNS_OF = f"""
SELECT s.machine, s.run, h.session, min(h.began) AS began
FROM {SCHEMA}.share h JOIN {SCHEMA}.stream s USING (stream)
WHERE h.session = %(session)s OR (h.session LIKE %(prefix)s AND %(prefix)s <> '%%')
GROUP BY s.machine, s.run, h.session ORDER BY min(h.began)
"""

# The sessions of a run that a later run of the same machine, or of one that recovered it, went on
# with.
WENT_ON = f"""
SELECT DISTINCT mine.session
FROM {SCHEMA}.share mine
JOIN {SCHEMA}.stream ms ON ms.stream = mine.stream
JOIN {SCHEMA}.share theirs ON theirs.session = mine.session
JOIN {SCHEMA}.stream ts ON ts.stream = theirs.stream
WHERE ms.machine = %(machine)s AND ms.run = %(run)s
    AND (ts.machine, ts.run) <> (ms.machine, ms.run)
    AND theirs.began > (
        SELECT max(began) FROM {SCHEMA}.share l JOIN {SCHEMA}.stream ls USING (stream)
        WHERE l.session = mine.session AND ls.machine = ms.machine AND ls.run = ms.run)
"""

ABOUT = f"""
SELECT about, extract(epoch FROM heard)::float8 FROM {SCHEMA}.run
WHERE machine = %(machine)s AND run = %(run)s
"""

# The beginnings of what is encrypted: which keys were used.
SEALS = f"""
SELECT DISTINCT substr(f.body, 1, 12)
FROM {SCHEMA}.frame f JOIN {SCHEMA}.stream s USING (stream)
WHERE s.machine = %(machine)s AND s.run = %(run)s AND substr(f.body, 1, 4) = '{MAGIC.decode()}'
"""

FRAMES = f"""
SELECT f.stream, f.position, f.body FROM {SCHEMA}.frame f JOIN {SCHEMA}.stream s USING (stream)
WHERE s.machine = %(machine)s AND s.run = %(run)s ORDER BY f.stream, f.position
"""

SETTINGS = """
SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes',
    'synchronous_commit', 'synchronous_standby_names', 'server_version')
"""

RIGHTS = f"""
SELECT t, has_table_privilege(t, 'SELECT')
    AND (t = '{SCHEMA}.forgotten' OR has_table_privilege(t, 'INSERT'))
    AND (t IN ('{SCHEMA}.frame', '{SCHEMA}.stream', '{SCHEMA}.forgotten')
         OR has_table_privilege(t, 'UPDATE'))
FROM unnest(ARRAY['{SCHEMA}.machine', '{SCHEMA}.run', '{SCHEMA}.stream', '{SCHEMA}.share',
    '{SCHEMA}.frame', '{SCHEMA}.forgotten']) AS t
"""
