-- The first schema. Identifiers are the 16 bytes of a UUID, times are Unix
-- milliseconds, flags are 0 or 1, memory is in bytes, CPU in thousandths of a
-- core. Once released this file never changes: its checksum is verified.

CREATE TABLE meta (
  key TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT;

CREATE TABLE workspaces (
  id BLOB PRIMARY KEY CHECK (length(id) = 16),
  name TEXT NOT NULL UNIQUE,
  created_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE workers (
  id BLOB PRIMARY KEY CHECK (length(id) = 16),
  workspace BLOB REFERENCES workspaces (id),
  bound_workspace BLOB REFERENCES workspaces (id),
  pool TEXT NOT NULL,
  hostname TEXT NOT NULL,
  cpu_millis INTEGER NOT NULL,
  memory_bytes INTEGER NOT NULL,
  gpu_type TEXT NOT NULL,
  gpu_count INTEGER NOT NULL,
  runtime TEXT NOT NULL,
  node TEXT NOT NULL,
  build TEXT NOT NULL,
  state TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  last_seen_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE tokens (
  id BLOB PRIMARY KEY CHECK (length(id) = 16),
  workspace BLOB REFERENCES workspaces (id),
  kind TEXT NOT NULL,
  hash BLOB NOT NULL UNIQUE CHECK (length(hash) = 32),
  hint TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  last_used_ms INTEGER,
  expires_ms INTEGER,
  revoked_ms INTEGER,
  container BLOB,
  worker BLOB,
  pool TEXT,
  shared INTEGER NOT NULL,
  claimed_instance BLOB,
  confirmed INTEGER NOT NULL
) STRICT;
CREATE INDEX tokens_by_workspace ON tokens (workspace, id);

CREATE TABLE stubs (
  id BLOB PRIMARY KEY CHECK (length(id) = 16),
  workspace BLOB NOT NULL REFERENCES workspaces (id),
  type TEXT NOT NULL,
  name TEXT NOT NULL,
  config BLOB NOT NULL,
  config_hash BLOB NOT NULL CHECK (length(config_hash) = 32),
  object BLOB,
  image BLOB,
  created_ms INTEGER NOT NULL,
  UNIQUE (workspace, type, name, config_hash)
) STRICT;

CREATE TABLE deployments (
  id BLOB PRIMARY KEY CHECK (length(id) = 16),
  workspace BLOB NOT NULL REFERENCES workspaces (id),
  name TEXT NOT NULL,
  version INTEGER NOT NULL,
  stub BLOB NOT NULL REFERENCES stubs (id),
  active INTEGER NOT NULL,
  slug TEXT UNIQUE,
  created_ms INTEGER NOT NULL,
  UNIQUE (workspace, name, version)
) STRICT;

CREATE TABLE containers (
  id BLOB NOT NULL CHECK (length(id) = 16),
  generation INTEGER NOT NULL,
  workspace BLOB NOT NULL REFERENCES workspaces (id),
  worker BLOB NOT NULL,
  stub BLOB NOT NULL REFERENCES stubs (id),
  state TEXT NOT NULL,
  cpu_millis INTEGER NOT NULL,
  memory_bytes INTEGER NOT NULL,
  gpu_type TEXT NOT NULL,
  gpu_count INTEGER NOT NULL,
  created_ms INTEGER NOT NULL,
  ended_ms INTEGER,
  last_event INTEGER NOT NULL,
  PRIMARY KEY (id, generation)
) STRICT;

CREATE TABLE tasks (
  id BLOB PRIMARY KEY CHECK (length(id) = 16),
  workspace BLOB NOT NULL REFERENCES workspaces (id),
  stub BLOB NOT NULL REFERENCES stubs (id),
  name TEXT NOT NULL,
  status TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  started_ms INTEGER,
  ended_ms INTEGER,
  exit_code INTEGER,
  reason TEXT NOT NULL,
  attempts INTEGER NOT NULL,
  max_retries INTEGER NOT NULL,
  timeout_ms INTEGER,
  detached INTEGER NOT NULL,
  pool TEXT,
  callers_gone_ms INTEGER,
  cancel_reason TEXT,
  lines_reserved INTEGER NOT NULL,
  cpu_millis INTEGER NOT NULL,
  memory_bytes INTEGER NOT NULL,
  gpu_type TEXT NOT NULL,
  gpu_count INTEGER NOT NULL,
  cpu_given INTEGER NOT NULL,
  memory_given INTEGER NOT NULL,
  command BLOB NOT NULL,
  env BLOB NOT NULL
) STRICT;
CREATE INDEX tasks_by_workspace ON tasks (workspace, id);
CREATE INDEX tasks_by_stub ON tasks (stub);
CREATE INDEX tasks_waiting ON tasks (created_ms, id) WHERE status IN ('PENDING', 'RETRY');
CREATE INDEX tasks_live ON tasks (id) WHERE status IN ('PENDING', 'RUNNING', 'RETRY');
CREATE INDEX tasks_ended ON tasks (ended_ms) WHERE ended_ms IS NOT NULL;
CREATE INDEX tasks_without_callers ON tasks (callers_gone_ms) WHERE callers_gone_ms IS NOT NULL;

CREATE TABLE attempts (
  task BLOB NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
  number INTEGER NOT NULL,
  container BLOB NOT NULL,
  generation INTEGER NOT NULL,
  worker BLOB NOT NULL,
  state TEXT NOT NULL,
  base_line INTEGER NOT NULL,
  created_ms INTEGER NOT NULL,
  started_ms INTEGER,
  ended_ms INTEGER,
  reason TEXT NOT NULL,
  log_next INTEGER NOT NULL,
  log_total INTEGER,
  PRIMARY KEY (task, number),
  FOREIGN KEY (container, generation) REFERENCES containers (id, generation)
) STRICT;
CREATE INDEX attempts_by_container ON attempts (container, generation);

CREATE TABLE log_segments (
  id BLOB PRIMARY KEY CHECK (length(id) = 16),
  task BLOB NOT NULL,
  attempt INTEGER NOT NULL,
  first_index INTEGER NOT NULL,
  next_index INTEGER NOT NULL,
  first_line INTEGER NOT NULL,
  next_line INTEGER NOT NULL,
  object_key TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  created_ms INTEGER NOT NULL,
  UNIQUE (task, attempt, first_index),
  FOREIGN KEY (task, attempt) REFERENCES attempts (task, number)
) STRICT;
CREATE INDEX log_segments_by_line ON log_segments (task, next_line);
CREATE INDEX log_segments_by_age ON log_segments (created_ms, id);

-- `workspace` is 16 zero bytes for a request that speaks for none.
CREATE TABLE calls (
  workspace BLOB NOT NULL CHECK (length(workspace) = 16),
  request_id BLOB NOT NULL CHECK (length(request_id) = 16),
  answer BLOB NOT NULL,
  created_ms INTEGER NOT NULL,
  PRIMARY KEY (workspace, request_id)
) STRICT;
CREATE INDEX calls_by_age ON calls (created_ms);

CREATE TABLE leases (
  name TEXT PRIMARY KEY,
  holder BLOB,
  epoch INTEGER NOT NULL,
  expires_ms INTEGER NOT NULL
) STRICT;
